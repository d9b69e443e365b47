"""`amqpctl export`: queues into files or a database, and holds that keep settled messages for an export.

The export job is storage/export/job.py; this module translates command line and result. The command imports the job
and pyarrow when it runs, and pyspark only for the engine Spark.
"""

from __future__ import annotations

import errno
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from amqpd.cli.client import quoted
from amqpd.cli.command import Context, command
from amqpd.cli.errors import DATA, SOFTWARE, UNAVAILABLE, USAGE, Failure, UsageError
from amqpd.cli.formatters import compact
from amqpd.cli.terminal import StatusLine, write_message

if TYPE_CHECKING:
    from amqpd.storage.export.engine import ExportEngine
    from amqpd.storage.export.job import ExportOptions, ExportReport
    from amqpd.storage.export.payload import PayloadOptions

OPTIONS: Final = (
    "queue", "to", "format", "checkpoint", "from", "to-offset", "partition-by", "where", "columns", "table", "name",
    "batch", "follow", "min-batch-bytes", "max-batch-age", "share", "take-over-after", "compress",
    "allow-data-loss", "engine", "master", "memory",
    "payload", "payload-schema", "payload-message", "schema-registry", "schema-registry-password-file",
)  # fmt: skip
NOT_SUPPORTED: Final = frozenset(["s3n", "gcs", "adl", "wasb", "wasbs", "r2", "oss", "cos", "swift", "hdfs", "dbfs"])
"""URL schemes of stores that are not supported."""
PACKAGES: Final = {
    "an object store": ("obstore", "obstore>=0.8"),
    "delta": ("deltalake", "deltalake>=1.0"),
    "iceberg": ("pyiceberg", "pyiceberg>=0.12"),
}
"""The packages of the extras `object-stores`, `delta` and `iceberg`, for what needs them."""
PAYLOAD_PACKAGES: Final = {
    "json": (),
    "avro": (("fastavro", "fastavro>=1.10"),),
    "protobuf": (("google.protobuf", "protobuf>=6.31"),),
}
"""The packages of the extra `payload`, by format."""
REGISTRY_VARIABLE: Final = "AMQPCTL_SCHEMA_REGISTRY_PASSWORD"
PROTOC: Final = ("grpc_tools", "grpcio-tools>=1.75")
"""The package that compiles Protobuf's schemas, in .proto files and in registries."""
PYARROW: Final = "pyarrow>=18"
"""The extra `export` of pyproject.toml: amqpd is on no package index, so pip cannot resolve the extra."""
SPARK_OPTIONS: Final = ("where", "master", "memory")
BAR_CELLS: Final = 10


_command = partial(command, "Queues")


@_command(
    "Exports queues to Parquet, JSON, CSV, Iceberg, Delta or a database, each message once",
    "(--queue <queue> | --vhost <vhost>) --to <directory | URL> [--format <name>] [--follow]",
    (
        ("<directory>", "only complete files appear in it; a later run continues after the last one"),
        ("<URL>", "an object store (s3://, gs://, abfs://), iceberg://CATALOG/NAMESPACE.TABLE, or a database"),
    ),
    own_options=OPTIONS,
    examples=(
        ("export --queue orders --to ./lake --partition-by date", "Parquet by date of arrival (UTC)"),
        ("export --queue orders --to sqlite:///orders.db --checkpoint ./orders.done", "a table amqp_messages"),
        ("export --queue orders --to s3://lake/orders --checkpoint ./orders.done", "files in an object store"),
        ("export --queue orders --to ./lake --format iceberg", "a table amqp.messages"),
        ("export --queue orders --to /nfs/lake --share", "on several machines, each message once"),
        ("export -p shop --to ./lake --format json --follow", "all queues of vhost shop, until Ctrl-C"),
        (
            "--uri http://u:p@host:15672 export --queue orders --to ./lake --follow",
            "over HTTP; it waits for a broker that restarts",
        ),
        (
            """export --queue orders --to ./eu --where "routing_key LIKE 'eu.%'\"""",
            "some of the messages; by Spark",
        ),
    ),
    has_json_errors=True,
)
def export(context: Context) -> None:
    stopped = StopRequest("stopping after this batch; once more to stop now (a rerun loses and repeats nothing)")
    try:
        _export(context, stopped)
    finally:
        stopped.restore()


