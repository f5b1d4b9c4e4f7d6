"""A real Iceberg REST catalog to test against: the project's own reference servlet over a JdbcCatalog in SQLite.

No server program of it is published, only the classes. So the jars are resolved by the Ivy that is part of PySpark, and
the pieces are put together in a JVM that Python drives by Py4J: neither Maven nor a Java compiler is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port

__all__ = ["rest_catalog", "rest_catalog_jars"]

_ICEBERG = "1.11.0"
_IVY_MODULE = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="sparkport" module="rest-catalog"/>
  <dependencies>
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="{_ICEBERG}" conf="default">
      <artifact name="iceberg-core" type="jar"/>
      <artifact name="iceberg-core" type="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.eclipse.jetty" name="jetty-servlet" rev="11.0.25" conf="default"/>
    <dependency org="org.xerial" name="sqlite-jdbc" rev="3.50.3.0" conf="default"/>
  </dependencies>
</ivy-module>
"""
_FROM_SPARK = ("hadoop-client-api", "hadoop-client-runtime", "commons-logging", "log4j-", "py4j-")


def _spark_jars() -> Path:
    pyspark = pytest.importorskip("pyspark")
    return Path(pyspark.__file__).parent / "jars"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(f"{home}/bin/java" if home else "java")
    if found is None:
        pytest.skip("there is no Java")
    return found


def rest_catalog_jars() -> list[Path]:
    """Resolved once and kept; skips the test when there is no way to a repository."""
    home = Path(os.environ.get("SPARKPORT_CACHE") or Path.home() / ".cache" / "sparkport")
    kept = home / f"test-rest-catalog-{_ICEBERG}"
    if not kept.exists():
        fresh = home / f".resolving-{uuid.uuid4().hex}"
        fresh.mkdir(parents=True)
        try:
            _resolve(fresh)
            # Two runs at once resolve twice; the first to be done is kept.
            if not kept.exists():
                (fresh / "jars").rename(kept)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    spark = [path for path in sorted(_spark_jars().glob("*.jar")) if path.name.startswith(_FROM_SPARK)]
    return [*sorted(kept.glob("*.jar")), *spark]


def _resolve(folder: Path) -> None:
    module = folder / "ivy.xml"
    module.write_text(_IVY_MODULE)
    command = [_java(), "-jar", str(next(_spark_jars().glob("ivy-*.jar"))), "-cache", str(folder / "cache")]
    command += ["-ivy", str(module), "-confs", "default"]
    command += ["-retrieve", f"{folder}/jars/[artifact](-[classifier])-[revision].[ext]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the jars of the REST catalog cannot be had in time")
    if done.returncode != 0:
        missing = [line.strip() for line in done.stdout.splitlines() if "not found" in line or "problem" in line]
        pytest.skip(f"the jars of the REST catalog cannot be had: {missing[:1]}")


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """The catalog's address. Its database and warehouse are in ``folder``; it ends with the block or with us."""
    py4j = pytest.importorskip("py4j.java_gateway")
    classpath = ":".join(str(path) for path in rest_catalog_jars())
    # The JVM reads from a pipe of ours and exits at its end, so that it cannot outlive this process.
    gateway = py4j.JavaGateway.launch_gateway(
        classpath=classpath, java_path=_java(), javaopts=["-Xmx256m"], die_on_exit=True, use_shell=False
    )
    try:
        server, port = _serve(gateway.jvm, folder)
        yield f"http://127.0.0.1:{port}"
        server.stop()
    finally:
        process = gateway.java_process
        gateway.shutdown()
        process.stdin.close()
        process.kill()
        process.wait(timeout=30)


def _serve(jvm: Any, folder: Path) -> tuple[Any, int]:
    org = jvm.org
    properties = jvm.java.util.HashMap()
    properties.put("uri", f"jdbc:sqlite:{folder}/rest.db")
    properties.put("warehouse", f"{folder}/warehouse")
    properties.put("jdbc.schema-version", "V1")
    # The clients of SQLite wait for each other instead of failing at once.
    properties.put("jdbc.busy_timeout", "20000")
    catalog = org.apache.iceberg.jdbc.JdbcCatalog()
    catalog.setConf(org.apache.hadoop.conf.Configuration())
    catalog.initialize("rest", properties)
    servlet = org.apache.iceberg.rest.RESTCatalogServlet(org.apache.iceberg.rest.RESTCatalogAdapter(catalog))
    context = org.eclipse.jetty.servlet.ServletContextHandler()
    context.setContextPath("/")
    context.addServlet(org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
    port = free_port()
    server = org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", port))
    server.setHandler(context)
    server.start()
    return server, port
