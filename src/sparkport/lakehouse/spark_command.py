"""How a Connect server is started: the command line, and beside it, in a file, what others must not see there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["spark_command", "spark_home"]


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


@contextmanager
def spark_command(settings: LakehouseSettings, port: int, jars: Sequence[str]) -> Iterator[list[str]]:
    """The command, good for one start within the block: catalogs have passwords and keys, so that their settings are
    in a file that only we can read, gone at the end of the block."""
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    if settings.spark_is_local:  # executors elsewhere have to find the driver
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    given = settings.spark_conf()
    plain = [f"{key}={value}" for key, value in conf.items() if key not in given]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="sparkport-", suffix=".properties") as file:
        file.write(_properties(given))
        file.flush()
        command = [
            str(spark_home() / "bin" / "spark-submit"),
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--master",
            settings.spark,
            "--driver-memory",
            settings.driver_memory,
            "--properties-file",
            file.name,
            # Beside the file, what the site has set for all of its Spark programs.
            "--load-spark-defaults",
            *jars,
        ]
        yield [*command, *[part for item in plain for part in ("--conf", item)], "spark-internal"]


def _properties(conf: Mapping[str, str]) -> str:
    """As Java's Properties reads them."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    named = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(named.get(char, f"\\{char}" if char in " =:#!" else char) for char in text)
