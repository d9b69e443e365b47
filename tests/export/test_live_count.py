"""The live count program of docs/export.md runs as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.external

pytest.importorskip("pyspark")

MANUAL = Path(__file__).parents[2] / "docs" / "export.md"


def test_live_count_of_the_manual_runs(spark, written, tmp_path):
    section = MANUAL.read_text("utf-8").partition("## A live count")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for old, new in (
        ("./amqpd-data", written.data_dir),
        ('queue="orders"', 'queue="tasks"'),
        ("./counts", str(tmp_path / "counts")),
        ('format("console")', 'format("memory").queryName("live")'),
        ("query.awaitTermination()", "query.processAllAvailable()"),
    ):
        assert old in program
        program = program.replace(old, new)
    names = {}
    exec(program, names)
    try:
        found = {row["routing_key"]: row["count"] for row in spark.table("live").collect()}
    finally:
        names["query"].stop()
    assert found["eu"] + found["us"] >= 4000
    assert abs(found["eu"] - found["us"]) <= 1
