"""The queues that jobs run in."""
