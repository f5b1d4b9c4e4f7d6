"""Queries in Spark's own SQL: what they may say, what they may see, and how their rows come back."""
