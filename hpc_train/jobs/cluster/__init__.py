"""TensorFlow's cluster among the ranks of a program: each gets its role and all addresses, in TF_CONFIG."""
