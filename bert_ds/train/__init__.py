"""Training: wiring, the loop, its state, stopping, evaluation, and the run over all phases."""