def _export(context: Context, stopped: StopRequest) -> None:
    options = _options(context)
    from amqpd.storage.export.checkpoint import CheckpointError
    from amqpd.storage.export.columns import UnknownColumn
    from amqpd.storage.export.engine import EngineError
    from amqpd.storage.export.files import SourceError
    from amqpd.storage.export.job import BadExport, ExportJob, without_password
    from amqpd.storage.export.options import BadOption, NoSuchQueue
    from amqpd.storage.export.payload import BadSchema
    from amqpd.storage.export.plan import DataLoss
    from amqpd.storage.export.targets import TargetError
    from amqpd.storage.export.worker_pool import WorkerFailed

    if "share" in context.line.given:
        from amqpd.storage.export.shared_job import SharedExportJob as ExportJob
    progress = ProgressBar(context) if context.err.isatty() and not context.line.quiet else ProgressLines(context)
    engine = _engine(context, options, progress)
    try:
        job = ExportJob(options, engine, progress.finish_batch, stopped, progress.begin_batch, progress.wait)
        total = job.run()
    except (NoSuchQueue, SourceError, EngineError) as error:
        raise Failure(UNAVAILABLE, str(error)) from None
    except (BadExport, BadOption, UnknownColumn) as error:
        raise UsageError(_in_our_words(str(error))) from None
    except BadSchema as error:
        raise UsageError(f"--payload-schema: {error}") from None
    except CheckpointError as error:
        raise Failure(USAGE, str(error)) from None
    except DataLoss as error:
        raise Failure(DATA, _in_our_words(str(error))) from None
    except (TargetError, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        places = f"{options.checkpoint} or {without_password(options.to)}"
        full = f": {places} is full; a smaller --batch needs less" if is_full else ""
        raise Failure(UNAVAILABLE, f"{error}{full}") from None
    except WorkerFailed as error:
        raise Failure(SOFTWARE, str(error)) from None
    except Exception as error:  # Spark raises many types
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise _spark_failure(error) from error
    finally:
        progress.close()
    if total.rejected:
        context.warn(f"{total.rejected:,} messages do not fit the payload: they are in {total.root}/_rejected")
    if context.line.formatter == "json":
        found = {"batches": total.batches, "records": total.rows, "bytes": total.bytes, "waiting": total.lag}
        found |= {"rejected": total.rejected} if options.payload else {}
        to = without_password(options.to)
        context.out.write(compact({**found, "seconds": round(total.seconds, 3), "to": to, "batch": total.batch}) + "\n")
        return
    took = f"in {_batches(total.batches)} and {total.seconds:.1f} s ({_rate(total)})"
    context.out.write(
        f"Exported {total.rows:,} records, {formatted_size(total.bytes)}, {took} to {without_password(options.to)}; "
        f"{total.lag:,} offsets wait\n"
    )


def _engine(context: Context, options: ExportOptions, progress: ProgressLines) -> ExportEngine:
    """Return the engine for the command line, not started yet."""
    given = context.line.given
    if not _wants_spark(context):
        from amqpd.storage.export.engine import PyarrowEngine

        return PyarrowEngine(progress.advance)
    from pathlib import Path

    from amqpd.storage.spark.engine import SparkEngine

    return SparkEngine(
        Path(options.checkpoint) / "spark.log",
        master=given.get("master", "local[*]"),
        memory=given.get("memory", "1g"),
        rows_in_jvm=bool(options.where) or options.is_database,
        starting=lambda: context.warn(f"starting Spark; it logs into {options.checkpoint}/spark.log"),
    )


def _wants_spark(context: Context) -> bool:
    """Return whether the command line needs Spark. Raises: UsageError."""
    given = context.line.given
    engine = given.get("engine")
    if engine not in (None, "pyarrow", "spark"):
        raise UsageError(f"--engine {engine}: expected pyarrow or spark")
    needed = [name for name in SPARK_OPTIONS if name in given]
    if engine == "pyarrow" and needed:
        raise UsageError(f"--{needed[0]} needs --engine spark")
    return engine == "spark" or bool(needed)


class ProgressLines:
    """Progress of an export as a line for each batch."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._has_waited = False

    def begin_batch(self, report: ExportReport) -> None:
        return

    def wait(self, report: ExportReport) -> None:
        """Write what the next batch waits for: once for each batch, as a line stays."""
        if not self._has_waited:
            self._has_waited = True
            self._context.warn(f"{report.lag:,} wait, {wait_text(report)}")

    def advance(self, rows: int, size_bytes: int) -> None:
        return

    def finish_batch(self, report: ExportReport) -> None:
        self._has_waited = False
        counts = f"{report.rows:,} records, {formatted_size(report.bytes)}, {_rate(report)}"
        rejected = f", {report.rejected:,} rejected" if report.rejected else ""
        self._context.warn(f"batch {report.batch}: {counts}, {report.lag:,} wait{rejected}")

    def close(self) -> None:
        return


class ProgressBar(ProgressLines):
    """Progress of an export in the last line of a terminal.

    The rate is that of the whole run. The time left is the lag, in offsets, divided by the rate.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._status = StatusLine(context.err)
        self._started = time.monotonic()
        self._rows = 0
        self._batch_rows = 0
        self._lag = 0

    def begin_batch(self, report: ExportReport) -> None:
        self._lag = report.lag
        self._write()

    def wait(self, report: ExportReport) -> None:
        self._lag = report.lag
        self._write(f", {wait_text(report)}")

    def advance(self, rows: int, size_bytes: int) -> None:
        self._batch_rows += rows
        if self._status.is_due:
            self._write()

    def finish_batch(self, report: ExportReport) -> None:
        self._rows += report.rows + report.rejected  # as `advance` has counted them
        self._batch_rows = 0
        self._lag = report.lag
        self._write()

    def _write(self, more: str = "") -> None:
        rows = self._rows + self._batch_rows
        lag = max(0, self._lag - self._batch_rows)
        self._status.write(progress_text(rows, lag, time.monotonic() - self._started) + more)

    def close(self) -> None:
        self._status.close()


def progress_text(rows: int, lag: int, seconds: float) -> str:
    """Return the line of the progress bar."""
    share = rows / (rows + lag) if rows + lag else 1.0
    filled = int(share * BAR_CELLS)
    rate = rows / max(seconds, 0.001)
    left_s = round(lag / rate) if rate else 0
    left = f"{left_s // 3600}:{left_s // 60 % 60:02d}:{left_s % 60:02d} left" if rate else "starting"
    bar = "#" * filled + "." * (BAR_CELLS - filled)
    return f"[{bar}] {share:4.0%}  {rows:,} records, {rate:,.0f}/s, {lag:,} wait, {left}"


def wait_text(report: ExportReport) -> str:
    """Return how much waits for the next batch, and how long at most."""
    return f"{formatted_size(report.waiting_bytes)} of log: next batch in at most {report.wait_s:,.0f} s"


class StopRequest:
    """Stop request: the first SIGINT or SIGTERM ends the job after its present work, the second at once.

    Args:
        text: A line for the user, written at the first signal.
    """

    def __init__(self, text: str) -> None:
        self.seen = False
        self._text = text
        self._before = {number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)}

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
        if sys.stderr is not None:  # it was closed at the start
            write_message(sys.stderr, self._text + "\n")

    def __call__(self) -> bool:
        return self.seen

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _options(context: Context) -> ExportOptions:
    """Return the job's options for the command line. Raises: UsageError."""
    given = context.line.given
    to, kind = _target(given)
    if "queue" not in given and "vhost" not in given:
        raise UsageError("--queue or, for all its durable queues, --vhost is needed")
    checkpoint = given.get("checkpoint")
    if checkpoint is None:
        if "://" in to:
            raise UsageError(
                "--checkpoint is needed if --to is not a directory: a local directory that remembers what was exported"
            )
        checkpoint = to.rstrip("/") + ".checkpoint"
    _check_sharing(context, checkpoint)
    payload = payload_options(context)
    if payload and _wants_spark(context):
        raise UsageError("--payload: not with --engine spark, --where, --master or --memory")
    for name in ("to-offset", "batch", "min-batch-bytes", "max-batch-age"):
        if name in given and (context.line.number(name) == 0 and name == "batch"):
            raise UsageError(f"Invalid options for this command:\n--{name} : {given[name]}")
    for name in ("min-batch-bytes", "max-batch-age"):
        if name in given and "follow" not in given:
            raise UsageError(f"--{name} needs --follow")
    look_for_packages(context, to, kind)
    from amqpd.storage.acks.retained import NAME
    from amqpd.storage.export.columns import BASE
    from amqpd.storage.export.job import MAX_BATCH_AGE_S, ExportOptions

    if NAME.fullmatch(given.get("name", "export")) is None:
        raise UsageError(f"--name : {given['name']}")
    return ExportOptions(
        source=read_source(context),
        vhost=context.vhost,
        queue=given.get("queue"),
        to=to,
        checkpoint=checkpoint,
        format=kind,
        start=given.get("from", "earliest"),
        to_offset=int(given["to-offset"]) if "to-offset" in given else None,
        partition_by=_list(given.get("partition-by", "")),
        where=given.get("where", ""),
        columns=_list(given.get("columns", "")) or BASE,
        table=given.get("table", "amqp.messages" if kind == "iceberg" else "amqp_messages"),
        name=given.get("name", "export"),
        follow="follow" in given,
        batch_rows=int(given["batch"]) if "batch" in given else None,
        min_batch_bytes=int(given["min-batch-bytes"]) if "min-batch-bytes" in given else None,
        max_batch_age_s=float(given.get("max-batch-age", MAX_BATCH_AGE_S)),
        fail_on_data_loss="allow-data-loss" not in given,
        payload=payload,
        take_over_s=float(given["take-over-after"]) if "take-over-after" in given else None,
    )


