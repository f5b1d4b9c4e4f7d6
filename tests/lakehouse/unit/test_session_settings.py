"""What sessions of Spark are told, and who has the last word."""

from __future__ import annotations

import pytest

from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")


def test_the_users_settings_of_spark_win_over_those_of_sessions() -> None:
    plain = LakehouseSettings(warehouse="/w").session_conf()
    given = {"spark.sql.autoBroadcastJoinThreshold": "1m", "spark.sql.shuffle.partitions": "200"}
    own = LakehouseSettings(warehouse="/w", properties=given).session_conf()
    assert plain["spark.sql.autoBroadcastJoinThreshold"] == "64m"
    assert {key: own[key] for key in given} == given
    assert own.keys() == plain.keys()
