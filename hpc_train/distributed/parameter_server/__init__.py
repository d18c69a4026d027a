"""Asynchronous training: parameter servers in MPI one-sided windows."""
