"""Hints that every user of DuckDB gets before anything else."""

from __future__ import annotations

__all__ = ["SET_OPTIMIZER"]

SET_OPTIMIZER = (
    "SET disabled_optimizers = 'common_subplan';  -- else DuckDB 1.5 may take two tables with the same columns for one"
)
