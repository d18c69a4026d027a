"""A fresh model that begins with the weights of another."""
