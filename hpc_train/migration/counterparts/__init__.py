"""What replaces names of tf.estimator, Keras and Horovod: a row a name."""
