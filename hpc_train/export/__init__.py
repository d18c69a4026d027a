"""SavedModels from a model or a checkpoint."""
