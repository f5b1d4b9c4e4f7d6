"""The Connect server that we start runs any code as our user: nobody else on the machine gets a word in."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.command import spark_environment
from sparkport.lakehouse.spark.server import SparkServer

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

PASSWORD = "correct-horse-battery"
SECRETS = {
    "SPARKPORT_TOKEN": "our-own-token",
    "SPARKPORT_TOKENS": "alice=another-token",
    "PGPASSWORD": "a-database-password",
    "AWS_SECRET_ACCESS_KEY": "a-key-of-a-store",
    "GITHUB_TOKEN": "a-token-of-somebody",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    settings = LakehouseSettings(
        warehouse=str(tmp_path_factory.mktemp("spark")),
        spark="local[1]",
        driver_memory="1g",
        sessions=1,
        properties={"jdbc.password": PASSWORD},
    )
    server = SparkServer(settings)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        server.start()
        try:
            server.wait_ready(240)
            yield server
        finally:
            server.stop()


def process_id(server: SparkServer) -> int:
    found = server.process_id
    assert found is not None
    return found


def token_of(server: SparkServer) -> str:
    return server.url.partition("token=")[2]


def answer(url: str) -> Any:
    """What a plain client of Spark's own makes of an address."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(url).create()
    session.client.set_retry_policies([])
    try:
        return session.sql("SELECT 7").collect()[0][0]
    finally:
        session.client.close()


def test_a_client_without_the_token_is_refused_and_with_it_is_not(spark: SparkServer) -> None:
    plain, _, token = spark.url.partition("/;token=")
    assert len(token) >= 32
    assert answer(spark.url) == 7
    for url in (
        plain,
        plain.replace("localhost", "127.0.0.1"),
        f"{plain}/;token=wrong",
        f"{plain}/;token={token[:-1]}",
    ):
        with pytest.raises(Exception, match=r"UNAUTHENTICATED|[Aa]uthenticat|token|No active"):
            answer(url)


def test_no_secret_stands_on_the_command_line_or_in_the_environment_of_spark(spark: SparkServer) -> None:
    process = Path("/proc", str(process_id(spark)))
    command, environment = (process / "cmdline").read_text(), (process / "environ").read_text()
    assert "SparkConnectServer" in command
    for secret in (token_of(spark), PASSWORD, *SECRETS.values()):
        assert secret not in command
        assert secret not in environment
    assert not [name for name in environment.split("\0") if name.startswith("SPARKPORT_")]
    properties = command.split("--properties-file\0")[1].split("\0")[0]
    assert not Path(properties).exists()


def test_spark_listens_on_loopback_only_and_its_own_ports_ask_for_a_secret(spark: SparkServer) -> None:
    addresses = list(listening(process_id(spark)))
    assert addresses
    assert [address for address in addresses if not address.is_loopback] == []
    with spark.session(timeout=60) as session:
        assert session.conf.get("spark.authenticate") == "true"
        assert session.conf.get("spark.ui.enabled") == "false"


def listening(process: int) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    links = [os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir() if path.is_symlink()]
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                text = fields[1].partition(":")[0]
                words = [struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8)]
                address = ipaddress.ip_address(b"".join(words))
                mapped = getattr(address, "ipv4_mapped", None)
                yield mapped or address


def test_spark_gets_what_it_needs_of_the_environment_and_no_more() -> None:
    given = {
        "PATH": "/bin",
        "HOME": "/home/x",
        "JAVA_HOME": "/java",
        "LC_ALL": "C.UTF-8",
        "SPARK_LOCAL_DIRS": "/scratch",
        "https_proxy": "http://proxy",
        "HADOOP_CONF_DIR": "/etc/hadoop",
        "KUBECONFIG": "/kube",
        **SECRETS,
    }
    local = spark_environment(LakehouseSettings(), given)
    assert local.items() >= {name: value for name, value in given.items() if name not in SECRETS}.items()
    assert not local.keys() & SECRETS.keys()
    store = LakehouseSettings(warehouse="s3://bucket/wh", catalog_uri="postgresql://localhost/lake")
    assert spark_environment(store, given).keys() & SECRETS.keys() == {"AWS_SECRET_ACCESS_KEY"}
