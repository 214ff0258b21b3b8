"""The cost model against published measurements, row by row, each with its own configuration."""
