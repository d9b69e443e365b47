"""Options of `format("amqp")` for reading. Names are those of Spark's Kafka source if it has the same option.

    path | url, user, password     source: a data directory (or a copy of one), or a broker's admin API
    tlsCaCertFile, tlsCertFile, tlsKeyFile   for an https url: PEM files, on every executor
    transferCompression            for a url: zstd, or none (default): the broker compresses what it sends
    vhost                          default /
    queue | queues | queuePattern  one name, names separated by commas, or a regular expression for whole names
    startingOffsets                earliest (default of a batch), latest (default of a stream), a number, or JSON
                                   {"queue": n}
    endingOffsets                  the same values, default latest, exclusive; only for batches. In JSON -2 means
                                   earliest and -1 latest
    startingTimestamp              ms since 1970 or ISO 8601 (default UTC): begin at the first record that is not
                                   older; overrides startingOffsets
    endingTimestamp                the same values, exclusive
    startingOffsetsByTimestampStrategy   error (default) or latest: used if there is no such record
    failOnDataLoss                 default true: missing records are an error
    includeSettled                 default false: also read acknowledged messages, as long as the log has them
    maxOffsetsPerTrigger           for a stream; its queues share the limit by their lag; default: no limit
    minPartitions, splitBytes      smallest number of tasks; approximate bytes per task (default 32 MiB)
    batchRows                      approximate limit for the rows of an Arrow batch (default 8192)
    columns                        names separated by commas; default the base columns
    includeProperties, includeHeaders    add properties and raw_properties, headers and raw_headers
    checkCrc                       default true: check the checksums of batches

An unknown option or an impossible value is an error: with a misspelt option the query would silently read other
data. docs/reference/export.md is made from this table.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from amqpd.storage.export.arrow import BATCH_ROWS
from amqpd.storage.export.columns import BASE, check_columns
from amqpd.storage.export.files import DESCRIPTION, BrokerSource, DirectorySource, LogSource, QueueName, TlsFiles
from amqpd.storage.export.plan import SPLIT_BYTES

EARLIEST = -2
LATEST = -1

NAMES = (
    "path", "url", "user", "password", "vhost", "queue", "queues", "queuePattern", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss", "includeSettled",
    "maxOffsetsPerTrigger", "minPartitions", "splitBytes", "batchRows", "columns", "includeProperties",
    "includeHeaders", "checkCrc", "tlsCaCertFile", "tlsCertFile", "tlsKeyFile", "transferCompression",
)  # fmt: skip
_TLS = ("tlsCaCertFile", "tlsCertFile", "tlsKeyFile")


class BadOption(ValueError):
    """An option is unknown or has an impossible value; the text names it."""


class NoSuchQueue(BadOption):
    """A named queue does not exist."""


@dataclass(frozen=True)
class Offsets:
    """First or last offsets: EARLIEST, LATEST, or a number.

    Attributes:
        default: For queues that are not in `each`.
    """

    default: int
    each: Mapping[str, int]

    def of(self, queue: str) -> int:
        return self.each.get(queue, self.default)


@dataclass(frozen=True)
class ReadOptions:
    """All options, parsed. None: not given."""

    source: LogSource
    vhost: str
    names: tuple[str, ...]
    pattern: str | None
    starting: Offsets | None
    ending: Offsets | None
    starting_timestamp_ms: int | None
    ending_timestamp_ms: int | None
    timestamp_or_latest: bool
    fail_on_data_loss: bool
    include_settled: bool
    max_offsets_per_trigger: int | None
    parts_min: int
    split_bytes: int
    batch_rows: int
    columns: tuple[str, ...]
    check_crc: bool
    is_job: bool = False  # what was settled and removed, or whose queue was deleted, since the plan is no error

    def queues(self) -> list[QueueName]:
        """Return the selected queues that exist. Raises SourceError."""
        found = self.source.queues(self.vhost)
        if self.pattern is not None:
            wanted = re.compile(self.pattern)
            return [queue for queue in found if wanted.fullmatch(queue.queue)]
        by_name = {queue.queue: queue for queue in found}
        if not self.names and len(found) == 1 and found[0].place == getattr(self.source, "path", None):
            return found  # the path is a queue's directory
        return [by_name[name] for name in self.names if name in by_name]

    def require(self, queues: list[QueueName]) -> None:
        missing = set(self.names) - {queue.queue for queue in queues}
        if missing:
            names = ", ".join(map(repr, sorted(missing)))
            raise NoSuchQueue(f"no durable queue {names} with messages in vhost '{self.vhost}'{self.source.unlisted}")


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options; names have no case. Raises BadOption, SourceError, UnknownColumn."""
    given = known_options(options, NAMES, "reading")
    names, pattern = _selection(given)
    split_bytes = _number(given, "splitBytes", SPLIT_BYTES)
    start, end = given.get("startingOffsets"), given.get("endingOffsets")
    strategy = given.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise BadOption("startingOffsetsByTimestampStrategy: expected error or latest")
    per_trigger = _number(given, "maxOffsetsPerTrigger", 0)
    columns = [name.strip() for name in given.get("columns", "").split(",") if name.strip()] or list(BASE)
    if _flag(given, "includeProperties", False):
        columns += ["properties", "raw_properties"]
    if _flag(given, "includeHeaders", False):
        columns += ["headers", "raw_headers"]
    check_columns(columns)
    return ReadOptions(
        source=_source(given),
        vhost=given.get("vhost", "/"),
        names=names,
        pattern=pattern,
        starting=None if start is None else _offsets("startingOffsets", start),
        ending=None if end is None else _offsets("endingOffsets", end),
        starting_timestamp_ms=_time(given, "startingTimestamp"),
        ending_timestamp_ms=_time(given, "endingTimestamp"),
        timestamp_or_latest=strategy == "latest",
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        include_settled=_flag(given, "includeSettled", False),
        max_offsets_per_trigger=per_trigger or None,
        parts_min=_number(given, "minPartitions", 1),
        split_bytes=split_bytes,
        batch_rows=_number(given, "batchRows", BATCH_ROWS),
        columns=tuple(dict.fromkeys(columns)),
        check_crc=_flag(given, "checkCrc", True),
    )


