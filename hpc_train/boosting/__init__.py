"""Jobs that train boosted trees (`builtin: gbdt`): XGBoost over all ranks, in the job-dir of any other job."""
