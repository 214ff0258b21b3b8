"""Which technique wins where: the planner on a grid of workloads. `python -m benchmarks.guidelines`."""
