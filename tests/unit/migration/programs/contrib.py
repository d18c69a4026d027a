"""TensorFlow 1.4: tf.contrib.learn."""

import tensorflow as tf
from tensorflow.contrib import learn
from tensorflow.contrib.layers import real_valued_column

columns = [real_valued_column("x", dimension=4)]
classifier = learn.DNNClassifier(hidden_units=[10, 20, 10], feature_columns=columns, n_classes=3)
experiment = tf.contrib.learn.Experiment(classifier, None, None)
hparams = tf.contrib.training.HParams(rate=0.1, layers=3)
classifier.fit(input_fn=None, steps=2000)
