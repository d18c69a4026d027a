"""What every strategy shares: the loop, the step, checkpoints, the end of a run."""
