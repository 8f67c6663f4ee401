"""Throughput, FLOPs and logs of training; nothing here changes its state."""
