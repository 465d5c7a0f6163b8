"""Training: the loop, its driver, one optimizer step, checkpoints and metrics."""
