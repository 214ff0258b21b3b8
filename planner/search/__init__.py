"""Exact search: candidates, integer problem, CP-SAT and ILP back ends, schedule."""
