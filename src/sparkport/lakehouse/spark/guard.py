"""Spark's side of queries (``*.scala``), made into a jar by the Scala compiler that is part of Spark.

So there is no program in this package that nobody can read, and whoever has Spark needs nothing else to build it. It
takes some seconds, once for each version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sparkport.errors import FailedPrecondition
from sparkport.lakehouse.jars import GUARD, cache_home
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.command import spark_environment, spark_home

__all__ = ["guard_jar"]

_SOURCES = tuple(Path(__file__).with_name(f"{name}.scala") for name in ("query_guard", "stuck_work"))
_SECONDS = 300.0


def guard_jar(folder: Path | None = None) -> Path:
    """Where the jar is: in the folder if it is there, else among what is kept between runs, made now if need be."""
    name = f"{GUARD}{_digest()}.jar"
    kept = cache_home() / "guard" / name
    places = [kept] if folder is None else [folder.resolve() / name, kept]
    found = next((place for place in places if place.exists()), None)
    return found or _compiled(kept)


def _digest() -> str:
    """Of the sources and of what they are compiled against."""
    jars = sorted(path.name for path in (spark_home() / "jars").glob("spark-*.jar"))
    parts = [*(source.read_bytes() for source in _SOURCES), *(name.encode() for name in jars)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _compiled(jar: Path) -> Path:
    jar.parent.mkdir(parents=True, exist_ok=True)
    environment = spark_environment(LakehouseSettings(), os.environ)
    home = environment.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java", path=environment.get("PATH"))
    if java is None:
        raise FailedPrecondition("there is no Java: install Java 17, or set JAVA_HOME")
    with tempfile.TemporaryDirectory(prefix=".guard-", dir=jar.parent) as scratch:
        made = Path(scratch, jar.name)
        classes = ["-cp", str(spark_home() / "jars" / "*")]
        compiler = ["scala.tools.nsc.Main", "-usejavacp", "-nowarn", "-d", str(made), *map(str, _SOURCES)]
        done = subprocess.run(
            [java, "-Xmx1g", *classes, *compiler],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
        if done.returncode or not made.exists():
            raise FailedPrecondition(f"what checks queries cannot be compiled: {done.stdout.strip()[-500:]}")
        made.chmod(0o644)
        made.replace(jar)
    return jar
