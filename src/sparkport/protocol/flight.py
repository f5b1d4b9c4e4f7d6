"""The messages of Arrow Flight as plain values, because pyarrow's own cannot be used with a gRPC server of our own.

pyarrow keeps Flight's protobuf classes inside its C++ library. So the protocol is described here once more, in the
default pool of protobuf, where gRPC reflection finds it. Equal values encode to equal bytes: clients cache catalogs by
their hash. FlightData, the message of the hot path, is framed by hand in ``wire/``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Self, cast

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError

from sparkport.errors import InvalidArgument
from sparkport.protocol.schemas import read_schema

__all__ = [
    "Action",
    "ActionType",
    "Criteria",
    "FILE_NAME",
    "FlightDescriptor",
    "FlightEndpoint",
    "FlightInfo",
    "Handshake",
    "METHODS",
    "PACKAGE",
    "PutResult",
    "REUSE_CONNECTION",
    "Result",
    "SERVICE_NAME",
    "SchemaResult",
    "Ticket",
]

FILE_NAME: Final = "Flight.proto"
PACKAGE: Final = "arrow.flight.protocol"
SERVICE_NAME: Final = f"{PACKAGE}.FlightService"

REUSE_CONNECTION: Final = "arrow-flight-reuse-connection://?"
"""The location that means the connection on which an endpoint was asked for."""

_TIMESTAMP: Final = timestamp_pb2.Timestamp.DESCRIPTOR
# Number, name, type of each field; "*" marks repeated ones, "?" optional ones.
_MESSAGES: Final[dict[str, tuple[tuple[int, str, str], ...]]] = {
    "HandshakeRequest": ((1, "protocol_version", "uint64"), (2, "payload", "bytes")),
    "HandshakeResponse": ((1, "protocol_version", "uint64"), (2, "payload", "bytes")),
    "Empty": (),
    "ActionType": ((1, "type", "string"), (2, "description", "string")),
    "Criteria": ((1, "expression", "bytes"),),
    "Action": ((1, "type", "string"), (2, "body", "bytes")),
    "Result": ((1, "body", "bytes"),),
    "SchemaResult": ((1, "schema", "bytes"),),
    "FlightDescriptor": ((1, "type", "FlightDescriptor.DescriptorType"), (2, "cmd", "bytes"), (3, "path", "string*")),
    "FlightInfo": (
        (1, "schema", "bytes"),
        (2, "flight_descriptor", "FlightDescriptor"),
        (3, "endpoint", "FlightEndpoint*"),
        (4, "total_records", "int64"),
        (5, "total_bytes", "int64"),
        (6, "ordered", "bool"),
        (7, "app_metadata", "bytes"),
    ),
    "PollInfo": (
        (1, "info", "FlightInfo"),
        (2, "flight_descriptor", "FlightDescriptor"),
        (3, "progress", "double?"),
        (4, "expiration_time", "Timestamp"),
    ),
    "FlightEndpoint": (
        (1, "ticket", "Ticket"),
        (2, "location", "Location*"),
        (3, "expiration_time", "Timestamp"),
        (4, "app_metadata", "bytes"),
    ),
    "Location": ((1, "uri", "string"),),
    "Ticket": ((1, "ticket", "bytes"),),
    "FlightData": (
        (1, "flight_descriptor", "FlightDescriptor"),
        (2, "data_header", "bytes"),
        (3, "app_metadata", "bytes"),
        (1000, "data_body", "bytes"),
    ),
    "PutResult": ((1, "app_metadata", "bytes"),),
}

METHODS: Final[dict[str, tuple[str, str]]] = {
    "Handshake": ("HandshakeRequest*", "HandshakeResponse*"),
    "ListFlights": ("Criteria", "FlightInfo*"),
    "GetFlightInfo": ("FlightDescriptor", "FlightInfo"),
    "PollFlightInfo": ("FlightDescriptor", "PollInfo"),
    "GetSchema": ("FlightDescriptor", "SchemaResult"),
    "DoGet": ("Ticket", "FlightData*"),
    "DoPut": ("FlightData*", "PutResult*"),
    "DoExchange": ("FlightData*", "FlightData*"),
    "DoAction": ("Action", "Result*"),
    "ListActions": ("Empty", "ActionType*"),
}
"""Method name to request and response message; a star marks a stream."""

_UNKNOWN, _PATH, _CMD = 0, 1, 2


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=FILE_NAME, package=PACKAGE, syntax="proto3")
    file.dependency.append(_TIMESTAMP.file.name)
    proto = descriptor_pb2.FieldDescriptorProto
    for message_name, specs in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, name, spec in specs:
            field_type = spec.rstrip("*?")
            field = message.field.add(name=name, number=number)
            field.label = proto.LABEL_REPEATED if spec.endswith("*") else proto.LABEL_OPTIONAL
            if field_type == "Timestamp":
                field.type, field.type_name = proto.TYPE_MESSAGE, f".{_TIMESTAMP.full_name}"
            elif "." in field_type:
                field.type, field.type_name = proto.TYPE_ENUM, f".{PACKAGE}.{field_type}"
            elif field_type in _MESSAGES:
                field.type, field.type_name = proto.TYPE_MESSAGE, f".{PACKAGE}.{field_type}"
            else:
                field.type = proto.Type.Value(f"TYPE_{field_type.upper()}")
            if spec.endswith("?"):  # proto3's "optional" is a oneof of one field
                message.oneof_decl.add(name=f"_{name}")
                field.oneof_index, field.proto3_optional = len(message.oneof_decl) - 1, True
        if message_name == "FlightDescriptor":
            enum = message.enum_type.add(name="DescriptorType")
            for number, name in ((_UNKNOWN, "UNKNOWN"), (_PATH, "PATH"), (_CMD, "CMD")):
                enum.value.add(name=name, number=number)
    service = file.service.add(name="FlightService")
    for name, (request, response) in METHODS.items():
        service.method.add(
            name=name,
            input_type=f".{PACKAGE}.{request.rstrip('*')}",
            output_type=f".{PACKAGE}.{response.rstrip('*')}",
            client_streaming=request.endswith("*"),
            server_streaming=response.endswith("*"),
        )
    return file


def _message_classes() -> dict[str, Any]:
    pool = descriptor_pool.Default()
    try:
        file = pool.FindFileByName(FILE_NAME)
    except KeyError:
        file = pool.AddSerializedFile(_file().SerializeToString()) or pool.FindFileByName(FILE_NAME)
    return {name: message_factory.GetMessageClass(file.message_types_by_name[name]) for name in _MESSAGES}


_CLASSES: Final = _message_classes()


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _parse(name: str, data: bytes) -> Any:
    message = _CLASSES[name]()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"not a Flight {name} message") from exc
    return message


def _read_schema(data: bytes) -> pa.Schema:
    try:
        return read_schema(data)
    except Exception as exc:  # whatever pyarrow raises over these bytes, the bytes are at fault
        raise InvalidArgument("not an Arrow schema in an IPC message") from exc


def _read_time(message: Any) -> datetime | None:
    if not message.HasField("expiration_time"):
        return None
    try:
        expiration: datetime = message.expiration_time.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as exc:
        raise InvalidArgument("expiration time out of range") from exc
    return expiration


@dataclass(frozen=True, slots=True)
class FlightDescriptor:
    """What a call is about: a path or a command, never both. Neither: of unknown type, and still a descriptor."""

    path: tuple[str, ...] | None = None
    command: bytes | None = None

    def _message(self) -> Any:
        if self.path is not None:
            return _CLASSES["FlightDescriptor"](type=_PATH, path=self.path)
        if self.command is not None:
            return _CLASSES["FlightDescriptor"](type=_CMD, cmd=self.command)
        return _CLASSES["FlightDescriptor"]()

    def encode(self) -> bytes:
        return _bytes(self._message())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls._from_message(_parse("FlightDescriptor", data))

    @classmethod
    def _from_message(cls, message: Any) -> Self:
        match message.type:
            case 1:
                return cls(path=tuple(message.path))
            case 2:
                return cls(command=message.cmd)
            case 0:
                return cls()
            case other:
                raise InvalidArgument(f"unknown type {other} of a flight descriptor")


@dataclass(frozen=True, slots=True)
class FlightEndpoint:
    """Where a part of a scan is read. DuckDB's client refuses one without a location, which Flight itself allows."""

    ticket: bytes
    locations: tuple[str, ...] = (REUSE_CONNECTION,)
    app_metadata: bytes = b""
    expiration: datetime | None = None

    def _message(self) -> Any:
        message = _CLASSES["FlightEndpoint"](
            ticket=_CLASSES["Ticket"](ticket=self.ticket),
            location=[_CLASSES["Location"](uri=uri) for uri in self.locations],
            app_metadata=self.app_metadata,
        )
        if self.expiration is not None:
            message.expiration_time.FromDatetime(self.expiration)
        return message

    def encode(self) -> bytes:
        return _bytes(self._message())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls._from_message(_parse("FlightEndpoint", data))

    @classmethod
    def _from_message(cls, message: Any) -> Self:
        locations = tuple(location.uri for location in message.location)
        return cls(message.ticket.ticket, locations, message.app_metadata, _read_time(message))


