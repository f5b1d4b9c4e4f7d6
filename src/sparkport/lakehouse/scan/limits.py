"""Numbers that decide how files are read, and how much of them may be in memory: measured, and the same for all."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Room", "Ways"]


@dataclass(frozen=True, slots=True)
class Ways:
    """Where one way to read is quicker than another."""

    filtered_rows: int = 1 << 18
    """Up to so many, reading all of them is quicker than to set up a query that skips some."""
    small_files: int = 8
    """How many small files are opened one after the other before DuckDB does it quicker."""
    small_file_rows: int = 1 << 15
    small_bytes: int = 8 << 20
    """Files that have no more are read in one go, by the thread that asks."""
    large_file_rows: int = 500_000
    """In such a file DuckDB leaves out pages: these have up to 20,000 rows, and the first of a query costs about as
    much as reading a row group or two."""
    few_in_file: int = 4
    rows_per_wanted: int = 40_000
    part_bytes: int = 256 << 20
    """Of a scan that is worth more than one stream."""
    window_rows: int = 2_000_000
    """Two states of a table are compared so many rows at a time."""


@dataclass(frozen=True, slots=True)
class Room:
    """What reads may hold besides the rows that are on their way out, all reads of a reader together."""

    large_bytes: int = 256 << 20
    """Those that hold much."""
    small_bytes: int = 128 << 20
    """Those that hold little: each would not matter, all together do."""
    small_shares: int = 4
    """How many scans' shares are little."""
    disk_bytes: int = 16 << 30
    """Rows that wait for their readers on disk."""
