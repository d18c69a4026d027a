"""What becomes of programs with tf.estimator or Horovod, which are read by their syntax, and never run or imported.

A file is a Program; what its names stand for (Names) and what its settings are (Values) make it a Source with findings,
each with its counterpart. Of sources a report is made, and job.yaml with model.py.
"""
