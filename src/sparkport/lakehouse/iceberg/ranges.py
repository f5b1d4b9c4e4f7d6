"""What the manifests say of a column over all files of a plan, as arrays: decoded once, compared at once.

A plan is shared by all who read its snapshot, and a filter that leaves one file of a thousand has to look at a thousand
bounds. So bounds are kept decoded, by column, next to the files.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkport.lakehouse.cached import cached_property
from sparkport.lakehouse.iceberg.manifests import DataFile

__all__ = ["Bounds", "FileIndex", "Flags", "Range", "Ranges"]

Flags = NDArray[np.bool_]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """What a file can hold in a column. ``lower`` or ``upper`` None: no limit is known. Nulls come on top."""

    lower: Any = None
    upper: Any = None
    nulls: bool = True
    values: bool = True


class Bounds:
    """The lower or the upper limits of a column, one for each file; None where none is known."""

    def __init__(self, limits: Sequence[Any]) -> None:
        self._count = len(limits)
        known = [place for place, limit in enumerate(limits) if limit is not None]
        self._places = None if len(known) == len(limits) else np.array(known, dtype=np.intp)
        self._limits: Sequence[Any] = [limits[place] for place in known]
        self._numbers = _numbers(self._limits)
        if self._numbers is not None:
            self._limits = ()

    def may(self, op: str, wanted: Any) -> Flags:
        """Where ``limit op wanted`` holds, or no limit is known."""
        compared = self._compared(op, wanted)
        if self._places is None:
            return compared
        flags = np.ones(self._count, dtype=np.bool_)
        flags[self._places] = compared
        return flags

    def _compared(self, op: str, wanted: Any) -> Flags:
        compare = _COMPARE[op]
        # Anything but plain numbers is compared by Python: arrays of texts would lose zeros at their ends.
        if self._numbers is not None and _is_alike(self._numbers, wanted):
            flags: Flags = compare(self._numbers, wanted)
            return flags
        limits = self._limits if self._numbers is None else self._numbers.tolist()
        return np.fromiter((compare(limit, wanted) for limit in limits), np.bool_, len(limits))


def _numbers(limits: Sequence[Any]) -> NDArray[Any] | None:
    types = {type(limit) for limit in limits}
    if types == {float}:
        return np.array(limits, dtype=np.float64)
    if types == {int} and min(limits) >= _LEAST and max(limits) <= _MOST:
        return np.array(limits, dtype=np.int64)
    return None


def _is_alike(numbers: NDArray[Any], wanted: Any) -> bool:
    if numbers.dtype == np.float64:
        return type(wanted) is float
    return type(wanted) is int and _LEAST <= wanted <= _MOST


class Ranges:
    """A column over all files: its limits, and whether there can be nulls and values at all."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.lower = Bounds([item.lower for item in ranges])
        self.upper = Bounds([item.upper for item in ranges])
        self.nulls = np.array([item.nulls for item in ranges], dtype=np.bool_)
        self.values = np.array([item.values for item in ranges], dtype=np.bool_)


class FileIndex:
    """Files in their order, and the ranges of columns that have been asked for. Safe to use from several threads."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self.files = tuple(files)
        self._ranges: dict[Hashable, Ranges] = {}
        self._whole: FileIndex | None = None
        self._places: NDArray[np.intp] | None = None

    @property
    def whole(self) -> FileIndex:
        """The index that ranges are kept in: this one, or the one that this is a part of."""
        return self if self._whole is None else self._whole

    def __len__(self) -> int:
        return len(self.files)

    def ranges(self, column: Hashable, of_file: Callable[[DataFile], Range]) -> Ranges:
        """``column`` MUST name all that ``of_file`` depends on. Two threads may both make them, which does no harm."""
        ranges = self._ranges.get(column)
        if ranges is None:
            ranges = self._ranges[column] = Ranges([of_file(file) for file in self.files])
        return ranges

    def chosen(self, flags: Flags) -> list[DataFile]:
        """The files whose flag is set; ``flags`` are those of the whole."""
        chosen = flags if self._places is None else flags[self._places]
        return [self.files[place] for place in np.flatnonzero(chosen)]

    def part(self, files: Iterable[DataFile]) -> FileIndex:
        """An index of some of the files. Files from elsewhere make it one that stands for itself."""
        part = FileIndex(files)
        places = [self.whole._numbers.get(id(file)) for file in part.files]
        if None not in places:
            part._whole, part._places = self.whole, np.array(places, dtype=np.intp)
        return part

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(file): place for place, file in enumerate(self.files)}
