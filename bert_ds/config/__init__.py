"""Configuration: the models of a recipe and a run, their loading, and the batch arithmetic."""
