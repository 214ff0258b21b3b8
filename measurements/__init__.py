"""Published measurements as CSV, with their sources; read through planner.validation."""
