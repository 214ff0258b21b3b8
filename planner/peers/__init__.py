"""Other planners and rules of thumb over our own cost model: what the optimum is compared with (docs/peers.md)."""
