"""All jars that any catalog and warehouse needs, in one folder: for images and for machines without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sparkport.errors import Unavailable
from sparkport.lakehouse.settings import ALL_PACKAGES, LakehouseSettings
from sparkport.lakehouse.spark.command import spark_environment, spark_home
from sparkport.lakehouse.spark.guard import guard_jar

__all__ = ["fill_jar_folder"]


def fill_jar_folder(folder: Path) -> int:
    """Resolve them as Spark does and put them there; how many there are."""
    with tempfile.TemporaryDirectory(prefix="sparkport-jars-") as scratch:
        program = Path(scratch, "nothing.py")
        program.write_text("")
        resolved = subprocess.run(
            [
                str(spark_home() / "bin" / "spark-submit"),
                "--master",
                "local[1]",
                "--packages",
                ",".join(ALL_PACKAGES),
                "--conf",
                f"spark.jars.ivy={scratch}/ivy",
                str(program),
            ],
            env=spark_environment(LakehouseSettings(), os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        jars = sorted(Path(scratch, "ivy", "jars").glob("*.jar"))
        if resolved.returncode or not jars:
            told = [line for line in resolved.stdout.splitlines() if line.strip()]
            raise Unavailable(f"Spark's jars cannot be had: {told[-1] if told else 'spark-submit said nothing'}")
        folder.mkdir(parents=True, exist_ok=True)
        jars.append(guard_jar())
        for jar in jars:
            shutil.copy(jar, folder)
    return len(jars)
