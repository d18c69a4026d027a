"""A scikit-learn training program that runs as a job of one rank."""
