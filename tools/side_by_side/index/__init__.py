"""The index chain, likewise: scores and exact top-k."""