def _check_sharing(context: Context, checkpoint: str) -> None:
    """Check the options of --share. Raises: UsageError; Failure, if a package is missing."""
    from amqpd.storage.export.object_store import is_object_store

    given = context.line.given
    is_store = is_object_store(checkpoint)
    if "share" in given:
        if _wants_spark(context):
            raise UsageError("--share: not with --engine spark, --where, --master or --memory")
        if "take-over-after" in given and context.line.number("take-over-after") == 0:
            raise UsageError("Invalid options for this command:\n--take-over-after : 0")
        if "://" in checkpoint and not is_store:
            raise UsageError(
                f"--checkpoint {checkpoint}: expected a directory or an object store (s3://, gs://, abfs://)"
            )
        if is_store:
            look_for_packages(context, checkpoint, "parquet")
        return
    if "take-over-after" in given:
        raise UsageError("--take-over-after needs --share")
    if "://" in checkpoint:
        more = "; with --share also a URL" if is_store else ""
        raise UsageError(f"--checkpoint {checkpoint}: expected a local directory, also for an object store{more}")


def _target(given: Mapping[str, str]) -> tuple[str, str]:
    """Return the place of the export and its format. Raises: UsageError."""
    from amqpd.storage.export.object_store import is_object_store

    if "to" not in given:
        raise UsageError(
            "--to is needed: a directory, an object store (s3://bucket/lake), an Iceberg table "
            "(iceberg://catalog/ns.table), or a database as SQLAlchemy writes it (sqlite:///lake.db)"
        )
    to = given["to"]
    if to.startswith("file://"):
        to = unquote(to.removeprefix("file://"))
        if not to.startswith("/"):
            raise UsageError(f"--to {given['to']}: expected file:///DIRECTORY")
    scheme = to.partition("://")[0].lower() if "://" in to else ""
    if scheme in NOT_SUPPORTED:
        raise UsageError(
            f"--to {to}: {scheme}:// is not supported. Supported are a directory, s3://, gs://, az://, abfs://, "
            "iceberg:// and a database's URL (postgresql://..., sqlite:///...)"
        )
    is_table = scheme == "iceberg"
    kind = given.get("format", "iceberg" if is_table else "parquet")
    if kind not in ("parquet", "json", "csv", "delta", "iceberg"):
        raise UsageError(f"--format {kind}: expected parquet, json, csv, delta or iceberg")
    if is_table and (kind != "iceberg" or not re.fullmatch(r"[^/]+/[^/.]+(\.[^/.]+)+", to.partition("://")[2])):
        raise UsageError(f"--to {to}: expected iceberg://CATALOG/NAMESPACE.TABLE, and no other --format")
    is_database = bool(scheme) and not is_table and not is_object_store(to)
    if is_database and "format" in given:
        raise UsageError("--format is for directories and object stores")
    if "table" in given and (is_table or (not is_database and kind != "iceberg")):
        raise UsageError("--table is for databases, and for --format iceberg in a directory or an object store")
    if kind == "iceberg" and not re.fullmatch(r"[^/.]+(\.[^/.]+)+", given.get("table", "amqp.messages")):
        raise UsageError(f"--table {given['table']}: expected NAMESPACE.TABLE")
    return to, kind


