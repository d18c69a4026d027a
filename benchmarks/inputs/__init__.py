"""The parts of input_pipeline.py."""
