"""What all benchmarks share: interleaved timing, one JSON object a line, and the report page."""
