"""Boosted trees on buckets of numbers."""

from tensorflow import estimator
from tensorflow.estimator import BoostedTreesClassifier as Trees
from tensorflow.feature_column import bucketized_column, numeric_column

NAMES = ["width", "height"]
BUCKETS = [bucketized_column(numeric_column(name), [0.0, 0.5, 1.0]) for name in NAMES]


def make_input_fn(frame, labels, epochs=None):
    """Of a data frame."""
    return estimator.inputs.pandas_input_fn(x=frame, y=labels, num_epochs=epochs, shuffle=False)


def run(train, labels):
    """Fits a hundred trees."""
    trees = Trees(BUCKETS, n_batches_per_layer=1, n_trees=100, max_depth=6, learning_rate=0.1)
    trees.train(make_input_fn(train, labels), max_steps=100)
    kind = "Baseline" + "Classifier"
    baseline = getattr(estimator, kind)(n_classes=2)
    baseline.train(make_input_fn(train, labels), max_steps=100)
    return trees.experimental_feature_importances(normalize=True)
