"""Import job: messages of files to a broker, each published once.

    <checkpoint>/lock             locked while a job runs: one at a time
    <checkpoint>/state.json       ImportState, replaced as a whole
    <checkpoint>/rejected.json    messages that reached no queue, or were refused, as JSON lines that can be imported
    <checkpoint>/refused-N.json   messages that were refused when a run ended; the next run sends them again, at the end

The job publishes with confirms. Every second it waits for all confirms and saves its position. A run after a kill
publishes the messages behind this position again; queues drop them as copies, because they have the numbers of an
idempotent producer (docs/deduplication.md): message n has epoch n >> 31 and sequence n mod 2^31. The headers
`x-producer-id`, `x-producer-epoch` and `x-sequence` stay on the message.

A refused message cannot be sent again with its number, because queues may have higher ones already. So it is written to
a file, and the position behind it is saved at once.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from amqpd.protocol import properties as p
from amqpd.storage.export.checkpoint import lock_checkpoint, write_file
from amqpd.storage.export.file_compaction import MERGED
from amqpd.storage.export.import_files import BadFile, find_files, read_rows
from amqpd.storage.export.import_publisher import ImportPublisher, OutgoingMessage
from amqpd.storage.export.message_rows import BadRow, MessageRows, RowOptions
from amqpd.storage.export.publisher import PublishError, SinkTarget

VERSION: Final = 1
SAVE_S: Final = 1.0
SEQUENCE_BITS: Final = 31
PRODUCER_ID: Final = "x-producer-id"
EPOCH: Final = "x-producer-epoch"
SEQUENCE: Final = "x-sequence"
NUMBERS: Final = (PRODUCER_ID, EPOCH, SEQUENCE)
_TEMPLATES_MAX: Final = 1000


class BadImport(Exception):
    """The import cannot continue; the text says why and what to do."""


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import.

    Attributes:
        paths: Files, and directories with files.
        kind: parquet, json or csv; "": as the files' suffixes say.
        exchange: For all messages; None: their own.
        routing_key: For all messages; None: their own.
        numbered: Publish as an idempotent producer. False: after a kill some messages may arrive twice.
        on_refused: stop: end the run; the next one sends the message again. skip: count it and continue. save: write
            it to rejected.json and continue.
    """

    paths: tuple[Path, ...]
    target: SinkTarget
    checkpoint: Path
    kind: str = ""
    exchange: str | None = None
    routing_key: str | None = None
    numbered: bool = True
    on_refused: str = "stop"

    def identity(self) -> dict[str, Any]:
        """Return what must be equal in all runs."""
        target = self.target
        return {
            "to": f"{target.host}:{target.port}",
            "vhost": target.vhost,
            "exchange": self.exchange,
            "routing key": self.routing_key,
            "numbered": self.numbered,
        }


@dataclass
class ImportState:
    """The saved state of an import.

    Attributes:
        producer: Id of the idempotent producer.
        files: [path, size] of all files, in order.
        file: Index of the file that is being read.
        row: Number of its rows that are published and confirmed.
        messages: Number of all of them.
        rejected: Number of those that are in rejected.json.
        rejected_bytes: Size of rejected.json.
    """

    identity: dict[str, Any]
    producer: int
    files: list[list[Any]] = field(default_factory=list)
    file: int = 0
    row: int = 0
    messages: int = 0
    rejected: int = 0
    rejected_bytes: int = 0


@dataclass
class MessageImportReport:
    """The result of a run, or of its part so far.

    Attributes:
        share: Part of all files, 0 to 1.
        rejected: Messages of this run in rejected.json: they reached no queue, or were refused.
        rejected_before: The same of earlier runs.
        refused: Messages that the broker refused in this run.
        files: Files that this run has finished.
        waiting: Files that are not finished, because the run was stopped.
    """

    messages: int = 0
    rejected: int = 0
    rejected_before: int = 0
    refused: int = 0
    files: int = 0
    waiting: int = 0
    seconds: float = 0.0
    share: float = 0.0


