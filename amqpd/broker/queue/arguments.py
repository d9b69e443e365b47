"""The table of `x-*` arguments of queue.declare: validation, equivalence and policies follow from it.

A row (`ArgumentSpec` in argument_checks.py) has a check for the value, the queue types that accept the argument, and
the field of `QueueConfig` that it sets. The row also has the policy key for the same thing, and the module that
implements the argument. So a new argument is a row and its implementation. `rules_of` makes the rules of a queue from
its arguments and policies.

Arguments without a row are stored and shown, but never compared, as in RabbitMQ. RabbitMQ's arguments without a meaning
here have rows too: they are accepted where RabbitMQ accepts them, documented, and logged once as ignored.

x-delayed-retry-*: RabbitMQ 4.3 has -type, -min and -max, for quorum queues; -levels is our own. A declaration must have
a valid combination of them. Policy keys are checked one by one, because an argument may supply the others.

Errors: PreconditionFailed (406) with RabbitMQ's texts, also for an unknown queue type.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.queue import argument_checks as checks
from amqpd.broker.queue.argument_checks import (
    IGNORED,
    ArgumentContext,
    ArgumentSpec,
    Check,
    PolicyKey,
    check_kind,
    erlang_type,
    merged_number,
)
from amqpd.broker.queue.config import (
    CLEANUPS,
    LEVELS_MAX,
    OVERFLOWS,
    PLAIN,
    TYPES,
    PublishCheck,
    QueueConfig,
    is_levels,
    levels_of,
)
from amqpd.broker.queue.types import CLASSIC, KINDS, QUORUM, STREAM, WORK_QUEUES, kind_of
from amqpd.broker.stream_message import interval_ms
from amqpd.errors import PreconditionFailed
from amqpd.routing.headers import erlang_term
from amqpd.storage.acks.retained import NAME as EXPORT_NAME
from amqpd.storage.log.batch import CODECS

_NO_COPIES: Final = "a queue has no copies on other nodes"
_PAGED: Final = "every queue pages to disk"


def _ignored(
    name: str,
    check: Check,
    why: str,
    kinds: frozenset[str] | None = None,
    policy: PolicyKey | None = None,
    compared: bool = True,
) -> ArgumentSpec:
    return ArgumentSpec(name, check, IGNORED, f"ignored: {why}", kinds=kinds, policy=policy, compared=compared)


IGNORED_ARGUMENTS: Final = (
    _ignored(
        "x-dead-letter-strategy",
        checks.one_of(checks.STRATEGIES, "invalid_dlx_strategy"),
        "durable queues always dead-letter at least once",
        kinds=QUORUM,
        policy=PolicyKey("dead-letter-strategy", checks.is_one_of(*checks.STRATEGIES), "dead letter strategy"),
    ),
    _ignored(
        "x-stream-filter-size-bytes",
        checks.filter_size,
        "filters are exact",
        kinds=STREAM,
        policy=PolicyKey("stream-filter-size-bytes", checks.is_filter_size, "stream filter size"),
        compared=False,
    ),
    _ignored(
        "x-initial-cluster-size",
        checks.positive,
        _NO_COPIES,
        kinds=STREAM,
        policy=PolicyKey("initial-cluster-size", checks.is_positive, "cluster size"),
    ),
    _ignored(
        "x-queue-mode",
        checks.one_of(checks.MODES, "\"unsupported queue mode '{}'\""),
        _PAGED,
        kinds=CLASSIC,
        policy=PolicyKey("queue-mode", checks.is_one_of(*checks.MODES), "queue-mode value"),
    ),
    # rabbit: an operator policy may have the key since 3.12
    _ignored(
        "x-queue-version",
        checks.queue_version,
        "there is one storage engine",
        kinds=CLASSIC,
        policy=PolicyKey("queue-version", checks.is_one_of(1, 2), "queue-version value", operator=True),
    ),
    # rabbit: has the text of x-max-in-memory-bytes
    _ignored(
        "x-max-in-memory-length",
        checks.non_negative,
        _PAGED,
        kinds=QUORUM,
        policy=PolicyKey(
            "max-in-memory-length", checks.is_natural, "maximum memory in bytes", operator=True, merge="lowest"
        ),
    ),
    _ignored(
        "x-max-in-memory-bytes",
        checks.non_negative,
        _PAGED,
        kinds=QUORUM,
        policy=PolicyKey(
            "max-in-memory-bytes", checks.is_natural, "maximum memory in bytes", operator=True, merge="lowest"
        ),
    ),
    _ignored(
        "x-queue-master-locator",
        checks.anything,
        _NO_COPIES,
        kinds=CLASSIC,
        policy=PolicyKey(
            "queue-master-locator",
            checks.is_one_of("client-local", "min-masters", "random"),
            "queue-master-locator value",
        ),
    ),
    # rabbit: also for classic queues since 4.0
    _ignored(
        "x-queue-leader-locator",
        checks.one_of(checks.LEADER_LOCATORS, "invalid_queue_locator_arg"),
        _NO_COPIES,
        policy=PolicyKey(
            "queue-leader-locator", checks.is_one_of(*checks.LEADER_LOCATORS), "queue leader locator value"
        ),
    ),
    _ignored("x-quorum-initial-group-size", checks.positive, _NO_COPIES, kinds=QUORUM),
    _ignored(
        "x-quorum-target-group-size",
        checks.anything,
        _NO_COPIES,
        policy=PolicyKey("target-group-size", checks.is_positive, "qq target count value", operator=True),
        compared=False,
    ),
    _ignored(
        "x-consumer-disconnected-timeout",
        checks.anything,
        "a consumer ends with its connection",
        policy=PolicyKey("consumer-disconnected-timeout", checks.is_natural, "consumer disconnected timeout"),
        compared=False,
    ),
    _ignored("x-ha-policy", checks.anything, _NO_COPIES, compared=False),
)


QUEUE_ARGUMENTS: Final = (
    ArgumentSpec(
        "x-message-ttl",
        checks.at_most,
        "queue/expiry",
        "maximum wait of a message in ms; 0: deliver at once or drop",
        field="ttl_ms",
        most=TTL_MS_MAX,
        kinds=WORK_QUEUES,
        policy=PolicyKey("message-ttl", checks.is_natural, "message TTL", operator=True, merge="lowest"),
        takes="ms",
    ),
    ArgumentSpec(
        "x-expires",
        checks.positive,
        "queue/expiry",
        "an unused queue is deleted after so many ms",
        field="expires_ms",
        most=TTL_MS_MAX,
        kinds=WORK_QUEUES,
        policy=PolicyKey("expires", checks.is_positive, "queue expiry", operator=True, merge="lowest"),
        takes="ms",
    ),
    ArgumentSpec(
        "x-max-length",
        checks.non_negative,
        "queue/limits",
        "maximum of ready messages",
        field="length_max",
        kinds=WORK_QUEUES,
        policy=PolicyKey("max-length", checks.is_natural, "maximum length", operator=True, merge="lowest"),
        takes="messages",
    ),
    ArgumentSpec(
        "x-max-length-bytes",
        checks.non_negative,
        "queue/limits",
        "maximum of ready body bytes; stream: maximum of bytes in files",
        field="length_bytes_max",
        policy=PolicyKey(
            "max-length-bytes", checks.is_natural, "maximum length in bytes", operator=True, merge="lowest"
        ),
        takes="bytes",
    ),
    # rabbit: since 3.12
    ArgumentSpec(
        "x-overflow",
        checks.one_of(OVERFLOWS, "invalid_overflow"),
        "queue/limits",
        "when full: drop-head, reject-publish, reject-publish-dlx",
        field="overflow",
        kinds=WORK_QUEUES,
        policy=PolicyKey("overflow", checks.is_one_of(*OVERFLOWS), "overflow value", operator=True),
        takes="|".join(OVERFLOWS),
    ),
    ArgumentSpec(
        "x-dead-letter-exchange",
        checks.exchange_name,
        "publish/dead_letter",
        "exchange for rejected, expired and dropped messages",
        field="dead_letter_exchange",
        kinds=WORK_QUEUES,
        policy=PolicyKey("dead-letter-exchange", checks.is_text, "dead letter exchange name"),
        takes="text",
    ),
    ArgumentSpec(
        "x-dead-letter-routing-key",
        checks.dead_letter_key,
        "publish/dead_letter",
        "routing key of dead letters; default: their own",
        field="dead_letter_key",
        kinds=WORK_QUEUES,
        policy=PolicyKey("dead-letter-routing-key", checks.is_routing_key, "dead letter routing key"),
        takes="text",
    ),
    ArgumentSpec(
        "x-max-priority",
        checks.priority,
        "queue/priority",
        "number of priorities, 0-255",
        field="level_max",
        most=255,
        kinds=CLASSIC,
        takes="number",
    ),
    ArgumentSpec(
        "x-group-by",
        checks.group_by,
        "queue/grouped_queue",
        "`routing_key` or `header:NAME`: messages of one group go to one consumer at a time",
        field="group_by",
        kinds=WORK_QUEUES,
        takes="text",
    ),
    ArgumentSpec(
        "x-single-active-consumer",
        checks.boolean,
        "consumer",
        "one active consumer; the others wait",
        field="single_active",
        takes="flag",
    ),
    ArgumentSpec(
        "x-queue-type",
        checks.one_of(KINDS, "\"unsupported queue type '{}'\""),
        "queue/types",
        "classic, quorum or stream; any other is refused",
    ),
    # rabbit: since 4.0 a negative number means no limit
    ArgumentSpec(
        "x-delivery-limit",
        checks.integer,
        "queue/limits",
        "quorum: returns before it is dead-lettered; -1 (default): no limit",
        field="delivery_limit",
        kinds=QUORUM,
        policy=PolicyKey("delivery-limit", checks.is_number, "delivery limit", operator=True, merge="limit"),
        takes="number",
    ),
    ArgumentSpec(
        "x-consumer-timeout",
        checks.at_most,
        "consume",
        "maximum time of a delivery without ack, in ms; 0: no limit",
        field="consumer_timeout_ms",
        most=TTL_MS_MAX,
        kinds=WORK_QUEUES,
        policy=PolicyKey("consumer-timeout", checks.is_natural, "consumer timeout", merge="lowest"),
        takes="ms",
    ),
    ArgumentSpec(
        "x-message-deduplication",
        checks.no_deduplication,
        "queue/argument_checks",
        "true is refused: use an exchange of this type",
    ),
    ArgumentSpec(
        "x-retain",
        checks.retain,
        "queue/queue",
        "keep handled messages for a time, `3D` (Y, M, D, h, m, s), or up to so many bytes",
        field="retain",
        kinds=WORK_QUEUES,
        policy=PolicyKey("retain", checks.is_retain, "retention", merge="lowest"),
        takes="text",
    ),
    ArgumentSpec(
        "x-export",
        checks.plain_name(EXPORT_NAME),
        "vhost/declaration",
        "keep handled messages until that export has them",
        kinds=WORK_QUEUES,
        takes="text",
    ),
    ArgumentSpec(
        "x-export-max-bytes",
        checks.export_bytes,
        "vhost/declaration",
        "maximum of bytes kept for it; default 16 GiB",
        kinds=WORK_QUEUES,
        takes="bytes",
    ),
    ArgumentSpec(
        "x-kafka-topic",
        checks.plain_name(checks.KAFKA_TOPIC),
        "vhost/kafka_topics",
        "its name for Kafka's clients; cluster: its own topic of Kafka, if `cluster.kafka_topics` allows the name",
        takes="text",
    ),
)


_TYPE: Final = "x-delayed-retry-type"
_MIN: Final = "x-delayed-retry-min"
_MAX: Final = "x-delayed-retry-max"
_LEVELS: Final = "x-delayed-retry-levels"


def _type(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if checks.text(row, value, context) not in TYPES:
        raise checks.invalid(row, context, "invalid_delayed_retry_type")
    if value != "disabled" and _MIN not in context.arguments and _LEVELS not in context.arguments:
        raise checks.invalid(row, context, f'"needs {_MIN} or {_LEVELS}"')


def _needs(row: ArgumentSpec, context: ArgumentContext, name: str) -> None:
    if name not in context.arguments:
        raise checks.invalid(row, context, f'"needs {name}"')


def _min(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    checks.positive(row, value, context)
    _needs(row, context, _TYPE)


def _max(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    checks.positive(row, value, context)
    _needs(row, context, _MIN)


def _levels(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if levels_of(value) is None:
        wanted = f"1 to {LEVELS_MAX} times, as '1m,5m,30m' or an array of milliseconds"
        raise checks.invalid(row, context, f'"expected {wanted}"')
    _needs(row, context, _TYPE)
    if _MIN in context.arguments:
        raise checks.invalid(row, context, f'"cannot be combined with {_MIN}"')


RETRY_ARGUMENTS: Final = (
    ArgumentSpec(
        _TYPE,
        _type,
        "queue/delayed_retry",
        "which returned messages wait: disabled, all, failed or returned",
        field="retry_type",
        kinds=WORK_QUEUES,
        policy=PolicyKey("delayed-retry-type", checks.is_one_of(*TYPES), "delayed retry type"),
        takes="|".join(TYPES),
    ),
    ArgumentSpec(
        _MIN,
        _min,
        "queue/delayed_retry",
        "wait in ms, times the delivery count",
        field="retry_min_ms",
        most=TTL_MS_MAX,
        kinds=WORK_QUEUES,
        policy=PolicyKey("delayed-retry-min", checks.is_positive, "delayed retry minimum"),
        takes="ms",
    ),
    ArgumentSpec(
        _MAX,
        _max,
        "queue/delayed_retry",
        "maximum wait in ms; default: the minimum",
        field="retry_max_ms",
        most=TTL_MS_MAX,
        kinds=WORK_QUEUES,
        policy=PolicyKey("delayed-retry-max", checks.is_positive, "delayed retry maximum"),
        takes="ms",
    ),
    ArgumentSpec(
        _LEVELS,
        _levels,
        "queue/delayed_retry",
        "first, second ... wait: `1m,5m,30m`, or an array of ms",
        field="retry_levels",
        kinds=WORK_QUEUES,
        policy=PolicyKey("delayed-retry-levels", is_levels, "list of delayed retry levels"),
        takes="text",
    ),
)


STREAM_ARGUMENTS: Final = (
    ArgumentSpec(
        "x-max-age",
        checks.max_age,
        "queue/stream",
        "stream: maximum age of messages, `7D` (Y, M, D, h, m, s)",
        field="max_age_ms",
        kinds=STREAM,
        policy=PolicyKey("max-age", checks.is_interval, "max age", merge="lowest"),
        takes="text",
    ),
    ArgumentSpec(
        "x-stream-max-segment-size-bytes",
        checks.segment_size,
        "queue/stream",
        "stream: size of a file, 64 KiB to 1 GiB; files are deleted as a whole",
        field="segment_size_bytes",
        most=checks.SEGMENT_SIZE_BYTES_MAX,
        kinds=STREAM,
        policy=PolicyKey("stream-max-segment-size-bytes", checks.is_natural, "segment size"),
        takes="bytes",
    ),
    ArgumentSpec(
        "x-compression",
        checks.one_of(CODECS, "invalid_compression"),
        "queue/stream",
        "stream: none, gzip, snappy, lz4 or zstd",
        field="codec",
        kinds=STREAM,
        policy=PolicyKey("compression", checks.is_one_of(*CODECS), "compression"),
        takes="|".join(CODECS),
    ),
    ArgumentSpec(
        "x-compact",
        checks.boolean,
        "queue/config",
        "stream: keep the last message of each routing key",
        field="cleanup",
        kinds=STREAM,
        policy=PolicyKey("cleanup-policy", checks.is_one_of(*CLEANUPS), "cleanup policy", takes="|".join(CLEANUPS)),
        takes="flag",
    ),
)


log = logging.getLogger(__name__)

NO_POLICY: Final[Mapping[str, object]] = MappingProxyType({})

_FAMILIES: Final = (QUEUE_ARGUMENTS, RETRY_ARGUMENTS, STREAM_ARGUMENTS, IGNORED_ARGUMENTS)
ROWS: Final[dict[str, ArgumentSpec]] = {row.name: row for rows in _FAMILIES for row in rows}

_ignored_seen: Final[set[str]] = set()


def _log_ignored(row: ArgumentSpec, context: ArgumentContext) -> None:
    """Log an ignored argument once per process: clients repeat the same declaration thousands of times."""
    if row.name not in _ignored_seen:
        _ignored_seen.add(row.name)
        log.info("queue '%s' in vhost '%s': argument %s is %s", context.name, context.vhost, row.name, row.meaning)


def validate(queue: str, vhost: str, arguments: Mapping[str, object]) -> None:
    """Check all arguments of a queue.declare.

    Raises:
        PreconditionFailed: A value is not valid, or the queue type does not accept the argument.
    """
    context = ArgumentContext(queue, vhost, arguments)
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None:
            check_kind(row, context)
            row.check(row, value, context)
            if row.obeyed_by == IGNORED:
                _log_ignored(row, context)


def rules_of(arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> QueueConfig:
    """Return the rules of a queue, with the defaults of its type.

    Args:
        arguments: Validated arguments of its declaration.
        effective: Policy key -> value: the merged policies that match the queue.

    Cost: 1 us per rule.
    """
    values: dict[str, object] = {}
    admissions: list[PublishCheck] = []
    kind = kind_of(arguments)
    if kind.counts_shown:
        values["counts_shown"] = True
    if kind.stream:
        values["stream"] = True
    for name, value in (merged(arguments, effective) if effective else arguments).items():
        row = ROWS.get(name)
        if row is not None and row.field:
            values[row.field] = value
        elif row is not None and row.admission is not None:
            admissions.append(row.admission(value))
    return QueueConfig(values, admissions) if values or admissions else PLAIN


def merged(arguments: Mapping[str, object], effective: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments merged with policy values, by the `merge` rule of each key.

    Policy keys without an argument are left out. Code that obeys such a key reads `effective` itself.
    """
    both = dict(arguments)
    for row in ROWS.values():
        key = row.policy
        value = None if key is None else effective.get(key.name)
        if key is None or value is None:
            continue
        if row.most is not None and isinstance(value, int) and value > row.most:
            value = row.most  # rabbit: accepts any number in a policy; ten years have the same effect
        argument = arguments.get(row.name)
        if argument is None:
            both[row.name] = value
        elif key.merge != "argument" and isinstance(value, int) and isinstance(argument, int):
            both[row.name] = merged_number(key.merge, value, argument)
        elif key.merge == "lowest" and isinstance(value, str) and isinstance(argument, str):
            both[row.name] = min(value, argument, key=interval_ms)
    return both


