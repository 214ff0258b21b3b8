"""Frozen value types of the planner: hardware, models, workloads, stages, strategies, plans."""
