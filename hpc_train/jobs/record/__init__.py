"""What is known of a submitted job."""
