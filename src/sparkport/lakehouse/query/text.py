"""The text of a query, before Spark gets it: one that could do more than query, or read more than tables, is refused.

What is known to be harmless is let through, and all else is not. This does not decide which tables a query reads: a
query runs where no other tables exist than those that its caller may read. It keeps out what needs no table: code,
programs, files, settings, and statements. Comments are taken out, so that nothing is hidden from one of the two who
read the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from sparkport.errors import InvalidArgument
from sparkport.lakehouse.query.arguments import Arguments
from sparkport.lakehouse.query.words import FORMATS, FUNCTIONS, REFUSED_WORDS, SYNTAX

__all__ = ["QueryText", "as_query", "names_in", "read_tokens"]

_MOST_CHARACTERS = 1_000_000
_MOST_WITH_ARGUMENTS = 16_000_000
_FIRST = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "("})
_NAME_OF_COLUMNS = frozenset({"AS", "WITH", "RECURSIVE"})
"""After these a name with brackets is that of something with columns, and not of a function."""
_NO_FILES = "files cannot be read as tables: import them first"


class _Kind(Enum):
    WORD = "word"
    QUOTED = "quoted name"
    TEXT = "text"
    SIGN = "sign"
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: _Kind
    text: str

    @property
    def word(self) -> str:
        """In capitals; empty for all but plain words."""
        return self.text.upper() if self.kind is _Kind.WORD else ""

    @property
    def name(self) -> str | None:
        if self.kind is _Kind.QUOTED:
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind is _Kind.WORD else None


@dataclass(frozen=True, slots=True)
class QueryText:
    """``sql`` is what Spark is asked. ``is_ordered``: its rows come in an order, which has to be kept."""

    sql: str
    is_ordered: bool


_PATTERN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<simple>--[^\r\n]*)
  | (?P<hint>/\*\+)
  | (?P<bracketed>/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)
  | (?P<open>/\*)
  | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
  | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<number>(?:[0-9]+[lLsSyY]|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[dDfF]|[bB][dD])?)(?!\.?\w))
  | (?P<word>[^\W0-9]\w*)
  | (?P<address>://)
  | (?P<sign>\*/|\|\||\|>|->|=>|<=>|::|<>|!=|<=|>=|==|\.(?![0-9])|[-+*/%&|^~<>=!,:;?()\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"\.?[0-9]")
_KINDS = {
    "simple": _Kind.COMMENT,
    "bracketed": _Kind.COMMENT,
    "raw": _Kind.TEXT,
    "text": _Kind.TEXT,
    "quoted": _Kind.QUOTED,
    "word": _Kind.WORD,
}


def names_in(text: str) -> frozenset[str]:
    """All that could be names in a query, in small letters; InvalidArgument says what is wrong with it."""
    return frozenset(name.casefold() for token in _tokens(_pieces(text)) if (name := token.name) is not None)


def read_tokens(text: str) -> list[str]:
    """The parts of a text that Spark's lexer has to see as well, whatever they mean."""
    return [token.text for token in _tokens(list(_read(text)))]


def as_query(text: str, arguments: Arguments | None = None) -> QueryText:
    """The text as a query of Spark's, arguments in their places; InvalidArgument says what is wrong with it."""
    read = _pieces(text)
    sql = "".join(_with(arguments or Arguments(), read)).strip()
    if len(sql) > _MOST_WITH_ARGUMENTS:
        raise InvalidArgument(
            f"the query has {len(sql):,} characters with its arguments, at most {_MOST_WITH_ARGUMENTS:,} are taken"
        )
    return QueryText(sql, _is_ordered(_tokens(read)))


def _tokens(read: list[tuple[_Token | None, str]]) -> list[_Token]:
    return [token for token, _ in read if token is not None]


def _pieces(text: str) -> list[tuple[_Token | None, str]]:
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgument(f"the query has {len(text):,} characters, at most {_MOST_CHARACTERS:,} are taken")
    read = list(_read(text.rstrip().removesuffix(";")))
    tokens = _tokens(read)
    if not tokens:
        raise InvalidArgument("the query is empty")
    if (tokens[0].word or tokens[0].text) not in _FIRST:
        raise InvalidArgument(f"only queries can be run here, and {tokens[0].text[:40]} begins none")
    _require_balance(tokens)
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        _require_harmless(before, token, after)
    for first, dot, second in zip(tokens, tokens[1:], tokens[2:], strict=False):
        _require_no_path(first, dot, second)
    return read


def _with(arguments: Arguments, read: list[tuple[_Token | None, str]]) -> Iterator[str]:
    """All pieces of the text, literals in the places of markers."""
    positional = iter(arguments.positional)
    found = at = 0
    while at < len(read):
        token, piece = read[at]
        at += 1
        if token is None or token.kind is not _Kind.SIGN or piece not in ("?", ":"):
            yield piece
        elif piece == "?":
            found += 1
            yield next(positional, piece)
        else:
            name = _marked(read, at)
            literal = None if name is None else arguments.named.get(name.casefold())
            yield piece if literal is None else literal
            at += literal is not None
    if found != len(arguments.positional) and (arguments.positional or not arguments.named):
        raise InvalidArgument(f"the query has {found} markers '?', and {len(arguments.positional)} arguments are given")


