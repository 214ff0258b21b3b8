"""The cost model: time and memory of strategies, on arrays, as named additive terms."""