def known_options(options: Mapping[str, str], names: Sequence[str], purpose: str) -> dict[str, str]:
    """Return options by their names with our case. Raises BadOption."""
    by_lower = {name.lower(): name for name in names}
    given: dict[str, str] = {}
    for name, value in options.items():
        known = by_lower.get(name.lower())
        if known is None:
            raise BadOption(f"unknown option '{name}' for {purpose}, expected one of {', '.join(names)}")
        given[known] = str(value)
    return given


def _source(given: Mapping[str, str]) -> LogSource:
    path, url = given.get("path"), given.get("url")
    if (path is None) == (url is None):
        raise BadOption("expected one of path (a data directory) and url (a broker's admin API)")
    if url is None:
        if "user" in given or "password" in given:
            raise BadOption("user and password need url")
        if any(name in given for name in _TLS):
            raise BadOption(f"{', '.join(_TLS)} need url")
        if "transferCompression" in given:
            raise BadOption("transferCompression needs url")
        assert path is not None
        return DirectorySource(path.removeprefix("file://").rstrip("/") or "/")
    ca, certificate, key = (given.get(name, "") for name in _TLS)
    if key and not certificate:
        raise BadOption("tlsKeyFile needs tlsCertFile")
    compression = given.get("transferCompression", "none").lower()
    if compression not in ("none", "zstd"):
        raise BadOption(f"transferCompression: expected zstd or none, not {compression!r}")
    tls = TlsFiles(ca, certificate, key)
    login = given.get("user", ""), given.get("password", "")
    return BrokerSource.from_url(url, *login, tls, compresses=compression == "zstd")


def _selection(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    ways = [name for name in ("queue", "queues", "queuePattern") if name in given]
    if len(ways) > 1:
        raise BadOption(f"{' and '.join(ways)}: use only one of them")
    if "queuePattern" in given:
        try:
            re.compile(given["queuePattern"])
        except re.error as error:
            raise BadOption(f"queuePattern: {error}") from None
        return (), given["queuePattern"]
    if "queue" in given:
        return (given["queue"],), None
    names = tuple(dict.fromkeys(name.strip() for name in given.get("queues", "").split(",") if name.strip()))
    if not names and not _is_queue_directory(given.get("path")):
        raise BadOption("expected one of queue, queues and queuePattern")
    return names, None


def _is_queue_directory(path: str | None) -> bool:
    if path is None:
        return False
    return os.path.exists(f"{path.removeprefix('file://')}/{DESCRIPTION}")


def _offsets(name: str, text: str) -> Offsets:
    default = EARLIEST if name == "startingOffsets" else LATEST
    words = {"earliest": EARLIEST, "latest": LATEST}
    text = text.strip()
    word = words.get(text.lower())
    if word is None and text.isdecimal():
        word = int(text)
    if word is not None:
        if name == "endingOffsets" and word == EARLIEST:
            raise BadOption("endingOffsets: earliest would select no messages")
        return Offsets(word, {})
    try:
        each = json.loads(text)
        if not isinstance(each, dict):
            raise TypeError
        return Offsets(default, {str(queue): _offset(value) for queue, value in each.items()})
    except (ValueError, TypeError):
        raise BadOption(f'{name}: expected earliest, latest, a number or {{"queue": number}}, not {text!r}') from None


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise TypeError
    return value


def _time(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    text = text.strip()
    if text.isdecimal():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(f"{name}: expected ms since 1970 or a time as 2026-01-31T12:00:00Z, not {text!r}") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return int(when.timestamp() * 1000)


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise BadOption(f"{name}: expected a number of at least 1, not {text!r}")
    return int(text)


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise BadOption(f"{name}: expected true or false, not {text!r}")
    return text.strip().lower() == "true"
