"""Checkpoints: what they hold, how they are stored, and the thread that writes them."""
