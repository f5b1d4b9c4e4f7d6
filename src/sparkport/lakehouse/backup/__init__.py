"""Copies of a whole lakehouse, and lakehouses made of them."""
