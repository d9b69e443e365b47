"""Export job: batches of queues' logs, each exported once, even after kills.

A batch is a range of offsets of each selected queue. An engine (engine.py) reads it, and a target (targets.py) stores
it. The checkpoint (checkpoint.py) knows the finished batches. It does not name the engine, so another engine can
continue it. A rerun first completes or drops the batch that was in progress, then continues.

A queue with `x-export: NAME`, where NAME is this job's `name`, is read with its settled messages (a hold). After
each batch, `commit` reports the exported offsets to the broker, which then may delete those messages
(storage/acks). From other queues only messages that are not settled are read. Messages that consumers settle
between two runs are never exported, which is no loss.

`commit` calls a running broker's admin API: by the `url` of the source, or by the unix socket in the data
directory. If no broker runs there, it writes the file that the broker reads at its next start. A lost commit only
costs disk space: the next commit covers it.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from amqpd.storage.acks.retained import file_name, write_offset
from amqpd.storage.export import offsets
from amqpd.storage.export.checkpoint import ExportCheckpoint, Progress
from amqpd.storage.export.columns import BASE, COLUMNS, TIMES, check_columns
from amqpd.storage.export.engine import ExportEngine, ExportRows
from amqpd.storage.export.files import BrokerSource, BrokerUnreachable, LogSource, QueueName, SourceError
from amqpd.storage.export.object_store import is_object_store
from amqpd.storage.export.options import NoSuchQueue, parse
from amqpd.storage.export.payload import PayloadFormat, PayloadOptions
from amqpd.storage.export.payload_schema import fix_schema, given_format, known_schema
from amqpd.storage.export.plan import DataLoss, Snapshot
from amqpd.storage.export.shared_checkpoint import ExportLedger
from amqpd.storage.export.targets import Database, ExportTarget, FilePlace, Files, file_label, file_place

SOCKET = "amqpctl.sock"
TIMEOUT_S = 10.0


class CommitFailed(Exception):
    """The commit did not reach the broker; the text says why."""


def commit(source: LogSource, queue: QueueName, name: str, offset: int) -> None:
    """Report that offsets below `offset` of this incarnation are exported under `name`. Raises CommitFailed."""
    body = json.dumps({"name": name, "offset": offset, "id": queue.id}).encode()
    path = f"/api/amqpd/exports/{quote(queue.vhost, safe='')}/{quote(queue.queue, safe='')}"
    headers = {"Content-Type": "application/json"}
    try:
        if isinstance(source, BrokerSource):
            _post(source.connection(TIMEOUT_S), path, body, {**headers, **source.credentials()})
            return
        place = Path(queue.place)
        connection = _unix(place.parents[3] / SOCKET) if len(place.parents) > 3 else None
        if connection is not None:
            _post(connection, path, body, headers)
        else:
            write_offset(place, name, offset)
    except (OSError, http.client.HTTPException, SourceError) as error:
        raise CommitFailed(f"the broker did not get the commit: {str(error) or type(error).__name__}") from error


def _unix(path: Path) -> http.client.HTTPConnection | None:
    """Return a connection to the broker of a data directory; None if none runs."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(TIMEOUT_S)
    try:
        # Connect through an open directory: a socket's address has at most 107 bytes.
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            made.connect(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
    except OSError as error:
        made.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return None
        raise
    connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
    connection.sock = made
    return connection


def _post(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> None:
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise CommitFailed(f"the broker answered {answer.status}: {text[:200].decode('utf-8', 'replace')}")


logger = logging.getLogger(__name__)

POLL_S = 2.0
MIN_BATCH_BYTES: Final = 128 << 20
MAX_BATCH_AGE_S: Final = 60.0


class BadExport(ValueError):
    """The export is impossible; the text names the option."""


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export.

    Attributes:
        source: Path, or url with user and password, as for `format("amqp")`.
        queue: None: all queues of the vhost.
        start: earliest, an offset or a time. Used only in the first run.
        to_offset: The first offset that is not exported.
        batch_rows: None: the target's default.
        min_batch_bytes: With `follow`: bytes of log that a batch waits for; None: 128 MiB, for a database 0.
        max_batch_age_s: With `follow`: how long messages wait for more.
        payload: The column `payload`; None: no such column. An inferred schema is fixed by the first batch.
        take_over_s: Only for SharedExportJob: other processes may take over a batch of this one if it shows no life
            for so long; None: 30 s.
    """

    source: dict[str, str]
    vhost: str
    queue: str | None
    to: str
    checkpoint: str
    format: str = "parquet"
    start: str = "earliest"
    to_offset: int | None = None
    partition_by: tuple[str, ...] = ()
    where: str = ""
    columns: tuple[str, ...] = BASE
    table: str = "amqp_messages"
    name: str = "export"
    follow: bool = False
    batch_rows: int | None = None
    min_batch_bytes: int | None = None
    max_batch_age_s: float = MAX_BATCH_AGE_S
    fail_on_data_loss: bool = True
    payload: PayloadOptions | None = None
    take_over_s: float | None = None

    @property
    def is_database(self) -> bool:
        return "://" in self.to and not is_object_store(self.to) and self.format != "iceberg"

    @property
    def batch_bytes_min(self) -> int:
        if self.min_batch_bytes is not None:
            return self.min_batch_bytes
        return 0 if self.is_database else MIN_BATCH_BYTES

    def identity(self) -> dict[str, Any]:
        """Return the options that must be equal in all runs. Tables may get more columns in a later run."""
        found = {
            "vhost": self.vhost,
            "queue": self.queue,
            "to": named_target(self.to),
            "format": "" if self.is_database else self.format,
            "partition_by": list(self.partition_by),
            "where": self.where,
            "columns": list(self.columns),
            "table": self.table if self.is_database or self.format == "iceberg" else "",
            "payload": self.payload and self.payload.format,
        }
        if self.payload and self.payload.format != "json":
            found["schema_registry"] = "URL" if self.payload.registry else ""  # the registry may move
        if self.format in ("delta", "iceberg"):
            del found["columns"]
        return found


@dataclass
class ExportReport:
    """The result of one batch or of a whole run.

    Attributes:
        seconds: Total time.
        working_s: Time without the start of the engine.
        lag: Offsets that are not exported yet.
        rejected: Messages whose bodies do not fit `payload`; `rows` is without them.
        waiting_bytes: Bytes of log of `lag`, while a batch waits for more.
        wait_s: Longest time until this batch.
        root: Place of the files. A directory below it has those of rejected messages.
    """

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    working_s: float = 0.0
    lag: int = 0
    batch: int = 0
    rejected: int = 0
    waiting_bytes: int = 0
    wait_s: float = 0.0
    root: str = ""

    @classmethod
    def of(cls, batch: Progress, spans: Sequence[OffsetSpan] = (), took_s: float = 0.0) -> ExportReport:
        """Return the report of one batch."""
        lag = sum(span.end - span.stop for span in spans)
        return cls(1, batch.rows, batch.bytes, took_s, took_s, lag, batch.batch, batch.rejected)

    def add(self, batch: ExportReport) -> None:
        """Add the counts of a batch to those of a run."""
        self.batches += 1
        self.rows += batch.rows
        self.rejected += batch.rejected
        self.bytes += batch.bytes
        self.working_s += batch.working_s


@dataclass(frozen=True)
class OffsetSpan:
    """The range first <= offset < stop of a queue.

    Attributes:
        end: The end of its log.
        whole: Settled messages are read, too.
        log_bytes: Bytes of log from `first` on; 0 without `follow`.
    """

    queue: QueueName
    first: int
    stop: int
    end: int
    whole: bool
    log_bytes: int = 0


def key_of(span: OffsetSpan) -> str:
    """Return the key of a span's queue in positions."""
    return offsets.key_of(span.queue.vhost, span.queue.queue)


def positions_after(spans: list[OffsetSpan]) -> dict[str, dict[str, Any]]:
    """Return the positions after a batch, as a checkpoint has them."""
    return {key_of(span): {"id": span.queue.id, "offset": span.stop} for span in spans}


class BatchTrigger:
    """Decides when an export with `follow` begins a batch: many small batches would make many small files.

    A batch begins when enough bytes of log wait, when its first message has waited long enough, or when the batch is as
    large as it may be. What waits at the start of a run begins at once, so restarts do not delay messages for ever.

    Args:
        bytes_min: Bytes of log that are enough.
        age_max_s: Longest time from the first look that saw waiting messages to the batch.
    """

    def __init__(self, bytes_min: int, age_max_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_min = bytes_min
        self._age_max_s = age_max_s
        self._clock = clock
        self._due_at: float | None = clock()

    def wait_s(self, waiting_bytes: int, *, is_full: bool) -> float:
        """Return the longest time until the batch; 0: it begins now.

        Args:
            waiting_bytes: Bytes of log from the first waiting message on.
            is_full: More messages would not be part of the batch.
        """
        now = self._clock()
        if self._due_at is None:
            self._due_at = now + self._age_max_s
        if is_full or waiting_bytes >= self._bytes_min:
            return 0.0
        return max(0.0, self._due_at - now)

    def reset(self) -> None:
        """Account for a look without waiting messages, or for a batch."""
        self._due_at = None


class ExportJob:
    """One run of an export, up to the last message at present; with `follow` until it is stopped.

    All methods raise BadExport, BadOption, NoSuchQueue, SourceError, DataLoss, CheckpointError, TargetError,
    OSError, and the engine's exceptions.

    Args:
        engine: Reads the rows. The job starts it when there is something to export, and closes it.
        say: Called with an ExportReport after every batch.
        stopped: Called between batches; True ends the run.
        begins: Called with an ExportReport before every batch: its number, and the offsets that wait.
        waits: Called with an ExportReport every few seconds while a batch waits for more messages.
    """

    def __init__(
        self,
        options: ExportOptions,
        engine: ExportEngine,
        say: Callable[[ExportReport], None],
        stopped: Callable[[], bool],
        begins: Callable[[ExportReport], None] = lambda report: None,
        waits: Callable[[ExportReport], None] = lambda report: None,
    ) -> None:
        self.options = options
        self.engine = engine
        self.say = say
        self.stopped = stopped
        self._begins = begins
        self._waits = waits
        self._check()
        given = {**options.source, "vhost": options.vhost, **self._start(options.start)}
        given["failOnDataLoss"] = str(options.fail_on_data_loss).lower()
        self._read = {**given, "queuePattern": ".*" if options.queue is None else re.escape(options.queue)}
        self._parsed = parse({"startingOffsets": "earliest", **self._read})
        self._is_checked = False
        self._lost: set[str] = set()  # ids of queues with a warning
        self._payload: PayloadFormat | None = None

    def _check(self) -> None:
        options = self.options
        check_columns(options.columns)
        if len(set(options.columns)) < len(options.columns):
            raise BadExport(f"--columns {','.join(options.columns)}: a name is there twice")
        for name in options.partition_by:
            if name not in TIMES and name not in options.columns:
                raise BadExport(f"--partition-by {name}: expected date, hour or one of {', '.join(options.columns)}")
            if name not in TIMES and COLUMNS[name] not in ("string", "bigint"):
                raise BadExport(f"--partition-by {name}: it is a {COLUMNS[name].partition('<')[0]}")
        if len(set(options.partition_by)) < len(options.partition_by):
            raise BadExport(f"--partition-by {','.join(options.partition_by)}: a name is there twice")
        if options.partition_by and options.is_database:
            raise BadExport("--partition-by: a database's table has no directories")
        if options.partition_by and set(options.columns) <= set(options.partition_by):
            raise BadExport("--partition-by: no column would be left for the files")
        by_time = any(name in TIMES for name in options.partition_by)
        if options.format == "iceberg" and by_time and "timestamp" not in options.columns:
            raise BadExport("--partition-by: an Iceberg table needs the column timestamp for date and hour")
        if options.format in ("delta", "iceberg") and "://" not in options.to:
            path = str(Path(options.to).absolute())
            if re.search("[#?%]", path):
                raise BadExport(f"--to {path}: the path of a table cannot have #, ? or %: choose another directory")
        if options.payload and options.is_database:
            raise BadExport(
                "--payload: not for databases: export to files or to an Iceberg or Delta table, or read the column "
                "value in the database, as JSON for instance"
            )
        if options.payload and options.payload.schema:
            given_format(options.payload)
        elif options.payload and options.queue is None:
            raise BadExport("--payload: queues may have different fields; give --queue or a --payload-schema")
        if options.to_offset is not None and options.queue is None:
            raise BadExport("--to-offset needs one --queue")

    @staticmethod
    def _start(text: str) -> dict[str, str]:
        if text == "earliest" or text.isdecimal():
            return {"startingOffsets": text}
        return {"startingTimestamp": text, "startingOffsetsByTimestampStrategy": "latest"}

    def run(self) -> ExportReport:
        """Export all messages; with `follow` until `stopped`. Return the report of the whole run.

        If a signal has ended the engine's processes, too, the current batch is left to the next run; that is no
        error.
        """
        options = self.options
        total = ExportReport()
        started = time.monotonic()
        if not Path(options.checkpoint).exists():
            self._require_queue()  # no checkpoint is created for an export that cannot begin
            if options.queue is None and not self._parsed.queues():
                logger.warning("vhost '%s' has no durable queue with messages", options.vhost)
        with ExitStack() as stack:
            ledger = self._open_checkpoint()
            stack.callback(ledger.close)
            target = self._target(ledger)
            stack.callback(target.close)
            self._prepare(ledger, target, total)
            if ledger.state.batch and options.payload:
                is_table = options.format in ("delta", "iceberg")
                self._payload = known_schema(options.payload, ledger, may_add_fields=is_table)
            try:
                is_reachable = self._run_batches(ledger, target, total)
            except Exception as error:
                if not (self.stopped() and self.engine.has_ended(error)):
                    raise
                logger.warning("the engine was ended during a batch; a rerun exports it again")
                is_reachable = True
            finally:
                self.engine.close()
            if is_reachable:
                try:
                    total.lag = sum(span.end - span.first for span in self._spans(ledger, None))
                    self._commit_holds(ledger)
                except BrokerUnreachable as error:
                    if not self.stopped():
                        raise
                    logger.warning("%s; what waits is not known", error)  # the machine stops both
            total.batch = ledger.state.batch
            total.root = target.root(options.to)
        total.seconds = time.monotonic() - started
        return total

    def _run_batches(self, ledger: ExportLedger, target: ExportTarget, total: ExportReport) -> bool:
        """Export batches until the run ends. With `follow`, wait for a broker that does not answer.

        Returns: False if the run was stopped during such a wait.
        """
        while True:
            try:
                for report in self._batches(ledger, target):
                    total.add(report)
                    total.lag = report.lag
                    self.say(report)
                return True
            except BrokerUnreachable as error:
                if not self.options.follow:
                    raise
                logger.warning("%s; the export continues when it answers", error)
                if not self._wait_for_broker():
                    return False
                logger.warning("the broker answers again")
                self._prepare(ledger, target, total)

    def _wait_for_broker(self) -> bool:
        """Wait until the broker answers. Return False if the run is stopped first."""
        while not self.stopped():
            self._wait(POLL_S)
            try:
                self._parsed.queues()
            except BrokerUnreachable:
                continue
            return True
        return False

    def _open_checkpoint(self) -> ExportLedger:
        return ExportCheckpoint(Path(self.options.checkpoint), self.options.identity())

    def _prepare(self, ledger: ExportLedger, target: ExportTarget, total: ExportReport) -> None:
        """Resolve the batch of the last run. Before the first rows, check that the target has no other export."""
        assert isinstance(ledger, ExportCheckpoint)
        self._resolve_last_batch(ledger, target, total)
        if ledger.is_first:
            target.check_fresh()

    def _require_queue(self) -> None:
        options = self.options
        if not self._parsed.queues() and options.queue is not None:
            unseen = self._parsed.source.unlisted
            raise NoSuchQueue(f"no durable queue '{options.queue}' with messages in vhost '{options.vhost}'{unseen}")

    def _target(self, ledger: ExportLedger) -> ExportTarget:
        options = self.options
        if options.is_database:
            return Database(options.to, options.table, [(name, COLUMNS[name]) for name in options.columns], ledger)
        partition_by = list(options.partition_by)
        if options.format == "delta":
            from amqpd.storage.export.delta import Delta

            return Delta(options.to, partition_by, self._prefix(), ledger)
        if options.format == "iceberg":
            from amqpd.storage.export.iceberg import Iceberg

            return Iceberg(options.to, options.table, partition_by, self._prefix(), ledger)
        return Files(self._place(), options.format, partition_by, self._prefix(), ledger)

    def _place(self) -> FilePlace:
        return file_place(self.options.to)

    def _resolve_last_batch(self, ledger: ExportCheckpoint, target: ExportTarget, total: ExportReport) -> None:
        """Complete or drop the batch that was in progress when the last run ended."""
        under_way = ledger.state.next
        if under_way is None:
            return
        if target.has(under_way):
            total.add(ExportReport.of(under_way))
            ledger.commit()
        else:
            ledger.state.next = None
            ledger.save()

    def _prefix(self) -> str:
        options = self.options
        return file_label(options.queue if options.queue is not None else f"vhost-{options.vhost}")

    # -- batches

    def _batches(self, ledger: ExportLedger, target: ExportTarget) -> Iterator[ExportReport]:
        limit = self.options.batch_rows or target.batch_rows
        trigger = BatchTrigger(self.options.batch_bytes_min, self.options.max_batch_age_s)
        while not self.stopped():
            spans = self._spans(ledger, limit)
            if not any(span.stop > span.first for span in spans):
                if not self.options.follow or self._is_done(spans):
                    return
                trigger.reset()
                self._wait(POLL_S)
                continue
            if not self._begins_now(trigger, spans, limit):
                continue
            self.engine.start()  # may take seconds; the user may stop the run meanwhile
            if not self.stopped():
                yield self._batch(ledger, target, spans)

    def _begin(self, ledger: ExportLedger, spans: list[OffsetSpan], label: str) -> Progress:
        """Begin a batch in the checkpoint."""
        assert isinstance(ledger, ExportCheckpoint)
        return ledger.begin(positions_after(spans))

    def _is_done(self, spans: list[OffsetSpan]) -> bool:
        to_offset = self.options.to_offset
        return to_offset is not None and bool(spans) and spans[0].first >= to_offset

    def _begins_now(self, trigger: BatchTrigger, spans: list[OffsetSpan], limit: int) -> bool:
        """Return whether a batch begins. If not, report what it waits for, and wait a moment."""
        if self.options.follow:
            lag = sum(span.end - span.first for span in spans)
            waiting_bytes = sum(span.log_bytes for span in spans)
            to_offset = self.options.to_offset
            has_all = to_offset is not None and spans[0].end >= to_offset
            wait_s = trigger.wait_s(waiting_bytes, is_full=has_all or lag >= limit)
            if wait_s:
                self._waits(ExportReport(lag=lag, waiting_bytes=waiting_bytes, wait_s=wait_s))
                self._wait(min(POLL_S, wait_s))
                return False
        trigger.reset()
        return True

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stopped():
            time.sleep(min(0.1, seconds))

    def _batch(
        self, ledger: ExportLedger, target: ExportTarget, spans: list[OffsetSpan], progress: Progress | None = None,
        label: str = "",
    ) -> ExportReport:  # fmt: skip
        """Export a batch.

        Args:
            progress: The batch, if another process has begun it; else it begins here.
            label: Of that batch.
        """
        rows = self._rows(spans)
        if self.options.payload:
            if self._payload is None:
                self._payload = fix_schema(self.options.payload, rows, ledger)
            rows = replace(rows, payload=self._payload)
        if not self._is_checked:
            self.engine.check(rows)  # a wrong condition ends the run before the checkpoint is created
            self._is_checked = True
        began = time.monotonic()
        if progress is None:
            label = f"{self._prefix()}-batch-{ledger.state.batch + 1:08d}"
            if self.options.queue is not None:
                label = f"{self._prefix()}-{spans[0].first:020d}-{spans[0].stop:020d}"
            progress = self._begin(ledger, spans, label)
        self._begins(ExportReport(batch=progress.batch, lag=sum(span.end - span.first for span in spans)))
        target.write(self.engine, rows, progress, label)
        ledger.commit()
        self._commit_holds(ledger, spans)
        took = time.monotonic() - began
        return ExportReport.of(progress, spans, took)

    def _spans(self, ledger: ExportLedger, limit: int | None) -> list[OffsetSpan]:
        """Return the spans to export now. Each queue gets its share of `limit` by its lag. Raises DataLoss."""
        known = ledger.state.position
        result: list[OffsetSpan] = []
        with ExitStack() as stack:
            snapshots = offsets.snapshots(self._parsed, stack)
            if not snapshots:
                self._require_queue()
            if ledger.state.batch == 0 and not known:
                known = offsets.initial(self._parsed)
            for key, snapshot in snapshots.items():
                first = self._first_offset(snapshot, known.get(key))
                end = snapshot.end
                if self.options.to_offset is not None:
                    end = min(end, self.options.to_offset)
                whole = file_name(self.options.name) in snapshot.sizes
                end = max(first, end)
                log_bytes = snapshot.log_bytes(first) if self.options.follow and end > first else 0
                offsets.close_if_many(snapshot.files, len(snapshots))
                result.append(OffsetSpan(snapshot.queue, first, end, end, whole, log_bytes))
        if limit is None:
            return result
        counts = offsets.shares([span.end - span.first for span in result], limit)
        return [replace(span, stop=span.first + count) for span, count in zip(result, counts, strict=True)]

    def _first_offset(self, snapshot: Snapshot, before: dict[str, Any] | None) -> int:
        if before is None:
            return snapshot.start
        offset, is_same = int(before["offset"]), before["id"] == snapshot.queue.id
        if is_same and offset <= snapshot.end:
            return offset
        text = f"queue '{snapshot.queue.queue}' was deleted and declared again since offset {offset}"
        if is_same:  # a backup was restored: the next messages have the offsets of exported ones
            text = f"the log of queue '{snapshot.queue.queue}' ends at {snapshot.end}, before offset {offset}"
        if self.options.fail_on_data_loss:
            raise DataLoss(text)
        if snapshot.queue.id not in self._lost:
            self._lost.add(snapshot.queue.id)
            logger.warning("lost: %s", text)
        return offset if is_same else snapshot.start

    # -- rows

    def _rows(self, spans: list[OffsetSpan]) -> ExportRows:
        options = self.options
        reads = []
        for whole in (False, True):
            wanted = [span for span in spans if span.whole == whole and span.stop > span.first]
            if wanted:
                reads.append(self._read_options(wanted, whole))
        # With `follow` one file for so many bytes, not one for each core.
        bytes_min = options.batch_bytes_min if options.follow else 0
        return ExportRows(tuple(reads), options.columns, options.partition_by, options.where, task_bytes_min=bytes_min)

    def _read_options(self, spans: list[OffsetSpan], whole: bool) -> dict[str, str]:
        options = self.options
        read = {name: value for name, value in self._read.items() if not name.startswith("starting")}
        read["queuePattern"] = "|".join(re.escape(span.queue.queue) for span in spans)
        read["startingOffsets"] = json.dumps({span.queue.queue: span.first for span in spans})
        read["endingOffsets"] = json.dumps({span.queue.queue: span.stop for span in spans})
        read["includeSettled"] = str(whole).lower()
        words = set(re.findall(r"\w+", options.where)) if options.where else set()
        if any(name in TIMES for name in options.partition_by):
            words.add("timestamp")
        read["columns"] = ",".join(name for name in COLUMNS if name in options.columns or name in words)
        return read

    # -- holds

    def _commit_holds(self, ledger: ExportLedger, spans: list[OffsetSpan] | None = None) -> None:
        """Commit the exported offsets of queues that have a hold for this export."""
        for span in self._spans(ledger, None) if spans is None else spans:
            if not span.whole:
                continue
            offset = ledger.exported_offset(key_of(span), span.queue.id)
            try:
                commit(self._parsed.source, span.queue, self.options.name, offset)
            except CommitFailed as error:
                logger.warning("queue '%s': %s", span.queue.queue, error)


def named_target(to: str) -> str:
    """Return `--to` in one spelling, without a password."""
    if is_object_store(to):
        return to.rstrip("/")
    return without_password(to) if "://" in to else str(Path(to).absolute())


def without_password(url: str) -> str:
    """Return a database's URL without user and password, for display and storage; others unchanged."""
    scheme, separator, rest = url.partition("://")
    if is_object_store(url):
        return url  # abfs://container@account
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else url
