"""Rows from shards to tensors: their order, their reading, and the batches of each rank."""
