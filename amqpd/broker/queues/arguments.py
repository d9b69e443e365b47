"""Every `x-*` argument of queue.declare: one row each, from which validation, equivalence and policies follow.

A row names the argument, what values it takes and of which kinds of queue, whether two declarations must agree on it,
what it becomes (a field of `Rules`, or a rule of its own that looks at what comes in), the file that obeys it, and the
key by which a policy sets it (argument_checks.py has `Row` and what it names). So a new argument is its row and what
obeys it. `rules_of` makes a queue's rules of its arguments and of the policies that match it.

Arguments without a row are kept, shown and never compared, as RabbitMQ does. Arguments of RabbitMQ that have no meaning
here are accepted and ignored; they have rows, too, so that they are documented, and the log says so once.

Errors: PreconditionFailed (406) with RabbitMQ's texts, also for a queue type that is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.queues import argument_checks as checks
from amqpd.broker.queues.argument_checks import IGNORED, Context, Row, check_kind, erlang_type
from amqpd.broker.queues.compaction import CLEANUPS
from amqpd.broker.queues.kinds import kind_of
from amqpd.broker.queues.rules import OVERFLOWS, PLAIN, Admission, Rules
from amqpd.broker.stream_start import interval_ms
from amqpd.errors import PreconditionFailed
from amqpd.storage.log.batch import CODECS

log = logging.getLogger(__name__)

CLASSIC: Final = frozenset({"classic"})
QUORUM: Final = frozenset({"quorum"})
REPLICATED: Final = frozenset({"quorum", "stream"})
WORK_QUEUES: Final = CLASSIC | QUORUM
STREAM: Final = frozenset({"stream"})
NO_POLICY: Final[Mapping[str, object]] = MappingProxyType({})

ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        Row(
            "x-message-ttl",
            checks.milliseconds,
            True,
            "expiry",
            "how many ms a message may wait; 0: deliver or drop",
            field="ttl_ms",
            most=TTL_MS_MAX,
            kinds=WORK_QUEUES,
            policy="message-ttl",
            accepts=checks.is_natural,
            called="message TTL",
            operator=True,
            merge="lowest",
        ),
        Row(
            "x-expires",
            checks.positive_milliseconds,
            True,
            "expiry",
            "a queue nobody used for so many ms is deleted",
            field="expires_ms",
            most=TTL_MS_MAX,
            kinds=WORK_QUEUES,
            policy="expires",
            accepts=checks.is_positive,
            called="queue expiry",
            operator=True,
            merge="lowest",
        ),
        Row(
            "x-max-length",
            checks.non_negative,
            True,
            "limits",
            "how many messages may be ready",
            field="length_max",
            kinds=WORK_QUEUES,
            policy="max-length",
            accepts=checks.is_natural,
            called="maximum length",
            operator=True,
            merge="lowest",
        ),
        Row(
            "x-max-length-bytes",
            checks.non_negative,
            True,
            "limits",
            "how many body bytes may be ready; of a stream: how many bytes of files stay",
            field="length_bytes_max",
            policy="max-length-bytes",
            accepts=checks.is_natural,
            called="maximum length in bytes",
            operator=True,
            merge="lowest",
        ),
        Row(
            "x-overflow",
            checks.overflow,
            True,
            "limits",
            "when full: drop-head, reject-publish, reject-publish-dlx",
            field="overflow",
            kinds=WORK_QUEUES,
            policy="overflow",
            accepts=checks.is_one_of(*OVERFLOWS),
            called="overflow value",
        ),
        Row(
            "x-dead-letter-exchange",
            checks.exchange_name,
            True,
            "dead_letters",
            "where messages go that end here",
            field="dead_letter_exchange",
            kinds=WORK_QUEUES,
            policy="dead-letter-exchange",
            accepts=checks.is_text,
            called="dead letter exchange name",
        ),
        Row(
            "x-dead-letter-routing-key",
            checks.dead_letter_key,
            True,
            "dead_letters",
            "under which key, if not their own",
            field="dead_letter_key",
            kinds=WORK_QUEUES,
            policy="dead-letter-routing-key",
            accepts=checks.is_text,
            called="dead letter routing key",
        ),
        Row(
            "x-dead-letter-strategy",
            checks.strategy,
            True,
            IGNORED,
            "ignored: at least once if durable",
            kinds=QUORUM,
            policy="dead-letter-strategy",
            accepts=checks.is_one_of(*checks.STRATEGIES),
            called="dead letter strategy",
        ),
        Row(
            "x-max-priority",
            checks.priority,
            True,
            "levels",
            "highest level of basic.priority told apart, 0-255",
            field="level_max",
            most=255,
            kinds=CLASSIC,
        ),
        Row(
            "x-single-active-consumer",
            checks.boolean,
            True,
            "delivery",
            "one consumer at a time, the others stand by",
            field="single_active",
        ),
        Row("x-queue-type", checks.queue_type, True, "kinds", "classic, quorum or stream; any other is refused"),
        Row(
            "x-max-age",
            checks.max_age,
            True,
            "stream_order",
            "of a stream: how long messages stay, `7D`: Y, M, D, h, m, s",
            field="max_age_ms",
            kinds=STREAM,
            policy="max-age",
            accepts=checks.is_interval,
            called="max age",
            merge="lowest",
        ),
        Row(
            "x-stream-max-segment-size-bytes",
            checks.segment_size,
            True,
            "stream_order",
            "of a stream: size of a file, 64 KiB to 1 GiB; files go as a whole",
            field="segment_size_bytes",
            most=checks.SEGMENT_SIZE_BYTES_MAX,
            kinds=STREAM,
            policy="stream-max-segment-size-bytes",
            accepts=checks.is_natural,
            called="segment size",
        ),
        Row(
            "x-compression",
            checks.codec,
            True,
            "stream_order",
            "of a stream: none, gzip, snappy, lz4 or zstd",
            field="codec",
            kinds=STREAM,
            policy="compression",
            accepts=checks.is_one_of(*CODECS),
            called="compression",
        ),
        Row(
            "x-compact",
            checks.boolean,
            True,
            "compaction",
            "of a stream: the last message of each routing key stays",
            field="cleanup",
            kinds=STREAM,
            policy="cleanup-policy",
            accepts=checks.is_one_of(*CLEANUPS),
            called="cleanup policy",
        ),
        Row(
            "x-stream-filter-size-bytes",
            checks.filter_size,
            False,
            IGNORED,
            "ignored: filters are exact",
            kinds=STREAM,
            policy="stream-filter-size-bytes",
            accepts=checks.is_filter_size,
            called="stream filter size",
        ),
        Row(
            "x-initial-cluster-size",
            checks.positive,
            True,
            IGNORED,
            "ignored: one node",
            kinds=STREAM,
            policy="initial-cluster-size",
            accepts=checks.is_positive,
            called="cluster size",
        ),
        Row(
            "x-delivery-limit",
            checks.non_negative,
            True,
            "limits",
            "quorum: returns before it is dead-lettered",
            field="delivery_limit",
            kinds=QUORUM,
            policy="delivery-limit",
            accepts=checks.is_natural,
            called="delivery limit",
            operator=True,
            merge="lowest",
        ),
        Row(
            "x-consumer-timeout",
            checks.milliseconds,
            True,
            "consuming",
            "how many ms a delivery may be unacked; 0: for ever",
            field="consumer_timeout_ms",
            most=TTL_MS_MAX,
            kinds=WORK_QUEUES,
            policy="consumer-timeout",
            accepts=checks.is_natural,
            called="consumer timeout",
            merge="lowest",
        ),
        Row(
            "x-export",
            checks.export_name,
            True,
            "make_queue",
            "what is settled stays until that export has it",
            kinds=WORK_QUEUES,
        ),
        Row(
            "x-export-max-bytes",
            checks.export_bytes,
            True,
            "make_queue",
            "how much of them stays at most; default 16 GiB",
            kinds=WORK_QUEUES,
        ),
        Row(
            "x-queue-mode",
            checks.queue_mode,
            True,
            IGNORED,
            "ignored: every queue pages to disk",
            kinds=CLASSIC,
            policy="queue-mode",
            accepts=checks.is_one_of(*checks.MODES),
            called="queue-mode value",
        ),
        Row(
            "x-queue-version",
            checks.queue_version,
            True,
            IGNORED,
            "ignored: there is one storage engine",
            kinds=CLASSIC,
            policy="queue-version",
            accepts=checks.is_one_of(1, 2),
            called="queue-version value",
        ),
        Row(
            "x-max-in-memory-length",
            checks.non_negative,
            True,
            IGNORED,
            "ignored: every queue pages to disk",
            kinds=QUORUM,
            policy="max-in-memory-length",
            accepts=checks.is_natural,
            called="maximum memory in bytes",  # rabbit: the text of the other one
            operator=True,
            merge="lowest",
        ),
        Row(
            "x-max-in-memory-bytes",
            checks.non_negative,
            True,
            IGNORED,
            "ignored: every queue pages to disk",
            kinds=QUORUM,
            policy="max-in-memory-bytes",
            accepts=checks.is_natural,
            called="maximum memory in bytes",
            operator=True,
            merge="lowest",
        ),
        Row(
            "x-queue-master-locator",
            checks.anything,
            True,
            IGNORED,
            "ignored: one node",
            kinds=CLASSIC,
            policy="queue-master-locator",
            accepts=checks.is_one_of("client-local", "min-masters", "random"),
            called="queue-master-locator value",
        ),
        Row(
            "x-queue-leader-locator",
            checks.leader_locator,
            True,
            IGNORED,
            "ignored: one node",
            kinds=REPLICATED,
            policy="queue-leader-locator",
            accepts=checks.is_one_of(*checks.LEADER_LOCATORS),
            called="queue leader locator value",
        ),
        Row(
            "x-quorum-initial-group-size",
            checks.positive,
            True,
            IGNORED,
            "ignored: one node",
            kinds=QUORUM,
        ),
        Row("x-ha-policy", checks.anything, False, IGNORED, "ignored: one node"),
    )
}

_ignored_seen: Final[set[str]] = set()


def _log_ignored(row: Row, context: Context) -> None:
    """Once per argument and process: a client declares the same thing a thousand times."""
    if row.name not in _ignored_seen:
        _ignored_seen.add(row.name)
        log.info("queue '%s' in vhost '%s': argument %s is %s", context.name, context.vhost, row.name, row.meaning)


def validate(queue: str, vhost: str, arguments: Mapping[str, object]) -> None:
    """Raises: PreconditionFailed."""
    context = Context(queue, vhost, arguments)
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None:
            check_kind(row, context)
            row.check(row, value, context)
            if row.obeyed_by == IGNORED:
                _log_ignored(row, context)


def rules_of(arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> Rules:
    """What a queue with these arguments, which have been validated, obeys; the defaults of its kind included.

    effective: by policy key, what the policies that match it say together. Cost: 1 us a rule.
    """
    values: dict[str, object] = {}
    admissions: list[Admission] = []
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
    return Rules(values, admissions) if values or admissions else PLAIN


def merged(arguments: Mapping[str, object], effective: Mapping[str, object]) -> dict[str, object]:
    """The arguments as if what the policies say had been given with them, by each row's rule. Keys of policies that
    no argument has are not in it: who obeys them looks at `effective`."""
    both = dict(arguments)
    for row in ROWS.values():
        value = effective.get(row.policy) if row.policy else None
        if value is None:
            continue
        if row.most is not None and isinstance(value, int) and value > row.most:
            value = row.most  # rabbit: a policy may say any number; ten years are for ever
        argument = arguments.get(row.name)
        if argument is None:
            both[row.name] = value
        elif row.merge == "lowest" and isinstance(value, int) and isinstance(argument, int):
            both[row.name] = min(value, argument)
        elif row.merge == "lowest" and isinstance(value, str) and isinstance(argument, str):
            both[row.name] = min(value, argument, key=interval_ms)
    return both


def compare(
    thing: str, vhost: str, compared: list[str], given: Mapping[str, object], current: Mapping[str, object]
) -> None:
    """Two sets of arguments must agree on the names in `compared`.

    thing: `queue 'q'` or `exchange 'x'`, for the text. The width of an integer does not matter. Raises:
    PreconditionFailed.
    """
    for name in compared:
        if name in given or name in current:
            _compare_one(thing, vhost, name, given, current)


def compared_names(kind: str) -> list[str]:
    """Those on which two declarations of a queue of this kind must agree."""
    return [row.name for row in ROWS.values() if row.compared and (row.kinds is None or kind in row.kinds)]


def _compare_one(
    thing: str, vhost: str, name: str, given: Mapping[str, object], current: Mapping[str, object]
) -> None:
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
    if isinstance(value, bool) is not isinstance(other, bool) or value != other:
        raise PreconditionFailed(f"{start} '{_shown(value)}' but current is '{_shown(other)}'")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
