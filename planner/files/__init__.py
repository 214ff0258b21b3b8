"""YAML and JSON to domain values and back; the only place that uses pydantic."""