def payload_options(context: Context) -> PayloadOptions | None:
    """Return the options of --payload; None without it. Raises: UsageError; Failure, if a package is missing."""
    given = context.line.given
    payload = given.get("payload")
    if payload is None:
        for name in ("payload-schema", "payload-message", "schema-registry", "schema-registry-password-file"):
            if name in given:
                raise UsageError(f"--{name} needs --payload")
        return None
    if payload not in PAYLOAD_PACKAGES:
        raise UsageError(f"--payload {payload}: expected {', '.join(PAYLOAD_PACKAGES)}")
    path, registry = given.get("payload-schema", ""), _registry(context)
    packages = [("pyarrow", PYARROW), *PAYLOAD_PACKAGES[payload]]
    if payload == "protobuf" and (registry or path.endswith(".proto")):
        packages.append(PROTOC)
    needed = [package for name, package in packages if _is_missing(name)]
    if needed:
        raise Failure(UNAVAILABLE, f"--payload {payload} needs {missing_packages(needed)}")
    from amqpd.storage.export import payload_schema
    from amqpd.storage.export.payload import BadSchema

    where = f"--payload-schema {path}" if path else f"--payload {payload}"
    try:
        return payload_schema.payload_options(payload, path, given.get("payload-message", ""), registry)
    except (BadSchema, OSError) as error:
        raise UsageError(f"{where}: {error}") from None


