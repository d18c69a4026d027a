"""The parts of input_pipeline.py: data, competitors, cases, targets and the report's text."""
