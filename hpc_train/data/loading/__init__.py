"""From rows to batches, and on into TensorFlow."""
