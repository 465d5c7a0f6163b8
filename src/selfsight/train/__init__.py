"""Training: the loop, the driver, checkpoints, measurements and the verdict."""
