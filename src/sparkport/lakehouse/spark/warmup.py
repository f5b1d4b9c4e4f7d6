"""The first append and the first MERGE of a new Spark take seconds: so they are made on a table that nobody needs.

Java also has to see many rows before it compiles what handles them: ten million take thrice the time of the next ten
million. So the warm-up has enough rows, and repeats what was compiled for few. It stops as soon as a real statement
comes, which then warms Spark up itself.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.errors import SparkportError
from sparkport.lakehouse.iceberg.row_groups import ROW_GROUP_BYTES
from sparkport.lakehouse.spark.server import Sessions, translated
from sparkport.lakehouse.spark.sql import quoted

__all__ = ["warm_up"]

logger = logging.getLogger(__name__)

_CATALOG = "sparkport_warm_up"
_TABLE = f"{_CATALOG}.public.t"
_SCHEMA = pa.schema([("id", pa.int64()), ("number", pa.float64()), ("v", pa.string())])
_SPARK_SCHEMA = "id bigint, number double, v string"
_ROWS = 200_000
_APPENDS = 3
_CREATE = (
    f"CREATE TABLE {_TABLE} ({_SPARK_SCHEMA}) USING iceberg TBLPROPERTIES ('format-version'='3', "
    "'write.merge.mode'='merge-on-read', 'write.distribution-mode'='none', 'write.merge.distribution-mode'='none', "
    f"'write.parquet.compression-codec'='zstd', '{ROW_GROUP_BYTES}'='{576 << 10}')"
)
_MERGE = f"MERGE INTO {_TABLE} t USING warm s ON t._row_id = s.id AND t.id < {_ROWS}L WHEN MATCHED THEN "


def warm_up(spark: Sessions, staging: Path, catalog: str) -> None:
    """Failures are only logged: whatever is wrong, a statement will meet it and report it."""
    folder = staging / f"warm-up-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        ids = pa.array(np.arange(_ROWS))
        rows = pa.table({"id": ids, "number": ids.cast(pa.float64()), "v": ids.cast(pa.string())}, _SCHEMA)
        pq.write_table(rows, folder / "rows.parquet", compression="lz4", use_dictionary=False)
        _run(spark, folder, catalog)
    except (SparkportError, OSError) as exc:
        logger.debug("no warm-up: %s", exc)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(spark: Sessions, folder: Path, catalog: str) -> None:
    conf = {
        f"spark.sql.catalog.{_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{_CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{_CATALOG}.warehouse": str(folder / "warehouse"),
    }
    with spark.session(conf, timeout=60) as session, translated("warming up"):

        def rows() -> Any:
            return session.read.schema(_SPARK_SCHEMA).parquet(str(folder / "rows.parquet"))

        steps: tuple[Callable[[], Any], ...] = (
            lambda: session.sql(f"SHOW NAMESPACES IN {quoted(catalog)}").collect(),
            lambda: session.sql(_CREATE).collect(),
            *[lambda: rows().writeTo(_TABLE).append()] * _APPENDS,
            lambda: rows().createOrReplaceTempView("warm"),
            lambda: session.sql(_MERGE + "UPDATE SET t.v = s.v").collect(),
            lambda: session.sql(_MERGE + "UPDATE SET t.number = s.number").collect(),
            lambda: session.sql(_MERGE + "DELETE").collect(),
            lambda: session.catalog.dropTempView("warm"),
        )
        for step in steps:
            if spark.in_use > 1:
                return
            step()
