"""What is timed: `python -m benchmarks` prints every figure from one run on one machine."""