@dataclass(frozen=True, slots=True)
class FlightInfo:
    """Counts that nobody knows are -1."""

    schema: pa.Schema
    descriptor: FlightDescriptor
    endpoints: tuple[FlightEndpoint, ...] = ()
    total_records: int = -1
    total_bytes: int = -1
    ordered: bool = False
    app_metadata: bytes = b""

    def _message(self) -> Any:
        return _CLASSES["FlightInfo"](
            schema=self.schema.serialize().to_pybytes(),
            flight_descriptor=self.descriptor._message(),
            endpoint=[endpoint._message() for endpoint in self.endpoints],
            total_records=self.total_records,
            total_bytes=self.total_bytes,
            ordered=self.ordered,
            app_metadata=self.app_metadata,
        )

    def encode(self) -> bytes:
        return _bytes(self._message())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls._from_message(_parse("FlightInfo", data))

    @classmethod
    def _from_message(cls, message: Any) -> Self:
        return cls(
            schema=_read_schema(message.schema),
            descriptor=FlightDescriptor._from_message(message.flight_descriptor),
            endpoints=tuple(FlightEndpoint._from_message(endpoint) for endpoint in message.endpoint),
            total_records=message.total_records,
            total_bytes=message.total_bytes,
            ordered=message.ordered,
            app_metadata=message.app_metadata,
        )


