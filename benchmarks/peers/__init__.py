"""Peers against the proven optimum: `python -m benchmarks.peers`."""