def _registry(context: Context) -> str:
    """Return the URL of --schema-registry with its password; "" without it. Raises: UsageError."""
    from pathlib import Path

    from amqpd.storage.export.schema_registry import has_password, with_password

    given = context.line.given
    registry, path = given.get("schema-registry", ""), given.get("schema-registry-password-file")
    if path is not None and not registry:
        raise UsageError("--schema-registry-password-file needs --schema-registry")
    if path is not None:
        try:
            with Path(path).open(encoding="utf-8") as file:
                password = file.readline().rstrip("\r\n")
            if not password:
                raise ValueError("its first line is empty")
            return with_password(registry, password)
        except (OSError, ValueError) as error:
            raise UsageError(f"--schema-registry-password-file {path}: {error}") from None
    if has_password(registry):
        context.warn(
            "Warning: other users of this machine see the password in --schema-registry: use "
            "--schema-registry-password-file"
        )
        return registry
    password = context.environment.get(REGISTRY_VARIABLE, "")
    return with_password(registry, password) if password and "@" in registry else registry


def _is_missing(name: str) -> bool:
    try:
        return find_spec(name) is None
    except ModuleNotFoundError:  # the package around it
        return True


def read_source(context: Context) -> dict[str, str]:
    """Return the options of `format("amqp")` for the broker or data directory. Raises: UsageError."""
    tls = context.client.tls
    if tls.insecure:
        raise UsageError("--insecure : messages are not read without checking; use --tls-ca-cert-file")
    from pathlib import Path

    source = {"url": context.client.uri} if context.client.uri else {"path": context.client.data_dir}
    if "compress" in context.line.given:
        if not context.client.uri:
            raise UsageError("--compress needs --uri: files of a data directory are read as they are")
        source["transferCompression"] = "zstd"
    files = {"tlsCaCertFile": tls.ca, "tlsCertFile": tls.certificate, "tlsKeyFile": tls.key}
    return source | {name: str(Path(path).absolute()) for name, path in files.items() if path}


