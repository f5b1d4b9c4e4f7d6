"""``sparkport flush``, and the journal in ``sparkport status``: committed changes that wait to be published."""

from __future__ import annotations

from typing import Any, TextIO

import pyarrow as pa
from pyarrow import flight

from sparkport.cli.remote import Remote, RemoteSession, connected

__all__ = ["STATUS_ACTION", "flush", "journal_lines"]

STATUS_ACTION = "journal_status"


def flush(remote: Remote, *, out: TextIO) -> int:
    with connected(remote) as session:
        report = list(session.act("flush_journal"))[-1]
    if report["rows"]:
        text = f"{_count(report['rows'], 'row')} of {_count(report['tables'], 'table')} published"
        print(f"{text} in {report['seconds']:.1f} s", file=out)
    else:
        print("there was nothing to flush", file=out)
    return 0


def journal_lines(session: RemoteSession) -> list[str]:
    """What a lakehouse tells of its journal, to those who may know that there is one."""
    try:
        answers = list(session.act(STATUS_ACTION))
    except pa.ArrowKeyError:  # NOT_FOUND: the lakehouse is hidden from this caller
        return []
    except flight.FlightUnauthorizedError:
        return [f"the journal is not shown: that needs the right to the action {STATUS_ACTION}"]
    report = answers[-1]
    lines = [f"journal of {report['catalog']}: {_waiting(report)}"]
    if report["failure"] is not None:
        lines.append(f"journal of {report['catalog']}: the last flush failed: {' '.join(report['failure'].split())}")
    lines += [f"journal of {report['catalog']}: {line}" for line in _set_apart(report)]
    if report["overwritten"] or report["deleted"]:
        lines.append(
            f"journal of {report['catalog']}: others had changed {_count(report['overwritten'], 'row')} and deleted "
            f"{_count(report['deleted'], 'row')} past it"
        )
    return lines


def _set_apart(report: dict[str, Any]) -> list[str]:
    """Absent in what older servers answer."""
    shown = report.get("tables_set_apart", [])
    lines = [
        f"table {item['schema_name']}.{item['table_name']} is set apart: {' '.join(item['failure'].split())}"
        for item in shown
    ]
    if hidden := report.get("set_apart", 0) - len(shown):
        lines.append(f"{_count(hidden, 'table')} set apart that you may not know of")
    return lines


def _waiting(report: dict[str, Any]) -> str:
    if not report["entries"]:
        return "nothing waits"
    oldest = "" if report["age"] is None else f", the oldest for {report['age']:.1f} s"
    return (
        f"{_count(report['rows'], 'row')} of {_count(report['tables'], 'table')} to be published "
        f"({_count(report['entries'], 'entry')}, {_count(report['bytes'], 'byte')}){oldest}"
    )


def _count(number: int, what: str) -> str:
    plural = {"entry": "entries"}.get(what, f"{what}s")
    return f"{number:,} {what if number == 1 else plural}"
