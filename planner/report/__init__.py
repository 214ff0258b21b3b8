"""Plan to terminal text."""
