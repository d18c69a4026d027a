"""Studies of hyper-parameters: a folder of ordinary jobs, and the decisions about them."""
