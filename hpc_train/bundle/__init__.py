"""One archive about a job for those who are to help: what it reported, what it runs on, and nothing secret."""
