"""Filters: what DuckDB pushes down, as values; checked, and computed on rows or turned into SQL."""