def missing_packages(packages: Sequence[str], target: str = "") -> str:
    """Return what to install. target: of make, that installs them in a checkout."""
    names = ", ".join(re.split("[><=]", package)[0] for package in packages)
    quoted_names = " ".join(f"'{package}'" for package in packages)
    text = f"the package{'s' if len(packages) > 1 else ''} {names}: {sys.executable} -m pip install {quoted_names}"
    return f"{text} (in amqpd's sources: make {target})" if target else text


def look_for_packages(context: Context, to: str, kind: str) -> None:
    """Check for missing packages before the export is imported. Raises: Failure that says what to install."""
    from amqpd.storage.export.object_store import is_object_store

    wanted = [("pyarrow", PYARROW)]
    if kind in PACKAGES:
        wanted.append(PACKAGES[kind])
    if is_object_store(to) and kind != "iceberg":  # pyiceberg has its own access to stores
        wanted.append(PACKAGES["an object store"])
    missing = ""
    if _wants_spark(context):
        from amqpd.storage.spark.session import missing_package

        missing = missing_package()
    needed = [package for name, package in wanted if find_spec(name) is None]
    if needed and not missing:
        missing = missing_packages(needed, "export" if needed == [PYARROW] else "")
    if missing:
        raise Failure(UNAVAILABLE, f"the export needs {missing}")


def _list(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"


def _rate(report: ExportReport) -> str:
    return f"{report.rows / max(report.working_s, 0.001):,.0f} records/s"


def formatted_size(size_bytes: int) -> str:
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    size, units = size_bytes / 1000, ["KB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.1f} {units[0]}"


def _in_our_words(text: str) -> str:
    """Replace the names of Spark's options by those of amqpctl. A number of --from is an offset, not a time."""
    text = text.replace("startingTimestamp: expected ms since 1970 or", "--from: expected earliest, an offset or")
    return text.replace("failOnDataLoss=false", "--allow-data-loss")


def _spark_failure(error: Exception) -> Failure:
    """Return an error of Spark with its first lines only: the JVM adds a hundred."""
    text = str(error)
    if type(error).__name__ in {"AnalysisException", "ParseException"}:
        return UsageError(f"--where: {text.strip().splitlines()[0].rstrip(';')}")
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return Failure(SOFTWARE, f"Spark: {type(error).__name__}: " + "\n".join(lines[:5]))


@_command(
    "Keeps a queue's settled messages until an export has read them",
    "[--vhost <vhost>] <queue> <name> [--max-bytes <bytes>]",
    (("<queue>", "name of a durable queue"), ("<name>", "name of the export, as in amqpctl export --name")),
    examples=(("set_export orders nightly --max-bytes 50000000000", "at most 50 GB are kept"),),
)
def set_export(context: Context) -> None:
    queue, name = context.operands
    body: dict[str, Any] = {"name": name}
    if "max-bytes" in context.line.given:
        body["max_bytes"] = context.line.number("max-bytes")
    context.info(f"Keeping settled messages of queue '{queue}' in vhost '{context.vhost}' for export '{name}' ...")
    context.change("PUT", _path(context, queue), body)


@_command(
    "Stops keeping a queue's settled messages for an export",
    "[--vhost <vhost>] <queue> <name>",
    (("<queue>", "name of the queue"), ("<name>", "the export's name, as in set_export or x-export")),
    examples=(("clear_export orders nightly", "messages that were kept for it are deleted"),),
)
def clear_export(context: Context) -> None:
    queue, name = context.operands
    context.info(f"Keeping nothing of queue '{queue}' in vhost '{context.vhost}' for export '{name}' any more ...")
    context.change("DELETE", f"{_path(context, queue)}/{quoted(name)}")


def _path(context: Context, queue: str) -> str:
    return f"/api/amqpd/exports/{quoted(context.vhost)}/{quoted(queue)}"
