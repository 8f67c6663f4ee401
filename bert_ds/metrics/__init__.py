"""Throughput, FLOPs and logs: reads the training state and never changes it."""
