"""What quick.py measures: a little of each of the other benchmarks, judged by the targets of each."""
