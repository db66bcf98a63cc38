"""Attention: its cells, their inputs, the peer and what measures them."""
