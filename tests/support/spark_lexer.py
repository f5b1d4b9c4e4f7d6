"""Spark's own lexer, for comparing ours with it: a small program that Spark's Scala compiler makes."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["spark_tokens"]

_SOURCE = Path(__file__).with_suffix(".scala")


def spark_tokens(texts: Sequence[str], folder: Path) -> list[list[str] | None]:
    """Of each text those that Spark's grammar sees; None where Spark does not take it at all."""
    pyspark = pytest.importorskip("pyspark")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        pytest.skip("there is no Java")
    jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    compiler = ["scala.tools.nsc.Main", "-usejavacp", "-nowarn", "-d", str(folder), str(_SOURCE)]
    subprocess.run([java, "-cp", jars, *compiler], check=True, timeout=300)
    given = "\n".join(base64.b64encode(text.encode()).decode() for text in texts)
    program = [java, "-cp", f"{jars}:{folder}", "org.apache.spark.sql.catalyst.parser.SparkLexer"]
    done = subprocess.run(program, input=given, capture_output=True, text=True, check=True, timeout=300)
    lines = done.stdout.split("\n")[: len(texts)]
    assert len(lines) == len(texts)
    return [None if line == "!" else [base64.b64decode(part).decode() for part in line.split()] for line in lines]
