"""Accelerators, nodes and prices as YAML; read through planner.files.catalog."""
