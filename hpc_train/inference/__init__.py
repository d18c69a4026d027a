"""Predictions of a trained model over shards."""
