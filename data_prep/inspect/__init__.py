"""What a dataset holds: checks, samples and statistics."""
