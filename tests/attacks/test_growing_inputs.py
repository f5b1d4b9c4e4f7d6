"""What a stranger or a caller sends is read in a time that grows with its length, not with the square of it."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Callable

import msgpack
import pyarrow as pa
import pytest
from cheroot.server import HeaderReader
from prometheus_client.exposition import choose_encoder
from tests.support.growth import FACTOR, growth

from sparkport.auth import JwtAuthenticator, Secret
from sparkport.auth.hosts import is_loopback_host
from sparkport.auth.model import Peer
from sparkport.catalog.context import CallContext
from sparkport.catalog.names import split_name
from sparkport.catalog.scan import AsOf, AsOfUnit
from sparkport.console.requests import Request, require_same_origin
from sparkport.errors import InvalidArgument, without_places
from sparkport.handlers.ddl import ALTERATIONS
from sparkport.handlers.directory import Directory
from sparkport.handlers.reads import Reads
from sparkport.handlers.table_definitions import table_definition
from sparkport.http.callers import bearer_token
from sparkport.memory import MemoryCatalog
from sparkport.protocol.filters import parse_filters
from sparkport.protocol.maps import MapReader, pack, unpack
from sparkport.protocol.targets import Kind, Target, Ticket, as_of

pytestmark = pytest.mark.tier("fast")

LIMIT = 3 * FACTOR
"""Between a linear function, which takes 16 times as long, and a quadratic one, which takes 256 times."""


def never_quadratic(work: Callable[[str], object], make: Callable[[int], str], size: int = 2_000) -> None:
    assert growth(work, make, size) < LIMIT


def test_the_measure_tells_a_square_from_a_line() -> None:
    def square(text: str) -> None:
        for _ in text:
            text.count("b")

    assert growth(square, lambda n: "a" * n, 2_000) > LIMIT
    assert growth(lambda text: [ord(letter) for letter in text], lambda n: "a" * n, 20_000) < LIMIT


# What comes without a token


@pytest.mark.parametrize(
    "make",
    [
        lambda n: 'a="' + '\\"' * n + '"',
        lambda n: 'a="' + '\\"' * n,
        lambda n: 'a="' + "\\101" * n + '"',
        lambda n: "a=" * n,
        lambda n: ";" * n,
        lambda n: " " * n + "=",
        lambda n: "a=b;" * n,
        lambda n: '"' * n,
    ],
)
def test_a_cookie(make: Callable[[int], str]) -> None:
    never_quadratic(lambda text: Request.read({"HTTP_COOKIE": text}), make)


def test_cookies_are_read_as_they_stand_and_long_ones_not_at_all() -> None:
    def cookies(text: str) -> dict[str, str]:
        return dict(Request.read({"HTTP_COOKIE": text}).cookies)

    assert cookies("a=1; b=2;c = 3 ;; d; e=x=y") == {"a": "1", "b": "2", "c": "3", "e": "x=y"}
    assert cookies("a=" + "x" * 20_000) == {}
    assert len(cookies(";".join(f"n{i}=1" for i in range(2_000)))) == 200


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "a=" + "%41" * n,
        lambda n: "a=" + "%41+b%e2%82%ac" * n,
        lambda n: "a=" + "%" * n,
        lambda n: "&" * n,
        lambda n: ";" * n,
        lambda n: "=" * n,
    ],
)
def test_a_query_or_a_form(make: Callable[[int], str]) -> None:
    never_quadratic(lambda text: Request.read({"QUERY_STRING": text}), make)

    def form(text: str) -> Request:
        return Request.read(
            {
                "REQUEST_METHOD": "POST",
                "CONTENT_TYPE": "application/x-www-form-urlencoded",
                "CONTENT_LENGTH": str(len(text)),
                "wsgi.input": io.BytesIO(text.encode()),
            }
        )

    never_quadratic(form, make, 500)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "[" * n + ":1",
        lambda n: "1:" * n,
        lambda n: "1" * n + ":" + "1" * n,
        lambda n: "1." * n,
        lambda n: "[" + ":" * n + "]:1",
        lambda n: "fe80::1%" + "1" * n,
    ],
)
def test_a_host_and_an_origin(make: Callable[[int], str]) -> None:
    never_quadratic(is_loopback_host, make)
    never_quadratic(
        lambda text: require_same_origin(Request.read({"HTTP_ORIGIN": f"http://{text}", "HTTP_HOST": text})), make
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "a," * n,
        lambda n: "application/openmetrics-text;" + "a;" * n,
        lambda n: "application/openmetrics-text; version=" + "1." * n,
        lambda n: "application/openmetrics-text;version=1.0.0;escaping=" + "a" * n,
    ],
)
def test_what_a_scraper_accepts(make: Callable[[int], str]) -> None:
    never_quadratic(choose_encoder, make)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b"Accept: a\r\n" * n,
        lambda n: b"Accept: a\r\n" + b" a\r\n" * n,
        lambda n: b"".join(b"H%d: a\r\n" % number for number in range(n)),
        lambda n: b"a-" * n + b": a\r\n",
    ],
)
def test_the_headers_of_a_request(make: Callable[[int], bytes]) -> None:
    def read(data: bytes) -> object:
        return HeaderReader()(io.BytesIO(data + b"\r\n"))

    assert growth(read, make, 200) < LIMIT


def _token(header: bytes) -> str:
    return base64.urlsafe_b64encode(header).rstrip(b"=").decode() + ".e30.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "make",
    [
        lambda n: _token(b'{"alg":"HS256","kid":' + b"[" * n + b"]" * n + b"}"),
        lambda n: _token(b'{"alg":"HS256","kid":' + b"1" * n + b"}"),
        lambda n: _token(b'{"alg":"HS256","kid":"' + b"a" * n + b'"}'),
        lambda n: "." * n,
        lambda n: "=" * n,
        lambda n: " " * n + "a",
    ],
)
def test_a_bearer_token(make: Callable[[int], str]) -> None:
    authenticator = JwtAuthenticator.from_key(Secret("k" * 32))

    def read(text: str) -> object:
        return authenticator.authenticate(
            bearer_token({"HTTP_AUTHORIZATION": f"Bearer {text}"}), Peer("ipv4:1.2.3.4:5")
        )

    never_quadratic(read, make)


# What a caller sends


def _colliding_times(number: int) -> bytes:
    """A msgpack map whose keys are times that all have one hash: that of a tuple of two numbers can be turned round."""
    first, second, fifth, whole = 11400714785074694791, 14029467366897019727, 2870177450012600261, 1 << 64
    pairs: list[bytes] = []
    nanoseconds = 0
    while len(pairs) < number:
        nanoseconds += 1
        turned = (12345 - nanoseconds * second) * pow(first, -1, whole) % whole
        turned = (turned >> 31 | turned << 33) % whole
        seconds = (turned - fifth) * pow(second, -1, whole) % whole
        seconds -= whole if seconds >> 63 else 0
        if abs(seconds) < (1 << 61) - 2 and seconds != -1:
            pairs.append(b"\xc7\x0c\xff" + struct.pack(">Iq", nanoseconds, seconds) + b"\x00")
    return b"\xdf" + struct.pack(">I", number) + b"".join(pairs)


def test_the_times_have_one_hash() -> None:
    found = msgpack.unpackb(_colliding_times(50), strict_map_key=False)
    assert len(found) == 50
    assert len({hash(key) for key in found}) == 1


def test_a_msgpack_map_of_keys_with_one_hash() -> None:
    assert growth(unpack, _colliding_times, 500) < LIMIT


@pytest.mark.parametrize("key", [1, 1.5, True, None, msgpack.Timestamp(1, 2), msgpack.ExtType(1, b"a"), (1,)])
def test_keys_of_msgpack_maps_are_texts(key: object) -> None:
    for value in ({key: 1}, {"a": {key: 1}}, [{key: 1}]):
        with pytest.raises(InvalidArgument, match="not valid msgpack"):
            unpack(pack(value))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b'{"a":' + b"[" * n + b"]" * n + b"}",
        lambda n: b'{"a":' + b"1" * n + b"}",
        lambda n: b'{"a":' + b"1" * n + b".5e10}",
        lambda n: b'{"a":"' + b"\\u0041" * n + b'"}',
        lambda n: b'{"a":"' + b"\\" * n,
        lambda n: b"{" + b"\n" * n + b"x",
        lambda n: b"\x91" * n + b"\x90",
        lambda n: b"\x81\xa1a" * n + b"\x90",
    ],
)
def test_a_body(make: Callable[[int], bytes]) -> None:
    assert growth(MapReader.from_body, make, 2_000) < LIMIT
    assert growth(parse_filters, make, 2_000) < LIMIT


@pytest.mark.parametrize(
    "make",
    [
        lambda n: '{"filters":[' + "nan," * n,
        lambda n: '{"filters":"' + '"\\' * n,
        lambda n: '{"filters":[], "a": ' + "infinit" * n,
        lambda n: _constant("BLOB", '"' + "\\\\x41" * n + '\\\\"'),
        lambda n: _constant("VARCHAR", '"' + "a" * n + '"'),
        lambda n: _constant("HUGEINT", "1" * n),
    ],
)
def test_a_filter(make: Callable[[int], str]) -> None:
    never_quadratic(parse_filters, make)


def _constant(kind: str, value: str) -> str:
    inner = f'{{"type": {{"id": "{kind}"}}, "is_null": false, "value": {value}}}'
    return f'{{"filters": [{{"expression_class": "BOUND_CONSTANT", "type": "X", "value": {inner}}}]}}'


@pytest.mark.parametrize("make", [lambda n: '"' + '""' * n, lambda n: "a." * n, lambda n: '"a".' * n + "b"])
def test_a_name(make: Callable[[int], str]) -> None:
    never_quadratic(split_name, make)


def _definition(**lists: Callable[[int], object]) -> Callable[[int], MapReader]:
    def make(columns: int) -> MapReader:
        schema = pa.schema([(f"c{number}", pa.int64()) for number in range(columns)])
        values = {key: value(columns) for key, value in lists.items()}
        return MapReader({"table_name": "t", "arrow_schema": schema.serialize().to_pybytes(), **values})

    return make


@pytest.mark.parametrize(
    "make",
    [
        _definition(not_null_constraints=lambda n: list(range(n))),
        _definition(unique_constraints=lambda n: [n - 1] * n),
        _definition(unique_constraints=lambda n: list(range(n))),
        _definition(unique_columns=lambda n: [f"c{n - 1}"] * n),
        _definition(unique_columns=lambda n: [f"C{number}" for number in range(n)]),
        _definition(primary_key_columns=lambda n: [f"c{n - 1}"] * n),
        _definition(multi_key_primary_keys=lambda n: [f"c{number}" for number in range(n)]),
        _definition(extra_constraints=lambda n: [f"UNIQUE({', '.join(f'c{number}' for number in range(n))})"]),
        _definition(extra_constraints=lambda n: ["UNIQUE(" + '"a""' * n]),
        _definition(extra_constraints=lambda n: ["UNIQUE(a" + " , b" * n + " " * n]),
    ],
)
def test_the_columns_of_a_new_table(make: Callable[[int], MapReader]) -> None:
    assert growth(table_definition, make, 150) < LIMIT


@pytest.mark.parametrize(
    "make", [lambda n: "CAST(a AS " + ") AS " * n, lambda n: 'CAST("' + '""' * n, lambda n: "CAST(a AS " + "a" * n]
)
def test_the_expression_of_a_changed_type(make: Callable[[int], str]) -> None:
    column = pa.schema([("a", pa.int64())]).serialize().to_pybytes()

    def change(text: str) -> object:
        body = MapReader({"name": "t", "column_schema": column, "expression": text})
        return ALTERATIONS["change_column_type"](CallContext(), body)

    never_quadratic(change, make)


def test_the_columns_of_a_ticket() -> None:
    def asking(number: int, *names: str) -> tuple[Reads, bytes]:
        """For columns of a table of so many."""
        catalog = MemoryCatalog("lake")
        catalog.create_table("t", pa.schema([(f"c{place}", pa.int64()) for place in range(number)]))
        ticket = Ticket(target=Target("lake", "public", Kind.TABLE, "t"), columns=names)
        return Reads(Directory([catalog])), ticket.encode()

    def scan(asked: tuple[Reads, bytes]) -> object:
        reads, ticket = asked
        return list(reads.do_get(CallContext(), ticket))

    assert growth(scan, lambda n: asking(n, *[f"c{n - 1}"] * n), 500) < LIMIT
    with pytest.raises(InvalidArgument, match="'b'"):
        scan(asking(1, "c0", "b"))


@pytest.mark.parametrize("unit", list(AsOfUnit))
@pytest.mark.parametrize("make", [lambda n: "1" * n, lambda n: "2020-" * n, lambda n: "1." + "0" * n])
def test_a_version_or_a_moment(unit: AsOfUnit, make: Callable[[int], str]) -> None:
    catalog = MemoryCatalog("lake")
    table = catalog.create_table("t", pa.schema([("a", pa.int64())]))

    def look(text: str) -> object:
        at = as_of(unit.value, text)
        assert isinstance(at, AsOf)
        return table.schema_at(CallContext(), at)

    never_quadratic(look, make)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "'/" + "/" * n,
        lambda n: "\n" * n,
        lambda n: "a:/" * n,
        lambda n: "/a" * n,
        lambda n: "a+" * n,
        lambda n: "'/a" * n,
        lambda n: " \n" * n + "at",
    ],
)
def test_the_message_of_an_error(make: Callable[[int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkport.errors.MESSAGE_LENGTH", 10**9)
    never_quadratic(without_places, make)
