"""From a table to a trained model in one command: `hpc-train fit`."""
