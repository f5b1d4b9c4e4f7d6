"""What is kept of columns that small reads have decoded, as the metrics tell it."""

from __future__ import annotations

from sparkport.lakehouse.cache import cache_figures

__all__ = ["KEPT_BYTES", "kept"]

KEPT_BYTES = 64 << 20


def kept(what: str) -> float:
    """``entries`` or ``fill_ratio``, of all that is read in this process."""
    (value,) = [
        figure.value
        for figure in cache_figures()
        if figure.name == f"cache_{what}" and figure.labels["cache"] == "columns"
    ]
    assert isinstance(value, float | int)
    return value