def compare(
    thing: str, vhost: str, compared: list[str], given: Mapping[str, object], current: Mapping[str, object]
) -> None:
    """Check that two declarations agree on the arguments in `compared`.

    Args:
        thing: `queue 'q'` or `exchange 'x'`, for the error text.
        given: Arguments of the new declaration.
        current: Arguments of the existing queue or exchange.

    Raises:
        PreconditionFailed: A value differs, or its type class does (`_with_class`).
    """
    for name in compared:
        if name in given or name in current:
            _compare_one(thing, vhost, name, given, current)


def compared_names(kind: str) -> list[str]:
    """Return the arguments on which two declarations of a queue of this type must agree."""
    return [row.name for row in ROWS.values() if row.compared and (row.kinds is None or kind in row.kinds)]


def _compare_one(thing: str, vhost: str, name: str, given: Mapping[str, object], current: Mapping[str, object]) -> None:
    start = f"inequivalent arg '{name}' for {thing} in vhost '{vhost}': received"
    if name not in given:
        value = current[name]
        raise PreconditionFailed(
            f"{start} none but current is the value '{_shown(value)}' of type '{erlang_type(value)}'"
        )
    value = given[name]
    if name not in current:
        raise PreconditionFailed(
            f"{start} the value '{_shown(value)}' of type '{erlang_type(value)}' but current is none"
        )
    other = current[name]
    if _with_class(value) != _with_class(other):
        # rabbit: calls a void value none
        received = "none" if value is None else f"'{_shown(value)}'"
        raise PreconditionFailed(f"{start} {received} but current is '{_shown(other)}'")


def _with_class(value: object) -> tuple[str, object]:
    """Return a field value in a form that compares equal exactly if RabbitMQ treats two values as equal.

    10 and 10.0 differ, and 1 and true. The width of an integer does not matter. A timestamp equals the integer, and a
    byte array equals the text with its bytes.
    """
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int):
        return "integer", int(value)
    if isinstance(value, str):
        return "text", value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes | bytearray):
        return "text", bytes(value)
    if isinstance(value, list):
        return "array", [_with_class(each) for each in value]
    if isinstance(value, Mapping):
        return "table", {name: _with_class(each) for name, each in value.items()}
    return erlang_type(value), value


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    return erlang_term(value)
