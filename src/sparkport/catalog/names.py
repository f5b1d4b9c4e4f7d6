"""What schemas, tables, columns and fields can be called, and how long what is said about them can be.

Every definition that changes a catalog goes through here, whichever dialect it came in and whichever engine makes it.
Names end up in SQL of two dialects, in log lines, in terminals and in the columns of other programs' databases.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

import pyarrow as pa

from sparkport.errors import InvalidArgument

__all__ = [
    "COMMENT_MARK",
    "MAX_COMMENT_BYTES",
    "MAX_NAME_BYTES",
    "MAX_PROPERTY_BYTES",
    "MAX_TAGS",
    "require_comment",
    "require_field",
    "require_field_names",
    "require_name",
    "require_schema_name",
    "require_schema_texts",
    "require_tags",
    "split_name",
]

COMMENT_MARK = b"comment"
"""Where a field's metadata has the comment of a column."""

MAX_NAME_BYTES = 255
"""What Iceberg's catalogs in SQL databases have room for."""

MAX_COMMENT_BYTES = 64 * 1024

MAX_PROPERTY_BYTES = 1_000
"""What those databases have room for in a property of a schema, which its comment and its tags are."""

MAX_TAGS = 100
_MAX_TAG_KEY_BYTES = 200

_PART = re.compile(r'"((?:[^"]|"")*)"|([^".]+)')

# Control characters and halves of surrogate pairs, and what ends a line or a paragraph.
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Marks that turn the direction of writing: with them a name looks like another one.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def require_name(name: str, what: str) -> None:
    """Raise InvalidArgument unless something can be called this; ``what`` is how the error calls the thing."""
    if not name or name.isspace():
        raise InvalidArgument(f"a {what} has no name")
    if name in (".", ".."):
        raise InvalidArgument(f"a {what} cannot be called '{name}', which means a folder in paths and addresses")
    _require_characters(name, what)


def require_schema_name(name: str) -> None:
    require_name(name, "schema")
    if "." in name:
        raise InvalidArgument(f"schema name '{name}' has a dot in it: schemas have one level")


def require_field(column: pa.Field, what: str) -> None:
    """A column, or a field of one, with all that is inside it."""
    require_name(column.name, what)
    require_comment((column.metadata or {}).get(COMMENT_MARK))
    require_field_names(column.type)


def require_field_names(data_type: pa.DataType) -> None:
    """Fields at any depth of a type. One of a struct may go without a name."""
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    named = pa.types.is_struct(data_type) or pa.types.is_union(data_type)
    for inner in (data_type.field(index) for index in range(data_type.num_fields)):
        if named:
            _require_characters(inner.name, "field")
        require_comment((inner.metadata or {}).get(COMMENT_MARK))
        require_field_names(inner.type)


def require_comment(comment: str | bytes | None, *, most: int = MAX_COMMENT_BYTES) -> None:
    if comment is None:
        return
    try:
        size = len(comment if isinstance(comment, bytes) else comment.encode())
        text = comment.decode() if isinstance(comment, bytes) else comment
    except UnicodeError as exc:
        raise InvalidArgument("a comment is not UTF-8 text") from exc
    if size > most:
        raise InvalidArgument(f"a comment of {size:,} bytes: at most {most:,} are taken")
    if "\0" in text:
        raise InvalidArgument("a comment has a NUL character")


def require_tags(tags: Mapping[str, str] | None) -> None:
    if len(tags or {}) > MAX_TAGS:
        raise InvalidArgument(f"{len(tags or {}):,} tags: at most {MAX_TAGS} are taken")
    for key, value in (tags or {}).items():
        _require_characters(key, "tag", most=_MAX_TAG_KEY_BYTES)
        require_comment(value, most=MAX_PROPERTY_BYTES)


def require_schema_texts(comment: str | None, tags: Mapping[str, str] | None) -> None:
    require_comment(comment, most=MAX_PROPERTY_BYTES)
    require_tags(tags)


def split_name(text: str) -> list[str]:
    """The parts of a name: dots separate unless they stand in double quotes."""
    parts: list[str] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        if match is None:
            raise InvalidArgument(f"name {text!r} has an empty part or a quote that is not closed")
        quoted, plain = match.groups()
        parts.append(plain if quoted is None else quoted.replace('""', '"'))
        at = match.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            raise InvalidArgument(f"name {text!r}: after a quoted part only a dot can follow")
        at += 1


def _require_characters(name: str, what: str, *, most: int = MAX_NAME_BYTES) -> None:
    if len(name) > most or len(name.encode("utf-8", "surrogatepass")) > most:
        raise InvalidArgument(
            f"a {what} name has more than {most} bytes: '{name[:20].encode('unicode_escape').decode()}…'"
        )
    for char in name:
        if unicodedata.category(char) in _REFUSED or char in _TURNING:
            shown = name.encode("unicode_escape").decode()
            raise InvalidArgument(f"{what} name '{shown}' has the character U+{ord(char):04X}, which no name can have")
