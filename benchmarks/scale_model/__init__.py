"""A model of scale: what a step takes on more ranks than there are. Pure; needs nothing but numpy.

fit.py finds latency and bandwidth in what collectives.py measured, costs.py says what an exchange takes, simulation.py
what stragglers add, prediction.py puts them together; measured.py reads the records of a run.
"""
