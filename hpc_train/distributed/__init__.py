"""Ranks: who runs where, with which cores and device. The only place that starts MPI or Horovod."""
