"""Model shapes in the keys of Hugging Face config.json; read through planner.files.catalog."""
