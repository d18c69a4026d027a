"""Parts of benchmarks/model_parallel.py: what ranks that hold parts of a model are measured with."""
