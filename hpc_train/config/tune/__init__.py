"""`tune:` of a job file: what a study of hyper-parameters varies, and by which metric it chooses. Pure."""
