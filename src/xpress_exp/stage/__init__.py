"""The stages: each instantiates what its config names, calls it, and writes the result."""