class _Plain:
    """A message whose fields are the dataclass's own, by name."""

    __slots__ = ()
    _message_name: ClassVar[str]

    def encode(self) -> bytes:
        names = [field.name for field in fields(cast("Any", self))]
        return _bytes(_CLASSES[self._message_name](**{name: getattr(self, name) for name in names}))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        message = _parse(cls._message_name, data)
        return cls(**{field.name: getattr(message, field.name) for field in fields(cast("Any", cls))})


@dataclass(frozen=True, slots=True)
class Action(_Plain):
    _message_name = "Action"
    type: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class ActionType(_Plain):
    _message_name = "ActionType"
    type: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Criteria(_Plain):
    _message_name = "Criteria"
    expression: bytes = b""


@dataclass(frozen=True, slots=True)
class Handshake(_Plain):
    """Request and response of a handshake: both have the same form."""

    _message_name = "HandshakeRequest"
    payload: bytes = b""
    protocol_version: int = 0


@dataclass(frozen=True, slots=True)
class PutResult(_Plain):
    _message_name = "PutResult"
    app_metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class Result(_Plain):
    _message_name = "Result"
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Ticket(_Plain):
    _message_name = "Ticket"
    ticket: bytes = b""


@dataclass(frozen=True, slots=True)
class SchemaResult:
    schema: pa.Schema

    def encode(self) -> bytes:
        return _bytes(_CLASSES["SchemaResult"](schema=self.schema.serialize().to_pybytes()))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(_read_schema(_parse("SchemaResult", data).schema))
