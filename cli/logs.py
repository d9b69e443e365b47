"""Log inspection without a broker: `dump_log` prints the contents of log files, `verify_log` checks them.

Both read a data directory, also while a broker uses it, and change nothing. A log is named by its files or by its
queue, which is looked up in the data directory. `amqpd.storage.log_inspect` finds entries and damage; this module
writes them as text, one line per entry, or as one JSON array with one object per line. Entries are written one by
one, so a log of gigabytes needs no memory.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from amqpd.cli.command import Context, command
from amqpd.cli.errors import DATA, Failure, UsageError
from amqpd.cli.formatters import compact
from amqpd.cli.terminal import visible

if TYPE_CHECKING:
    from amqpd.storage.log.record import Record
    from amqpd.storage.log_inspect import Event, InspectedBatch, QueueReport

BODY_SHOWN: Final = 64
"""Bytes of a body that text output shows; JSON has the whole body."""


@command(
    "Logs",
    "Prints the contents of a queue's log files: batches, records, indexes, settlements, checkpoints",
    "[--vhost <vhost>] <queue or path> [--deep] [--offsets <first>-<last>]",
    (
        (
            "<queue or path>",
            "a queue, a log file, or the directory of a queue or a broker, also in use. Damage: exit code 65",
        ),
    ),
    examples=(
        ("dump_log -p shop orders", "all files of a queue, without records"),
        ("dump_log --deep --offsets 100-199 00000000000000000000.log", "100 messages with their properties"),
        ("dump_log amqpd-data --deep --formatter json", "everything, as one JSON array with one object per line"),
    ),
)
def dump_log(context: Context) -> None:
    _text_or_json(context)
    offsets = _offsets(context.line.given.get("offsets", ""))
    deep = "deep" in context.line.given
    damaged = 0
    with _Output(context) as output:
        for path in _files(_place(context, context.operands[0])):
            damaged += _dump_file(output, path, deep, offsets)
    if damaged:
        raise Failure(DATA, f"{damaged} damaged {'place' if damaged == 1 else 'places'}")


@command(
    "Logs",
    "Checks all log files of a data directory and reports damage",
    "[--vhost <vhost>] [<queue or directory>]",
    (
        (
            "<queue or directory>",
            "a queue, its directory, or a data directory (default --data-dir), also in use. Damage: exit code 65",
        ),
    ),
    examples=(
        ("verify_log -p shop orders", "the files of a queue"),
        ("verify_log amqpd-data", "a line for each queue and each damaged place"),
        ("-q verify_log amqpd-data", "only damaged places"),
    ),
)
def verify_log(context: Context) -> None:
    from amqpd.storage.filesystem import FileSystem
    from amqpd.storage.log_inspect import check_queue, queue_directories

    _text_or_json(context)
    filesystem = FileSystem()
    place = _place(context, context.operands[0]) if context.operands else Path(_data_dir(context))
    data_dir = place.absolute()
    if not data_dir.is_dir():
        raise Failure(DATA, f"there is no directory {data_dir}")
    directories = [str(data_dir)] if _is_queue(data_dir) else queue_directories(filesystem, str(data_dir))
    damaged = 0
    with _Output(context) as output:
        for directory in directories:
            try:
                report = check_queue(filesystem, directory)
            except OSError as error:
                raise Failure(DATA, f"{directory}: {error}") from None
            damaged += len(report.bad)
            output.write(
                _report_text(report, context.line.quiet),
                {**vars(report), "damage": [each._asdict() for each in report.damage]},
            )
    if damaged:
        raise Failure(DATA, f"{damaged} damaged {'place' if damaged == 1 else 'places'}")
    context.info(f"{len(directories)} queues: no damage")


def _data_dir(context: Context) -> str:
    """Return the data directory. Raises: Failure if the broker is named by a URI."""
    if not context.client.is_local:
        raise Failure(DATA, "logs can be read only on the broker's machine, with --data-dir")
    return context.client.data_dir


def _place(context: Context, word: str) -> Path:
    """Return the directory or file that a word names: a path, or a queue. With -p it is always a queue.

    Cost: one small file per durable queue is read until the queue is found. Raises: Failure.
    """
    from amqpd.storage.filesystem import FileSystem
    from amqpd.storage.log_inspect import queue_directories

    if "vhost" not in context.line.given and Path(word).exists():
        return Path(word)
    data_dir = _data_dir(context)
    if not Path(data_dir).is_dir():
        raise Failure(DATA, f"there is no {word}, nor a data directory {data_dir} with a queue of that name")
    for directory in [*queue_directories(FileSystem(), data_dir), f"{data_dir}/audit"]:
        try:
            described = json.loads(Path(directory, "queue.json").read_text("utf-8"))
        except (OSError, ValueError):
            continue  # being deleted, or damaged: verify_log of the data directory reports it
        if isinstance(described, dict) and (described.get("queue"), described.get("vhost")) == (word, context.vhost):
            return Path(directory)
    raise Failure(
        DATA,
        f"there is no {word}, and no log of a queue '{word}' of vhost '{context.vhost}' in {data_dir} "
        "(a queue that is not durable has none)",
    )


class _Output:
    """Output of entries one by one: lines, or the elements of one JSON array."""

    def __init__(self, context: Context) -> None:
        self._out = context.out
        self._json = context.line.formatter == "json"
        self._written = 0

    def __enter__(self) -> Self:
        if self._json:
            self._out.write("[")
        return self

    def __exit__(self, *error: object) -> None:
        if self._json:
            self._out.write("\n]\n")

    def write(self, text: str, element: dict[str, Any]) -> None:
        if self._json:
            self._out.write(("," if self._written else "") + "\n" + compact(element))
        elif text:
            self._out.write(text + "\n")
        self._written += 1


def _text_or_json(context: Context) -> None:
    if context.line.formatter not in {"table", "json"}:
        raise UsageError(f"Invalid options for this command:\n--formatter : {context.line.formatter}")


def _offsets(text: str) -> tuple[int, int] | None:
    """Parse `A-B`, `A-`, `-B` or `A`."""
    if not text:
        return None
    first, dash, last = text.partition("-")
    if not all(part.isascii() and part.isdigit() for part in (first, last) if part) or not (first or last):
        raise UsageError(f"Invalid options for this command:\n--offsets : {text}")
    low = int(first or "0")
    if not dash:
        return low, low
    high = int(last) if last else 1 << 62
    if high < low:
        raise UsageError(f"Invalid options for this command:\n--offsets : {text}")
    return low, high


def _is_queue(path: Path) -> bool:
    return any(each.name == "queue.json" or each.suffix == ".log" for each in path.iterdir())


def _files(path: Path) -> list[str]:
    """Return the files to dump: one file, or those of a queue or of all queues in a data directory."""
    from amqpd.storage.filesystem import FileSystem
    from amqpd.storage.log_inspect import final_name, is_known, queue_directories

    if not path.exists():
        raise Failure(DATA, f"there is no {path}")
    if not path.is_dir():
        if not is_known(final_name(path.name)):
            raise Failure(DATA, f"{path}: not the name of a log file")
        return [str(path)]
    filesystem = FileSystem()
    directories = [str(path)] if _is_queue(path) else queue_directories(filesystem, str(path))
    found = [
        f"{directory}/{name}"
        for directory in directories
        for name in sorted(filesystem.listdir(directory))
        if is_known(final_name(name))
    ]
    if not found:
        raise Failure(DATA, f"{path}: neither a queue's directory nor a data directory with queues")
    return found


def _dump_file(output: _Output, path: str, deep: bool, offsets: tuple[int, int] | None) -> int:
    from amqpd.storage.filesystem import FileSystem
    from amqpd.storage.log_inspect import Damage, inspect_file

    output.write(f"Dumping {path}", {"type": "file", "file": path})
    damaged = 0
    try:
        for event in inspect_file(FileSystem(), path, deep=deep, offsets=offsets):
            for text, element in _shown(event, offsets):
                output.write(text, element)
            if isinstance(event, Damage) and not event.harmless:
                damaged += 1
    except FileNotFoundError:
        output.write("deleted while it was read", {"type": "gone", "file": path})
    except OSError as error:
        raise Failure(DATA, f"{path}: {error}") from None
    return damaged


def _shown(event: Event, offsets: tuple[int, int] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    from amqpd.storage.log_inspect import Damage, IndexEntry, InspectedBatch, SettledEntry, TimeEntry

    if isinstance(event, InspectedBatch):
        yield _batch(event)
        for record in event.records or ():
            if offsets is None or offsets[0] <= record.offset <= offsets[1]:
                yield _record(record)
    elif isinstance(event, Damage):
        text = f"{'torn' if event.harmless else 'DAMAGED'} {event.file} at {event.position}: {event.text}"
        yield text, {"type": "damage", **event._asdict()}
    elif isinstance(event, IndexEntry):
        text = f"offset {event.offset}  position {event.log_position}"
        yield text, {"type": "index", "offset": event.offset, "position": event.log_position}
    elif isinstance(event, TimeEntry):
        text = f"time {_time(event.timestamp_ms)}  offset {event.offset}"
        yield text, {"type": "timeindex", "timestamp_ms": event.timestamp_ms, "offset": event.offset}
    elif isinstance(event, SettledEntry):
        text = f"{event.kind} {event.a} {event.b} {event.c}"
        yield text, {"type": "settled", "kind": event.kind, "a": event.a, "b": event.b, "c": event.c}
    else:
        yield visible(event.text), {"type": "text", "text": event.text}


def _batch(batch: InspectedBatch) -> tuple[str, dict[str, Any]]:
    flags = batch.flags
    producer = ""
    if batch.producer_id >= 0:
        producer = f"  producer {batch.producer_id}/{batch.producer_epoch} from {batch.base_sequence}"
    text = (
        f"offsets {batch.base_offset}-{batch.last_offset}  records {batch.record_count}  position {batch.position}  "
        f"size {batch.size}  epoch {batch.epoch}  time {_time(batch.timestamp_ms)}{producer}  crc {batch.crc:08x}"
        f"{'  ' if flags else ''}{' '.join(flags)}"
    )
    element: dict[str, Any] = {"type": "batch", **batch._asdict(), "flags": flags}
    del element["file"], element["records"]
    return text, element


def _record(record: Record) -> tuple[str, dict[str, Any]]:
    from amqpd.protocol.field_table import CodecError
    from amqpd.protocol.properties import decode_properties

    wrong = ""
    properties: dict[str, Any] = {}
    try:
        decoded = decode_properties(record.properties)._asdict()
        properties = {name: _plain(value) for name, value in decoded.items() if value is not None}
    except CodecError as error:
        wrong = str(error)
    body = bytes(record.body)
    text = (
        f"  offset {record.offset}  exchange {_quoted(record.exchange)}  key {_quoted(record.routing_key)}  "
        f"properties {compact(properties) if not wrong else f'not AMQP ({wrong})'}  "
        f"body {len(body)} {_quoted(body[:BODY_SHOWN])}{'...' if len(body) > BODY_SHOWN else ''}"
    )
    element: dict[str, Any] = {
        "type": "record",
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "exchange": _string(record.exchange),
        "routing_key": _string(record.routing_key),
        "properties": properties,
        "body_size_bytes": len(body),
    }
    try:
        element["body"], element["body_encoding"] = body.decode(), "string"
    except UnicodeDecodeError:
        element["body"], element["body_encoding"] = base64.b64encode(body).decode(), "base64"
    if wrong:
        element["properties_error"] = wrong
    return text, element


def _plain(value: object) -> Any:
    """Return a field value as a value that JSON supports."""
    if isinstance(value, bytes | bytearray):
        return _string(bytes(value))
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    return str(value)


def _string(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _quoted(data: bytes) -> str:
    return f'"{visible(_string(data))}"'


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def _report_text(report: QueueReport, quiet: bool) -> str:
    lines = []
    if not quiet:
        name = f"queue {visible(report.queue)!r} of vhost {visible(report.vhost)!r}" if report.queue else "queue"
        lines.append(
            f"{name} in {report.directory}: offsets {report.start_offset} to {report.next_offset}, "
            f"{report.segment_count} segments, {report.batch_count} batches, {report.record_count} records "
            f"({report.settled_count} offsets settled), {report.size_bytes} bytes, {report.epoch_count} starts"
        )
        lines += [f"  {name}: not a file of amqpd" for name in report.foreign]
    for each in report.damage:
        if not (quiet and each.harmless):
            word = "torn, cut off by the next start:" if each.harmless else "DAMAGED"
            lines.append(f"  {word} {each.file} at {each.position}: {each.text}")
    return "\n".join(lines)
