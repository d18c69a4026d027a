"""What becomes of trials: their points, how they are compared, and the decisions about them."""
