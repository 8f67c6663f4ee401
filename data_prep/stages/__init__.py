"""A preparation: plan, map, reduce, finalise."""
