"""Spark's Python workers run the amqpd that the driver runs, even where another one lies in the working directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import sys
from amqpd.storage.export import borders
from amqpd.storage.export.session import spark_session

def theirs(_):
    from amqpd.storage.export import borders
    return borders.__file__

spark = spark_session("local[1]", memory="512m", quick=True)
print(borders.__file__)
print(spark.sparkContext.parallelize([0], 1).map(theirs).first())
print(spark.read.format("amqp").options(path=sys.argv[1], queue="tasks").load().count())
spark.stop()
"""


def test_the_working_directory_is_not_where_amqpd_comes_from(needs_spark: None, written: Any, tmp_path: Path) -> None:
    other = tmp_path / "checkout"
    (other / "amqpd").mkdir(parents=True)
    (other / "amqpd" / "__init__.py").write_text("raise ImportError('the sources of a checkout, not what runs')\n")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, written.data_dir],
        cwd=other, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    mine, theirs, count = done.stdout.split()
    assert mine == theirs and count == "4000"
