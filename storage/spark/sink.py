"""`df.write.format("amqp")` and its streaming form: each row becomes a message, safe before the task ends.

Columns have the names of the source's columns, so rows of the source can be written:

    value            binary or string; required
    exchange, routing_key    strings; the options exchange and routingKey override them
    properties       struct with any of the source's fields; properties.timestamp is a timestamp
    headers          map<string, string or number or boolean or binary>
    message_id       string; overrides properties.message_id
    raw_properties   binary, flags and fields as in a content header; replaces `properties` and `headers`
    vhost, queue, offset, timestamp, raw_headers    are ignored: they say where a row was read

Options:

    url              amqp://user:password@host:5672/vhost, or amqps://
    exchange, routingKey     for every row; default: the column, else the default exchange and an empty key
    delivery         confirms (default): publisher confirms, with at most `window` unconfirmed messages;
                     transaction: one per task
    window           default 1000
    mandatory        default true: a message that reaches no queue fails the task
    persistent       default true: delivery mode 2 if the row has none
    messageId        keep (default): the row's own; row (only batches): if it has none, an id from write, task and row
                     number, which is the same in the task's next attempt if its rows have the same order;
                     content: if it has none, the SHA-256 of exchange, key, headers, properties and value
    timeout          seconds of silence after which the broker counts as gone, default 60

docs/reference/export.md is made from these tables.

**Retries.** Spark runs a failed task again, and a stream's unfinished batch after a restart. With confirms, the
messages of the failed attempt arrive twice. With a transaction, a task's messages arrive all or none, so a retry
repeats nothing. Exceptions: a commit whose answer was lost, and a repeated batch of a stream, in which the
committed tasks are repeated. AMQP 0-9-1 has no commit over several connections, so exactly once is impossible. A
reader that must not process a message twice compares message_id.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from amqpd.storage.export.columns import COLUMNS, PROPERTIES
from amqpd.storage.export.message_rows import MessageRows, RowOptions
from amqpd.storage.export.options import BadOption, known_options
from amqpd.storage.export.publisher import SinkPublisher, SinkTarget

logger = logging.getLogger(__name__)

NAMES = ("url", "exchange", "routingKey", "delivery", "window", "mandatory", "persistent", "messageId", "timeout")
_IGNORED = ("vhost", "queue", "offset", "timestamp", "raw_headers")
_TYPES = {
    "value": (BinaryType, StringType),
    "exchange": StringType,
    "routing_key": StringType,
    "message_id": StringType,
    "properties": StructType,
    "headers": MapType,
    "raw_properties": BinaryType,
}
_FIELDS = tuple(name for name, _ in PROPERTIES)


@dataclass
class Published(WriterCommitMessage):
    """The number of messages that one task has published."""

    count: int


@dataclass(frozen=True, kw_only=True)
class SinkOptions(RowOptions):
    """The parsed options."""

    target: SinkTarget
    transaction: bool
    window: int
    mandatory: bool
    timeout_s: float


def parse(options: Mapping[str, str]) -> SinkOptions:
    # Spark passes on its own option checkpointLocation.
    own = {name: value for name, value in options.items() if name.lower() != "checkpointlocation"}
    given = known_options(own, NAMES, "writing")
    if "url" not in given:
        raise BadOption("url is missing: amqp://user:password@host:5672/vhost")
    try:
        target = SinkTarget.from_url(given["url"])
    except ValueError as error:
        raise BadOption(f"url: {error}") from None
    return SinkOptions(
        exchange=given.get("exchange"),
        routing_key=given.get("routingKey"),
        persistent=_one_of(given, "persistent", ("true", "false")) == "true",
        message_id=_one_of(given, "messageId", ("keep", "row", "content")),
        target=target,
        transaction=_one_of(given, "delivery", ("confirms", "transaction")) == "transaction",
        window=int(_positive(given, "window", 1000)),
        mandatory=_one_of(given, "mandatory", ("true", "false")) == "true",
        timeout_s=_positive(given, "timeout", 60),
    )


def _one_of(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    value = given.get(name, known[0]).lower()
    if value not in known:
        raise BadOption(f"{name}: expected {' or '.join(known)}, not {value!r}")
    return value


def _positive(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf") or (name == "window" and value != int(value)):  # NaN is not above 0
        raise BadOption(f"{name}: expected a number above 0, not {text!r}")
    return value


def check_schema(schema: StructType) -> None:
    """Check the columns. Raises BadOption for an unknown column, which would be lost, or a wrong type."""
    names = schema.fieldNames()
    if "value" not in names:
        raise BadOption("the column 'value' is missing: the message's body, binary or string")
    for column in schema.fields:
        if column.name in _IGNORED:
            continue
        if column.name not in _TYPES:
            known = ["message_id", *(name for name in COLUMNS if name not in _IGNORED)]
            raise BadOption(f"unknown column '{column.name}', expected one of {', '.join(known)}")
        kind = column.dataType
        if not isinstance(kind, _TYPES[column.name]):
            raise BadOption(f"column '{column.name}' cannot be {kind.simpleString()}")
        unknown = set(kind.fieldNames()) - set(_FIELDS) if isinstance(kind, StructType) else set()
        if unknown:
            raise BadOption(f"unknown property {', '.join(sorted(unknown))}, expected one of {', '.join(_FIELDS)}")
    if "raw_properties" in names and "properties" in names:
        logger.info("the columns properties and headers are ignored: raw_properties replaces them")


class _Task:
    """The common base of both writers. Spark sends it pickled to its workers."""

    def __init__(self, options: SinkOptions, identity: str) -> None:
        self.options = options
        self.identity = identity

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish a task's rows. Raises PublishError or BadRow; Spark then tries again, and finally fails the job."""
        options = self.options
        context = TaskContext.get()
        task = f"{self.identity}:{context.partitionId() if context is not None else 0}"
        messages = MessageRows(options, task)
        publisher = SinkPublisher(
            options.target,
            transaction=options.transaction,
            mandatory=options.mandatory,
            window=options.window,
            timeout_s=options.timeout_s,
        )
        try:
            for batch in iterator:
                for exchange, key, properties, body in messages.of(batch):
                    publisher.publish(exchange, key, properties, body)
            count = publisher.finish()
        except BaseException:
            publisher.abandon()
            raise
        publisher.close()
        return Published(count)


class AmqpWriter(_Task, DataSourceArrowWriter):
    """A batch write."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        logger.info("published %d messages", _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        logger.warning("the write failed; finished tasks had published %d messages, which stay", _total(messages))


class AmqpStreamWriter(_Task, DataSourceStreamArrowWriter):
    """A streaming write."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        logger.info("batch %d: published %d messages", batchId, _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        logger.warning(
            "batch %d failed; finished tasks had published %d messages, which stay", batchId, _total(messages)
        )


def _total(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message.count for message in messages if isinstance(message, Published))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> AmqpWriter:
    if overwrite:
        raise BadOption('mode("overwrite"): published messages cannot be overwritten; use mode("append")')
    check_schema(schema)
    return AmqpWriter(parse(options), uuid.uuid4().hex)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> AmqpStreamWriter:
    if overwrite:
        raise BadOption('outputMode("complete"): published messages cannot be overwritten; use append or update')
    check_schema(schema)
    parsed = parse(options)
    if parsed.message_id == "row":
        raise BadOption("messageId=row: only for batches; use content, or a column message_id")
    return AmqpStreamWriter(parsed, "")
