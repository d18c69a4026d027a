"""From a model function and specs to a trained, evaluated and exported model."""
