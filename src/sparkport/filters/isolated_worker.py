"""The process that computes expressions which strangers wrote: DEFAULT and CHECK, one at a time, with nothing in reach.

It is a program of its own, run by :mod:`sparkport.catalog.isolated`, and imports nothing of the package, so that it
starts fast and holds nothing worth stealing. What an expression may be is decided here, on DuckDB's own parse tree: one
scalar expression of functions that only compute; the operator's own rules are held to the same grammar. DuckDB cannot
interrupt a function in the middle of its work, so the process is what is ended where one takes too long or too much
memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa

__all__ = ["DisallowedExpression", "Evaluator", "Grammar", "HEAD", "main", "open_instance", "serve", "untouchable"]

HEAD = struct.Struct(">IQ")
"""Lengths of a frame's two parts: JSON, and an Arrow stream, which may be empty."""

MAX_TEXT = 20_000
_MAX_REMEMBERED = 16

_SETTINGS = (
    "SET memory_limit = '400MB'",
    "SET GLOBAL TimeZone = 'UTC'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET temp_directory = ''",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLASSES = _words("BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR TYPE")
_OPERATORS = _words(
    "ARRAY_CONSTRUCTOR ARRAY_EXTRACT ARRAY_SLICE ARROW COMPARE_IN COMPARE_NOT_IN OPERATOR_COALESCE "
    "OPERATOR_IS_NOT_NULL OPERATOR_IS_NULL OPERATOR_NOT OPERATOR_NULLIF OPERATOR_TRY STRUCT_EXTRACT"
)
# The harmless ones among the functions whose answers change from call to call, or that ask about the session.
_CHANGING = _words(
    "current_date error gen_random_uuid get_current_time get_current_timestamp now random today transaction_timestamp "
    "uuid uuidv4 uuidv7"
)
_MACROS = _words(
    "ago array_append array_pop_back array_pop_front array_prepend array_push_back array_push_front array_reverse "
    "array_to_string date_add days_in_month fdiv fmod if json list_any_value list_append list_avg list_bit_and "
    "list_bit_or list_bit_xor list_bool_and list_bool_or list_count list_first list_histogram list_last list_max "
    "list_median list_min list_mode list_prepend list_product list_reverse list_stddev_pop list_stddev_samp "
    "list_string_agg list_sum list_var_pop list_var_samp map_contains_entry map_contains_value md5_number_lower "
    "md5_number_upper nullif split_part"
)
_NO_BUSINESS = _words(
    "combine finalize index_key invoke json_deserialize_sql json_serialize_plan json_serialize_sql "
    "parse_duckdb_log_message to_aggregate_state version"
)
# What looks like a column and is a function without parentheses.
_KEYWORDS = _words("current_date current_time current_timestamp localtime localtimestamp")
_WITHIN_QUERY = "CONSISTENT_WITHIN_QUERY"
_PLACE = frozenset({"query_location", "query_location_length"})


class DisallowedExpression(Exception):
    """Why an expression is not computed."""


def open_instance() -> duckdb.DuckDBPyConnection:
    instance = duckdb.connect(":memory:", config={"async_threads": 1, "threads": 1})
    for setting in _SETTINGS:
        instance.execute(setting)
    return instance


@contextmanager
def untouchable(instance: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that can leave nothing behind: read-only, with temporary things of its own, and rolled back."""
    with instance.cursor() as cursor:
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        try:
            yield cursor
        finally:
            cursor.execute("ROLLBACK")


class Grammar:
    """DuckDB's own parser shows what an expression is made of; this says what of it may be computed."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self._db = db
        self._plain = self._select("1")[1]
        rows = self._db.execute("SELECT function_name, function_type, stability FROM duckdb_functions()").fetchall()
        self._scalars = {
            name.lower(): stability for name, function_type, stability in rows if function_type == "scalar"
        }
        self._checked: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def check(self, text: str) -> list[dict[str, Any]]:
        """The nodes of the expression, or DisallowedExpression. What was checked last need not be checked again."""
        if text not in self._checked:
            self._checked[text] = self._check(text)
        self._checked.move_to_end(text)
        if len(self._checked) > _MAX_REMEMBERED:
            self._checked.popitem(last=False)
        return self._checked[text]

    def _check(self, text: str) -> list[dict[str, Any]]:
        if len(text) > MAX_TEXT:
            raise DisallowedExpression(f"it has {len(text)} characters, and may have {MAX_TEXT}")
        if any(ord(char) < 32 and char not in "\t\n\r" for char in text):
            raise DisallowedExpression("it has control characters in it")
        # Alone and in parentheses: text that closes a parenthesis which it has not opened is only one of the two.
        (alone, rest), (wrapped, rest_wrapped) = self._select(f"{text}\n"), self._select(f"({text}\n)")
        if rest != self._plain or rest_wrapped != self._plain or len(alone) != 1 or alone != wrapped:
            raise DisallowedExpression("it must be one expression and nothing else")
        nodes = list(_nodes(alone))
        for node in nodes:
            self._check_node(node)
        return nodes

    def _select(self, text: str) -> tuple[Any, Any]:
        """The select list of a query, and all else that it consists of."""
        ((tree,),) = self._db.execute("SELECT CAST(json_serialize_sql(?) AS VARCHAR)", [f"SELECT {text}"]).fetchall()
        parsed = json.loads(tree)
        if parsed["error"]:
            raise DisallowedExpression(str(parsed.get("error_message", "it cannot be parsed")).splitlines()[0])
        (statement, *others) = parsed["statements"]
        node = statement["node"]
        selected = node.pop("select_list", None)
        return _placeless(selected), _placeless([parsed, others])

    def _check_node(self, node: dict[str, Any]) -> None:
        node_class = node["class"]
        if node_class not in _CLASSES or (node_class == "OPERATOR" and node["type"] not in _OPERATORS):
            raise DisallowedExpression(f"{str(node['type']).replace('_', ' ').lower()} is not allowed in it")
        if node_class == "FUNCTION":
            self._check_function(node)

    def _check_function(self, node: dict[str, Any]) -> None:
        name = str(node["function_name"]).lower()
        path = [str(part).lower() for part in node["qualified_name"]["path"]]
        modified = node["distinct"] or node["filter"] or node["order_bys"]["orders"] or node["export_state"]
        if path[:-1] not in ([], ["main"], ["system", "main"]) or path[-1] != name or modified:
            raise DisallowedExpression(f"the call of {'.'.join(path)} is not allowed in it")
        known = name in _MACROS or (name in self._scalars and name not in _NO_BUSINESS and not name.startswith("__"))
        if not known or (self._scalars.get(name, "CONSISTENT") != "CONSISTENT" and name not in _CHANGING):
            raise DisallowedExpression(f"the function {name} is not allowed in it")

    def stabilities(self, text: str) -> list[str]:
        nodes = self.check(text)
        names = [node["function_name"].lower() for node in nodes if node["class"] == "FUNCTION"]
        stabilities = {self._scalars.get(name) or "CONSISTENT" for name in names if name not in _KEYWORDS}
        # There are no columns here: what looks like one is current_date or its kin, or belongs to a lambda.
        timed = "ago" in names or any(name.startswith("current_local") for name in names)
        if timed or any(node["class"] == "COLUMN_REF" for node in nodes):
            stabilities.add(_WITHIN_QUERY)
        return sorted(stabilities)

    def require_steady(self, text: str) -> None:
        """Refuse an expression that need not have the same value each time for the same row."""
        for node in self.check(text):
            name = str(node["function_name"] if node["class"] == "FUNCTION" else "").lower()
            if name in _CHANGING or name == "ago" or name.startswith("current_"):
                raise DisallowedExpression(f"the function {name} does not always give the same")
            if node["class"] == "COLUMN_REF" and (column := str(node["column_names"][0]).lower()) in _KEYWORDS:
                raise DisallowedExpression(f"{column} does not always give the same")

    def require_no_columns(self, text: str) -> None:
        nodes = self.check(text)
        parameters = {
            part["column_names"][-1].lower()
            for node in nodes
            if node["class"] == "LAMBDA"
            for part in _nodes([node])
            if part["class"] == "COLUMN_REF"
        }
        for node in nodes:
            if node["class"] == "COLUMN_REF":
                name = node["column_names"][0].lower()
                if name not in _KEYWORDS | parameters:
                    raise DisallowedExpression(f"there is no column {name} for it")


def _nodes(parsed: Any) -> Iterator[dict[str, Any]]:
    waiting = [parsed]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if "class" in part:
                yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _placeless(parsed: Any) -> Any:
    """A tree without the places of its parts in the text."""
    waiting = [parsed]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for key in _PLACE & part.keys():
                del part[key]
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return parsed


class Evaluator:
    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self._db = db
        self._grammar = Grammar(self._db)

    def answer(self, request: dict[str, Any], rows: pa.Table | None) -> tuple[dict[str, Any], pa.Table | None]:
        texts = [str(text) for text in request["expressions"]]
        try:
            for text in texts:
                self._grammar.check(text)
            match request["what"]:
                case "stabilities":
                    return {"stabilities": self._grammar.stabilities(texts[0])}, None
                case "values":
                    self._grammar.require_no_columns(texts[0])
                    return {}, self._values(texts[0], int(request["rows"]))
                case _:
                    return {"failing": self._failing(texts, rows)}, None
        except DisallowedExpression as exc:
            return {"refused": str(exc)}, None
        except (duckdb.OutOfMemoryException, MemoryError):
            return {"exhausted": True}, None
        except (duckdb.Error, pa.ArrowException, RecursionError) as exc:
            if isinstance(exc, duckdb.InternalException | duckdb.FatalException):
                sys.exit(1)  # the instance is ruined: the next expression finds a new process
            return {"refused": str(exc).splitlines()[0] if str(exc) else type(exc).__name__}, None

    def _values(self, text: str, rows: int) -> pa.Table:
        query = f'SELECT ({text}\n) AS value FROM range({rows}) AS "no rows"("no column")'
        with untouchable(self._db) as db:
            return db.sql(query).to_arrow_table()

    def _failing(self, texts: list[str], rows: pa.Table | None) -> list[bool]:
        # As in SQL, a condition that is NULL counts as kept.
        conditions = ", ".join(f"coalesce(bool_and(({text}\n)::BOOLEAN), true)" for text in texts)
        with untouchable(self._db) as db:
            (kept,) = db.from_arrow(rows).aggregate(conditions).fetchall()
        return [not one for one in kept]


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    evaluator = Evaluator(open_instance())
    _send(answers, {}, None)  # ready
    while head := requests.read(HEAD.size):
        header, payload = HEAD.unpack(head)
        request = json.loads(requests.read(header))
        data = requests.read(payload)
        signal.setitimer(signal.ITIMER_REAL, float(request["seconds"]))  # also where nobody is left to end this
        answer, values = evaluator.answer(request, pa.ipc.open_stream(data).read_all() if data else None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answers, answer, values)


def _send(answers: BinaryIO, answer: dict[str, Any], values: pa.Table | None) -> None:
    header = json.dumps(answer).encode()
    sink = pa.BufferOutputStream()
    if values is not None:
        with pa.ipc.new_stream(sink, values.schema) as writer:
            writer.write_table(values)
    data = sink.getvalue()
    answers.write(HEAD.pack(len(header), data.size) + header)
    answers.write(data)
    answers.flush()


def main(memory: int) -> None:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to the whole group from a terminal; the server ends this
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.nice(5)
    for limit, value in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    serve(requests, answers)


if __name__ == "__main__":
    main(int(sys.argv[1]))
