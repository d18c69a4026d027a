"""What is compared, and where it ran, by name."""

from __future__ import annotations

OURS, MEMCPY, SEND_RECV, APPLIED = "push and pull", "memcpy", "Send/Recv", "apply alone"
PLAIN_HOROVOD, SYNC, ASYNC, PREFETCH = "plain Horovod", "sync", "async", "async, prefetching"
BOUNDED = "async, max_staleness 2"
SLOW = "one slow worker"
BARE, JOB = "bare", "of a job"

ONE_NODE, WITHOUT_CMA = "one node", "one node, no CMA"
TWO_HOSTS, ONE_HOST_TCP = "two hosts, TCP", "one host, TCP"
