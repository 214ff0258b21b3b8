"""Many plans at once: points that share pricing, workers that plan them, and the file that survives."""
