"""Measurements that anyone can repeat: what a part costs, and how right it is."""
