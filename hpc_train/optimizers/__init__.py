"""What optimizers of big batches need: the scaling rule, warm-up, LARS."""