def _marked(read: list[tuple[_Token | None, str]], at: int) -> str | None:
    """The name of the marker whose colon is before ``at``; None for the colon of a path in a variant."""
    before = read[at - 2][0] if at > 1 else None
    is_path = before is not None and (before.kind is not _Kind.SIGN or before.text in (")", "]", ":"))
    token = read[at][0] if at < len(read) else None
    return token.text if not is_path and token is not None and token.kind is _Kind.WORD else None


def _read(text: str) -> Iterator[tuple[_Token | None, str]]:
    """Each token with what stands for it in the query: nothing but a space for a comment."""
    at, in_hint = 0, False
    while at < len(text):
        match = _PATTERN.match(text, at)
        if match is None and _NUMBER.match(text, at):
            # Where the number ends and the word begins is for Spark to say, and it says otherwise than one thinks.
            raise InvalidArgument(
                f"a number touches a word at {text[at : at + 20]!r}: put a space between them, or write a "
                "name that begins with a digit with backticks"
            )
        if match is None or (match.lastgroup == "word" and not _is_word(match.group())):
            raise InvalidArgument(f"the query cannot be read at {text[at : at + 20]!r}")
        piece, kind = match.group(), match.lastgroup or ""
        at = match.end()
        if kind == "address":  # in the middle of what Spark reads as one name without quotes
            raise InvalidArgument(_NO_FILES)
        if kind == "open":
            raise InvalidArgument("a comment does not end, or another one stands in it")
        if kind == "space":
            yield None, piece
        elif _KINDS.get(kind) is _Kind.COMMENT:
            if piece.endswith("\\"):
                raise InvalidArgument("a comment must not end in a backslash")
            yield None, "\n" if kind == "simple" else " "
        else:
            if kind == "hint":
                if in_hint:
                    raise InvalidArgument("a hint must not stand in another")
                in_hint = True
            elif piece == "*/":
                if not in_hint:
                    raise InvalidArgument("a comment ends that has not begun")
                in_hint = False
            yield _Token(_KINDS.get(kind, _Kind.SIGN), piece), piece
    if in_hint:
        raise InvalidArgument("a hint does not end")


def _is_word(text: str) -> bool:
    """Whether it is one for Spark. A few letters are of ASCII in capitals: Spark takes them for those."""
    return text.isascii() or all(char.isalpha() and not char.upper().isascii() for char in text if not char.isascii())


def _require_balance(tokens: list[_Token]) -> None:
    """The query is put between brackets: it must not close them."""
    depth = 0
    for token in tokens:
        depth += (token.text == "(") - (token.text == ")") if token.kind is _Kind.SIGN else 0
        if depth < 0:
            raise InvalidArgument("the query closes a bracket that it has not opened")
    if depth:
        raise InvalidArgument("the query opens a bracket that it does not close")


def _require_harmless(before: _Token | None, token: _Token, after: _Token | None) -> None:
    if token.text == ";" and token.kind is _Kind.SIGN:
        raise InvalidArgument("only one query can be run at a time")
    if token.word in REFUSED_WORDS:
        raise InvalidArgument(
            f"{token.word} is not for queries: {REFUSED_WORDS[token.word]}; a column of that name is written with "
            "backticks"
        )
    follows = "" if after is None or after.kind is not _Kind.SIGN else after.text
    if token.word == "USING" and follows != "(":
        raise InvalidArgument("USING takes columns in brackets here: programs are not run")
    if token.word == "WITH" and follows == "(":
        raise InvalidArgument("options of a table are not taken")
    if token.name is not None and token.name.casefold() == "global_temp":
        raise InvalidArgument("views of other sessions cannot be read")
    if token.name is not None and token.name.casefold() == "_file":
        raise InvalidArgument("_file tells where files are, and is not for queries")
    if token.name is not None and follows == "(":
        _require_function(before, token)


def _require_function(before: _Token | None, token: _Token) -> None:
    if token.word in SYNTAX:
        return
    if before is not None and (before.word in _NAME_OF_COLUMNS or (before.kind is _Kind.SIGN and before.text == ")")):
        return
    name = str(token.name)
    if before is not None and before.kind is _Kind.SIGN and before.text == ".":
        raise InvalidArgument(f"function '{name}' is written with a schema: only Spark's own are taken, without one")
    if name.casefold() not in FUNCTIONS:
        raise InvalidArgument(
            f"function '{name}' is not among those that can be used here; a name with columns is written AS {name} (…)"
        )


def _require_no_path(first: _Token, dot: _Token, second: _Token) -> None:
    if dot.kind is _Kind.SIGN and dot.text == "." and second.kind is _Kind.QUOTED:
        name = str(first.name or "").casefold()
        if name in FORMATS and re.search(r"[/:\\]", second.text):
            raise InvalidArgument(_NO_FILES)


def _is_ordered(tokens: list[_Token]) -> bool:
    """Whether there is an ORDER BY or a SORT BY that is not inside of brackets."""
    depth = 0
    for token in tokens:
        if token.kind is _Kind.SIGN:
            depth += (token.text == "(") - (token.text == ")")
        elif depth == 0 and token.word in ("ORDER", "SORT"):
            return True
    return tokens[0].text == "("
