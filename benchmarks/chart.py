"""Draws who takes how long for the same work: bars on a logarithmic scale, as an SVG that is read in light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Timing", "chart"]


@dataclass(frozen=True, slots=True)
class Timing:
    """The median of one contestant's times for one kind of work."""

    work: str
    who: str
    seconds: float


_LEFT, _WIDTH, _RIGHT, _BAR, _GAP, _TOP = 310, 430, 80, 17, 30, 48
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.work{font-weight:600}.scale{font-size:11px;fill:#656d76}"
    "line{stroke:#d0d7de}rect{fill:#8c959f}.ours{fill:#0969da}.off{fill:#54aeff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.scale{fill:#8d96a0}line{stroke:#30363d}"
    "rect{fill:#6e7681}.ours{fill:#4493f8}.off{fill:#1f6feb}}"
)


def chart(timings: Iterable[Timing], title: str) -> str:
    """Ours are those whose name begins with sparkport, and are drawn in colour."""
    works: dict[str, list[Timing]] = {}
    for timing in timings:
        works.setdefault(timing.work, []).append(timing)
    every = [1e3 * timing.seconds for group in works.values() for timing in group]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    parts: list[str] = []
    bottom = _TOP
    for work, group in works.items():
        parts.append(f'<text class="work" x="8" y="{bottom + 13}">{escape(work)}</text>')
        for place, timing in enumerate(group):
            parts += _bar(timing, bottom + place * _BAR, (low, high))
        bottom += len(group) * _BAR + _GAP - _BAR
    return "\n".join([*_frame(title, bottom, (low, high)), *parts, "</svg>", ""])


def _place(milliseconds: float, scale: tuple[int, int]) -> float:
    low, high = scale
    return _LEFT + _WIDTH * (math.log10(milliseconds) - low) / (high - low)


def _bar(timing: Timing, top: int, scale: tuple[int, int]) -> Sequence[str]:
    milliseconds = 1e3 * timing.seconds
    css = "" if not timing.who.startswith("sparkport") else "off" if timing.who.endswith("off") else "ours"
    end = _place(milliseconds, scale)
    digits = 0 if milliseconds >= 100 else 1 if milliseconds >= 1 else 2
    return (
        f'<text x="{_LEFT - 8}" y="{top + 12}" text-anchor="end">{escape(timing.who)}</text>',
        f'<rect class="{css}" x="{_LEFT}" y="{top + 2}" width="{max(end - _LEFT, 1):.1f}" height="{_BAR - 4}" rx="2"/>',
        f'<text x="{end + 5:.1f}" y="{top + 12}">{milliseconds:,.{digits}f} ms</text>',
    )


def _frame(title: str, bottom: int, scale: tuple[int, int]) -> Iterable[str]:
    width, height = _LEFT + _WIDTH + _RIGHT, bottom + 8
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    yield f'<text class="work" x="8" y="18">{escape(title)}</text>'
    for power in range(scale[0], scale[1] + 1):
        across = _place(10.0**power, scale)
        yield f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{_TOP - 4}" y2="{bottom - 6}"/>'
        yield f'<text class="scale" x="{across:.1f}" y="{_TOP - 10}" text-anchor="middle">{10.0**power:,g} ms</text>'