class ImportLedger:
    """An open checkpoint of an import. Raises BadImport, CheckpointError, OSError."""

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        self.directory = directory
        self._lock = lock_checkpoint(directory, "import")
        try:
            self.state = self._read(identity)
            self.rejects: BinaryIO = (directory / "rejected.json").open("ab")
            # A user may have moved the file, or deleted lines that are imported: `truncate` would fill it with zeros.
            self.rejects.truncate(min(self.state.rejected_bytes, self.rejects.tell()))
            self.rejects.seek(0, os.SEEK_END)  # `truncate` leaves the position behind the new end
            self._refused: BinaryIO | None = None
        except BaseException:
            os.close(self._lock)
            raise

    def _read(self, identity: dict[str, Any]) -> ImportState:
        path = self.directory / "state.json"
        if not path.exists():
            return ImportState(identity, secrets.randbits(63))
        try:
            found = json.loads(path.read_bytes())
            version = found.pop("version")
            state = ImportState(**found)
        except (ValueError, TypeError, KeyError):
            raise BadImport(f"{path} is damaged, or of an export: use another --checkpoint") from None
        if version != VERSION:
            raise BadImport(f"the checkpoint {self.directory} was written by another version")
        for name, value in identity.items():
            if state.identity.get(name) != value:
                raise BadImport(
                    f"the checkpoint {self.directory} belongs to an import with {name} "
                    f"{state.identity.get(name)!r}, not {value!r}: use another --checkpoint"
                )
        return state

    def save(self) -> None:
        """Write the state and sync it to disk."""
        if self._refused is not None:
            self._refused.flush()
            os.fsync(self._refused.fileno())
            self.state.files.append([self._refused.name, self._refused.tell()])
            self._refused.close()
            self._refused = None
        self.rejects.flush()
        os.fsync(self.rejects.fileno())
        self.state.rejected_bytes = self.rejects.tell()
        content = {"version": VERSION, **asdict(self.state)}
        write_file(self.directory / "state.json", json.dumps(content, indent=1).encode())

    def add_files(self, paths: Sequence[Path]) -> None:
        """Add the files that are new. Raises BadImport if another one has changed."""
        state = self.state
        for path, size in state.files[state.file :]:
            found = Path(path).stat().st_size if Path(path).exists() else None
            if found != size:
                now = "is missing" if found is None else f"has {found} bytes, before {size}"
                raise BadImport(f"{path} {now}: an import continues only with the same files")
        known = dict(state.files)
        for new in paths:
            path, size = str(new.absolute()), new.stat().st_size
            if path not in known:
                if MERGED.fullmatch(new.name):
                    self._check_merged(new)
                state.files.append([path, size])
                known[path] = size
            elif known[path] != size:
                raise BadImport(
                    f"{path} has {size} bytes now, and had {known[path]} when it was imported: use another "
                    "--checkpoint, which imports the whole file"
                )

    def _check_merged(self, path: Path) -> None:
        """Raise BadImport if imported files of the same directory are gone: a compaction has merged them."""
        directory = path.absolute().parent
        for each in (Path(name) for name, _ in self.state.files):
            if each.parent == directory and not each.exists():
                raise BadImport(
                    f"compact_export has merged {each}, which is imported, into {path}, so messages would arrive "
                    "twice: name the files that are new, or use another --checkpoint, which imports all files again"
                )

    def reject(self, message: OutgoingMessage, reason: str) -> None:
        """Write a message to rejected.json."""
        self.rejects.write(_line(message, reason))
        self.state.rejected += 1

    def send_again(self, message: OutgoingMessage, reason: str) -> None:
        """Add a message to a new file, which becomes the last one of the import with the next `save`."""
        if self._refused is None:
            path = (self.directory / f"refused-{len(self.state.files)}.json").absolute()
            self._refused = path.open("wb")
        self._refused.write(_line(message, reason))

    def close(self) -> None:
        if self._refused is not None:
            self._refused.close()
        self.rejects.close()
        os.close(self._lock)


def _line(message: OutgoingMessage, reason: str) -> bytes:
    """Return a message as a line of JSON that can be imported, without the import's numbers."""
    row: dict[str, str] = {"exchange": message.exchange, "routing_key": message.routing_key}
    try:
        row["value"] = message.body.decode()
    except UnicodeDecodeError:
        row["value_base64"] = b64encode(message.body).decode()
    row["raw_properties"] = b64encode(p.without_headers(message.properties, NUMBERS)).decode()
    row["reason"] = reason
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


class NumberedProperties:
    """Adds a producer's numbers to properties. Cost: 0.2 us for properties that came recently, else 5 us."""

    def __init__(self, producer: int) -> None:
        self._producer = producer
        self._templates: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}

    def of(self, properties: bytes, number: int) -> bytes:
        """Return the properties of message `number`. Its headers keep their bytes. Raises CodecError."""
        epoch = number >> SEQUENCE_BITS
        template = self._templates.get((epoch, properties))
        if template is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            numbers = {PRODUCER_ID: self._producer, EPOCH: epoch, SEQUENCE: 0}
            made = p.with_headers(p.without_headers(properties, NUMBERS), numbers)
            _, end = p.headers_span(made, 0, len(made))
            template = made[: end - 4], made[end:]  # the sequence is the table's last value, of 32 bits
            self._templates[epoch, properties] = template
        sequence = number & (1 << SEQUENCE_BITS) - 1
        return template[0] + sequence.to_bytes(4, "big") + template[1]


