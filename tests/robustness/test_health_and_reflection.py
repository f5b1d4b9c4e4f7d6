"""What tools ask of any gRPC server: is it well, what does it speak, and no to the rest."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.robustness.rig import TIMEOUT, Raw, catalog

from sparkport.app import Limits, Server
from sparkport.protocol.flight import METHODS, SERVICE_NAME
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("name", ["", SERVICE_NAME])
def test_a_running_server_is_healthy(raw: Raw, name: str) -> None:
    stub = health_pb2_grpc.HealthStub(raw.channel)

    assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT).status == SERVING


def test_the_health_of_something_else_is_not_found(raw: Raw) -> None:
    stub = health_pb2_grpc.HealthStub(raw.channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="else"), timeout=TIMEOUT)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_who_watches_is_told_that_the_server_stops() -> None:
    with serving(catalog()) as server, Raw(server.port) as raw:
        watch: Any = health_pb2_grpc.HealthStub(raw.channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        seen = [next(watch).status]
        stopping = threading.Thread(target=server.stop, args=(TIMEOUT,))
        stopping.start()
        seen.append(next(watch).status)
        watch.cancel()
        stopping.join(TIMEOUT)

    assert seen == [SERVING, NOT_SERVING]


def test_reflection_describes_the_whole_service() -> None:
    with serving(catalog(), limits=Limits(reflection=True)) as server, Raw(server.port) as raw:
        database = ProtoReflectionDescriptorDatabase(raw.channel)
        service = DescriptorPool(database).FindServiceByName(SERVICE_NAME)
        services = database.get_services()

    assert SERVICE_NAME in services
    assert {method.name for method in service.methods} == set(METHODS)
    assert service.methods_by_name["DoGet"].input_type.fields_by_name["ticket"].number == 1
    assert service.methods_by_name["DoPut"].input_type.fields_by_name["data_body"].number == 1000


@pytest.mark.parametrize(
    "method", [f"/{SERVICE_NAME}/Nothing", "/some.Service/DoGet", f"/{SERVICE_NAME}/DoGet/more", "/DoGet"]
)
def test_unknown_methods_are_unimplemented(raw: Raw, method: str) -> None:
    assert raw.call(method, b"").code is grpc.StatusCode.UNIMPLEMENTED


def test_polling_is_unimplemented_and_says_what_to_use(raw: Raw) -> None:
    answer = raw.call("PollFlightInfo", b"")

    assert answer.code is grpc.StatusCode.UNIMPLEMENTED
    assert "GetFlightInfo" in answer.details


def test_a_handshake_is_echoed_for_as_long_as_the_client_goes_on(server: Server, raw: Raw) -> None:
    answer = raw.call("Handshake", b"\x12\x01a", b"\x12\x01b", b"")

    assert (answer.code, answer.messages) == (grpc.StatusCode.OK, [b"\x12\x01a", b"\x12\x01b", b""])
