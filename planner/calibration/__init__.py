"""Efficiencies from a user's own runs and micro-benchmarks: a few parameters, only those that the data can tell."""
