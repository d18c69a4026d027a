"""Ensembles: several models of one job, trained as the trials of a study, and one that gives the mean of theirs."""
