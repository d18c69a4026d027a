"""What becomes of programs with tf.estimator or Horovod: read by their syntax, never run or imported.

    file ─► Program ─► Names ─► findings ─► report
                         │                     counterparts: a row a name
                         └────► facts ────► job.yaml, model.py
"""