class ImportJob:
    """One run of an import, up to the last row of the last file.

    Args:
        say: Called with an MessageImportReport some times a second.
        stopped: True ends the run after the next rows.
    """

    def __init__(
        self, options: ImportOptions, say: Callable[[MessageImportReport], None], stopped: Callable[[], bool]
    ) -> None:
        self._options = options
        self._say = say
        self._stopped = stopped
        self._saved = 0.0
        self._is_refusal_saved = True

    def run(self) -> MessageImportReport:
        """Import all rows that are not imported yet. Raises BadImport, BadFile, PublishError, OSError."""
        options = self._options
        started = time.monotonic()
        paths = [file for path in options.paths for file in find_files(path, options.kind)]
        with ExitStack() as stack:
            ledger = ImportLedger(options.checkpoint, options.identity())
            stack.callback(ledger.close)
            state = ledger.state
            ledger.add_files(paths)
            if not state.files:
                raise BadFile(f"no files in {', '.join(map(str, options.paths))}")
            report = MessageImportReport(rejected_before=state.rejected)
            if state.file < len(state.files):
                ledger.save()  # the producer's id must be safe before its first message
                continues = options.on_refused != "stop"
                refuse = partial(self._refuse, ledger, report)
                publisher = ImportPublisher(options.target, ledger.reject, refuse, continues=continues)
                try:
                    self._publish(ledger, publisher, report)
                except BaseException:
                    publisher.abandon()
                    raise
                publisher.close()
            report.rejected = state.rejected - report.rejected_before
            report.waiting = len(state.files) - state.file
        report.seconds = time.monotonic() - started
        return report

    def _refuse(self, ledger: ImportLedger, report: MessageImportReport, message: OutgoingMessage, reason: str) -> None:
        report.refused += 1
        self._is_refusal_saved = False
        if self._options.on_refused == "stop":
            ledger.send_again(message, reason)
        elif self._options.on_refused == "save":
            ledger.reject(message, reason)

    def _publish(self, ledger: ImportLedger, publisher: ImportPublisher, report: MessageImportReport) -> None:
        state = ledger.state
        sizes = [size for _, size in state.files]
        rows = MessageRows(RowOptions(exchange=self._options.exchange, routing_key=self._options.routing_key))
        numbered = NumberedProperties(state.producer) if self._options.numbered else None
        self._saved = time.monotonic()
        while state.file < len(state.files) and not self._stopped():
            path = Path(state.files[state.file][0])
            done = sum(sizes[: state.file])
            kind = "json" if path.parent == ledger.directory.absolute() else self._options.kind  # refused-N.json
            for columns, count, share in read_rows(path, kind, state.row):
                self._check_route(path, columns)
                self._publish_rows(path, rows.of_columns(columns, count), numbered, ledger, publisher)
                report.messages += count
                report.share = (done + share * sizes[state.file]) / max(1, sum(sizes))
                self._say(report)
                if self._stopped():
                    self._save(ledger, publisher)
                    return
                if time.monotonic() - self._saved >= SAVE_S:
                    self._save(ledger, publisher)
            publisher.finish()
            state.file += 1
            state.row = 0
            report.files += 1
            self._save(ledger, publisher)
            sizes = [size for _, size in state.files]

    def _check_route(self, path: Path, columns: Container[str]) -> None:
        options = self._options
        is_given = options.exchange is not None or options.routing_key is not None
        if not is_given and "exchange" not in columns and "routing_key" not in columns:
            raise BadImport(
                f"{path} has neither a column exchange nor routing_key: say with --to-queue, or --to-exchange and "
                "--routing-key, where its messages go"
            )

    def _publish_rows(
        self, path: Path, messages: Any, numbered: NumberedProperties | None, ledger: ImportLedger,
        publisher: ImportPublisher,
    ) -> None:  # fmt: skip
        state = ledger.state
        try:
            for exchange, key, properties, body in messages:
                if numbered is not None:
                    if state.messages & (1 << SEQUENCE_BITS) - 1 == 0:
                        self._save(ledger, publisher)  # a queue refuses the last epoch after the first of the next one
                    properties = numbered.of(properties, state.messages)
                publisher.publish(OutgoingMessage(exchange, key, properties, body))
                state.messages += 1
                state.row += 1
                if not self._is_refusal_saved:
                    self._save(ledger, publisher)
        except (BadRow, ValueError) as error:
            self._save(ledger, publisher)
            raise BadFile(f"{path}, row {state.row + 1}: {error}") from None

    def _save(self, ledger: ImportLedger, publisher: ImportPublisher) -> None:
        """Wait until all messages are confirmed, then save the position. Raises PublishError if one was refused and the
        run has to stop.
        """
        publisher.finish()
        ledger.save()
        self._saved = time.monotonic()
        if not self._is_refusal_saved and self._options.on_refused == "stop":
            raise PublishError(
                "the broker refused messages (basic.nack). They are sent again at the end of the files; --on-refused "
                "save or skip continues without them"
            )
        self._is_refusal_saved = True
