"""Repeatable measurements: what the parts of training cost, and how exact they are."""
