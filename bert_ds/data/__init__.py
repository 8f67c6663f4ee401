"""Turns rows of shards into tensors: their order, their reading, and the batches of each rank."""
