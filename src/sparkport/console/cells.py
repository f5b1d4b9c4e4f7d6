"""Values as short, harmless texts. Rows come from anybody: a cell may be huge, binary, nested, or meant to mislead."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sparkport.catalog.plain_values import value_text

__all__ = ["Cell", "cells", "shown"]

_TEXT = 200
_NESTED_TEXT = 40
_ITEMS = 6
_DEPTH = 4
_BYTES = 12

_PICTURES = {"\n": "↵", "\r": "␍", "\t": "→", "\x7f": "␡"}


@dataclass(frozen=True, slots=True)
class Cell:
    """``kind`` is ``number``, ``text``, ``null`` or ``other``: how it is set."""

    text: str
    kind: str = "text"


def shown(text: object, most: int = _TEXT) -> str:
    """A text on one line, cut, with all that cannot be seen made visible: control characters, and marks that turn the
    direction of writing or take no room. It is not escaped here: templates escape everything."""
    whole = str(text)
    cut = "".join(map(_visible, whole[:most]))
    return f"{cut}…" if len(whole) > most else cut


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if character in _PICTURES:
        return _PICTURES[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) == "Zs":
        return " "
    return f"⟨U+{ord(character):04X}⟩"


def cells(column: pa.Array) -> list[Cell]:
    """The cells of a few rows of a column. No more of a value is looked at than is shown."""
    if isinstance(column, pa.ExtensionArray) and column.type != pa.uuid():
        column = column.storage
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if _is_number(kind):
        return [Cell(shown(text), "number") if text is not None else _NULL for text in _texts(column)]
    if _is_text(kind):
        cut = pc.utf8_slice_codeunits(column.cast(pa.large_string()), 0, _TEXT + 1)
        return [Cell(shown(text)) if text is not None else _NULL for text in cut.to_pylist()]
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        return [Cell(shown(text), "other") if text is not None else _NULL for text in _texts(column)]
    return [_NULL if not value.is_valid else Cell(shown(_nested(value, 0), 2 * _TEXT), "other") for value in column]


_NULL = Cell("NULL", "null")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _is_binary(kind: pa.DataType) -> bool:
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(binary or kind == pa.binary_view())


def _texts(column: pa.Array) -> list[str | None]:
    if pa.types.is_temporal(column.type):  # Arrow takes infinity for a date like others, or for none
        return [_plain(value) if value.is_valid else None for value in column]
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except (pa.ArrowException, ValueError):
        return [_plain(value) if value.is_valid else None for value in column]
    return texts


def _plain(value: pa.Scalar) -> str:
    try:
        return value_text(value)
    except (pa.ArrowException, ArithmeticError, ValueError):
        return f"({value.type})"


def _nested(value: pa.Scalar, depth: int) -> str:
    """A value within others, in few words."""
    if not value.is_valid:
        return "NULL"
    kind = value.type
    if _is_binary(kind):
        return _bytes(value)
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(value, depth)
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _list(value, depth)
    if pa.types.is_struct(kind):
        if depth >= _DEPTH:
            return "{…}"
        names = [kind.field(place).name for place in range(min(kind.num_fields, _ITEMS))]
        inner = [f"{name}: {_nested(value[place], depth + 1)}" for place, name in enumerate(names)]
        return "{" + ", ".join([*inner, *(["…"] if kind.num_fields > _ITEMS else [])]) + "}"
    if _is_text(kind):
        # The whole value is copied here, once; a cell of many megabytes is cut right after.
        return shown(value.as_py(), _NESTED_TEXT)
    return _plain(value)


def _list(value: pa.Scalar, depth: int) -> str:
    items = value.values
    is_map = pa.types.is_map(value.type)
    opening, closing = "{}" if is_map else "[]"
    if depth >= _DEPTH:
        return f"{opening}…{closing}"
    texts = []
    for item in items.slice(0, _ITEMS):
        if is_map:
            texts.append(f"{_nested(item['key'], depth + 1)}: {_nested(item['value'], depth + 1)}")
        else:
            texts.append(_nested(item, depth + 1))
    more = [f"… {len(items):,} in all"] if len(items) > _ITEMS else []
    return opening + ", ".join([*texts, *more]) + closing


def _bytes(value: pa.Scalar) -> str:
    data = value.as_buffer()
    text = data[:_BYTES].to_pybytes().hex() if data.size else ""
    return f"0x{text}… ({data.size:,} bytes)" if data.size > _BYTES else f"0x{text}"
