"""How a Connect server is started: its command line, and a file with what others must not see on a command line.

Whoever reaches a Connect server can run any code as its user. So it listens on loopback only and asks for a token that
is drawn for each start, and the other ports that Spark opens ask for a secret, too.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sparkport.lakehouse.settings import STUCK_WORK, LakehouseSettings
from sparkport.lakehouse.spark.launcher import launched
from sparkport.lakehouse.spark.lock import locked

__all__ = ["spark_command", "spark_environment", "spark_home"]

_PASSED_ON = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|JAVA_HOME|JDK_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|LD_LIBRARY_PATH"
    r"|(?:SPARK|PYSPARK|HADOOP|YARN|HDFS|HIVE|KRB5|KUBERNETES)_?\w*|KUBECONFIG|(?:HTTPS?|NO|ALL)_PROXY"
)
"""Variables that Spark, Java and Hadoop read. All others stay here: tokens and passwords are among them."""

_CLOUDS = re.compile(r"(?:AWS|AZURE|GOOGLE|GCP|GCS|CLOUDSDK)_\w+")
_KEPT_BACK = re.compile(r"SPARKPORT_\w+|SPARK_CONNECT_AUTHENTICATE_TOKEN")

_END_WITHOUT_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""Java would end whichever thread happens to ask for more memory than there is, and go on without it; Spark has threads
that it cannot do without. A query can ask for any amount."""


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def spark_environment(settings: LakehouseSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """What Spark gets of our own environment. Keys of a store are passed on where tables are in one."""
    inherited = {
        name: value
        for name, value in environment.items()
        if not _KEPT_BACK.fullmatch(name)
        and (_PASSED_ON.fullmatch(name.upper()) or (settings.uses_store and _CLOUDS.fullmatch(name)))
    }
    return {**inherited, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}


@contextmanager
def spark_command(
    settings: LakehouseSettings, port: int, *, token: str, jars: Sequence[str], for_queries: bool = False
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The command, good for one start within the block and by this thread, and what it needs in the environment.

    Catalogs have passwords and keys, so their settings are in a file that only we can read, and that is gone at the end
    of the block.
    """
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # So that ``Operations.end_leftovers`` may ask for an operation that is over.
        "spark.connect.session.inactiveOperations.cacheExpiration": "0",
    }
    if settings.spark_is_local:  # executors elsewhere have to find the driver
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        conf["spark.authenticate"] = "true"  # Spark draws a secret by itself; elsewhere the cluster's owner decides
    if for_queries:
        conf["spark.extraListeners"] = STUCK_WORK
    given = {**settings.spark_conf(), "spark.connect.authenticate.token": token}
    plain = [f"{key}={value}" for key, value in conf.items() if key not in given]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="sparkport-", suffix=".properties") as file:
        file.write(_properties(given))
        file.flush()
        command = [
            "org.apache.spark.deploy.SparkSubmit",
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
        command += [part for item in plain for part in ("--conf", item)]
        command.append("spark-internal")
        spark_class, environment = spark_home() / "bin" / "spark-class", spark_environment(settings, os.environ)
        if for_queries:
            environment["JDK_JAVA_OPTIONS"] = f"{environment.get('JDK_JAVA_OPTIONS', '')} {_END_WITHOUT_MEMORY}".strip()
        # Elsewhere it is executors that run what a query says, and not the process that is started here.
        if settings.spark_programs or not settings.spark_is_local:
            yield launched([str(spark_class), *command]), environment
        else:
            start, added = locked(spark_class, command)
            yield launched(start), {**environment, **added}


def _properties(conf: Mapping[str, str]) -> str:
    """As Java's Properties reads them."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    named = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(named.get(char, f"\\{char}" if char in " =:#!" else char) for char in text)
