"""A DuckDB in a process of its own, with or without DuckLake: ``python peer.py FILE [DATA]``, one JSON a line each way.

It runs in a virtual environment that has nothing but ``duckdb`` and the extension, so it imports nothing of ours. It
takes its times itself: what a peer does in process has no wire in it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import duckdb

LAKE = "lake"


def opened(file: str, data: str | None) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    if data is None:
        connection.execute(f"ATTACH '{file}' AS {LAKE}")
    else:
        connection.execute(f"LOAD '{_extension()}'")
        connection.execute(f"ATTACH 'ducklake:{file}' AS {LAKE} (DATA_PATH '{data}', DATA_INLINING_ROW_LIMIT 10000)")
    connection.execute(f"USE {LAKE}")
    return connection


def _extension() -> str:
    """The package brings the extension as a file and has no function that says where."""
    from importlib.metadata import files

    (found,) = (file for file in files("duckdb-extension-ducklake") or () if file.suffix == ".duckdb_extension")
    return str(found.locate())


def statements(templates: list[str], number: int, rows: int) -> list[str]:
    """``{n}`` is the number itself, ``{key}`` one of the first rows of a table, another one for each number."""
    return [text.format(n=number, key=number * 7919 % rows) for text in templates]


def once(connection: duckdb.DuckDBPyConnection, texts: list[str]) -> None:
    for text in texts:
        found = connection.execute(text).fetchall()
        verb = text.split(" ", 1)[0]
        if (verb == "SELECT" and len(found) != 1) or (verb in ("INSERT", "UPDATE", "DELETE") and found != [(1,)]):
            raise AssertionError(f"{text}: {found}")


def alone(connection: duckdb.DuckDBPyConnection, request: dict[str, Any], numbers: Iterator[int]) -> dict[str, Any]:
    times: list[float] = []
    end = time.perf_counter() + request["seconds"]
    while len(times) < request["least"] or time.perf_counter() < end:
        texts = statements(request["statements"], next(numbers), request["rows"])
        begin = time.perf_counter()
        once(connection, texts)
        times.append(time.perf_counter() - begin)
    return {"times": times}


def together(connection: duckdb.DuckDBPyConnection, request: dict[str, Any], numbers: Iterator[int]) -> dict[str, Any]:
    """Many threads, each with a connection of its own. A statement that fails is counted and not tried again."""
    done: list[int] = []
    failed: list[str] = []
    guard = threading.Lock()
    begin = time.perf_counter()
    end = begin + request["seconds"]

    def run() -> None:
        own = connection.cursor()
        own.execute(f"USE {LAKE}")
        while time.perf_counter() < end:
            with guard:
                number = next(numbers)
            try:
                once(own, statements(request["statements"], number, request["rows"]))
                done.append(number)
            except duckdb.Error as exc:
                failed.append(str(exc))

    threads = [threading.Thread(target=run) for _ in range(request["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"done": len(done), "failed": failed, "seconds": time.perf_counter() - begin}


def main() -> None:
    file, data = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    connection, numbers = opened(file, data), count(1)
    works: dict[str, Callable[..., dict[str, Any]]] = {"alone": alone, "together": together}
    for line in sys.stdin:
        request = json.loads(line)
        if "sql" in request:
            answer: dict[str, Any] = {"rows": connection.execute(request["sql"]).fetchall()}
        else:
            answer = works[request["work"]](connection, request, numbers)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
