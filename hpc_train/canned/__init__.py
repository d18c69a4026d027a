"""tf.estimator's canned estimators: feature columns, and the linear models and DNNs that are made of them."""
