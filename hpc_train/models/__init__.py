"""Models that need no code of the user: preprocessing, layers and heads, of stock Keras layers."""
