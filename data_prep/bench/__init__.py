"""How fast preparation is on this machine."""
