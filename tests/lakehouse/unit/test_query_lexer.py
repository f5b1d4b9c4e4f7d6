"""What our lexer takes for one word, Spark's takes for the same one: or else something is hidden from one of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.spark_lexer import spark_tokens

from sparkport.errors import InvalidArgument
from sparkport.lakehouse.query.text import read_tokens

pytestmark = [pytest.mark.tier("fast"), pytest.mark.timeout(600)]

CASES = 20_000
WORDS = """
    USING using MAP REDUCE TRANSFORM SELECT FROM reflect a b_1 _x e E d f l bd L Y S BD F D x X r R N 0 1 12 007 1e 1e5
    1E-5 1e+ .5 1. 1.5 1.5e3 0x1F 1L 1Y 1BD 1.5BD 2D 3F 1_0 1st . .. + - * / % & | ^ ~ ! = == <=> <> != < <= > >= >> <<
    >>> -> => :: : , ; ? ( ) [ ] { } @ # $ |> || ' " ` 'a' "b" `c` '' "" `` 'a''b' 'a\\'b' '\\\\' "a""b" `a``b` r' R"
    r'\\' X'00' -- /* */ /*+ /**/ /*/ /***/ $$ $a$ ${a} :// s3://b/c file:/x \\u0041 \\
"""
SPACES = [" ", " ", "  ", "\t", "\n", "\r", "\r\n", "\f", "\v", "\x00", "\x1c", "\x85", "\u00a0", "\u2003", "\u2028"]
SPACES += ["\u3000", "\ufeff", "\u200b", "'\n'", "-- a\n", "--\\\n", "-- a\\\r\n", "--a\r", "/* a */", "/* /* */ */"]
LETTERS = "\u00e9 \u00df \u017f \u0131 \u0130 \u212a"
LETTERS += " \u4e2d \u0663 \u00b2 \u00aa \u0301 \U0001f600 u\u017f\u0131ng \u2167 \u01c6 \ufb01"
PIECES = [*WORDS.split(), *SPACES, *LETTERS.split()]


def texts() -> list[str]:
    """Half of them begin as queries do, so that the lexer gets further."""
    draw = random.Random(20)
    made = ["".join(draw.choices(PIECES, k=draw.randint(1, 12))) for _ in range(CASES)]
    return [f"SELECT {text}" if draw.random() < 0.5 else text for text in made]


def atoms(tokens: list[str]) -> list[str]:
    """Signs one by one: which of them are one is for no name or text to depend on."""
    parts = []
    for token in tokens:
        sign = not any(char.isalnum() or char in "_'\"`" for char in token)
        parts += list(token) if sign else [token]
    return parts


def test_our_lexer_sees_the_words_that_sparks_sees(tmp_path: Path) -> None:
    cases = texts()
    taken = 0
    differing = []
    for text, theirs in zip(cases, spark_tokens(cases, tmp_path), strict=True):
        try:
            ours = read_tokens(text)
        except InvalidArgument:
            continue
        taken += 1
        if theirs is None or atoms(ours) != atoms(theirs):
            differing.append((text, ours, theirs))
    assert differing == []
    assert taken > CASES / 50
