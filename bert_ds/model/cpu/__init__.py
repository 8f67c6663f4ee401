"""Kernels that make training on CPUs fast; nothing on a GPU runs them."""
