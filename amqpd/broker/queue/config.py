"""Rules of a queue (`QueueConfig`): everything that it obeys besides the order of its messages, as an immutable value.

`arguments.rules_of` makes the rules from arguments and policies. `Queue.apply_config` replaces them as a whole while
the queue runs. A queue with `plain` rules has no `QueueLimits` (limits.py), and this is its only test. Queues with
equal rules may share one object.

**Compacted streams** (x-compact, policy key cleanup-policy) keep the latest message of each routing key. Compaction
(storage/compaction.py) removes older ones in the background. Offsets do not change, so readers see gaps. A *tombstone*
is a message without a body and with the header `x-tombstone: true`. It removes the earlier messages of its routing key,
and is removed itself a day after it was cleaned. AMQP has no message without a value, therefore the header is needed. A
message with a body is never a tombstone, so that no body is lost by accident.

`x-compact: true` compacts in addition to x-max-age and x-max-length-bytes. A policy can say `compact` (no deletion by
age or size), `delete` (no compaction) or `compact,delete`, like Kafka's cleanup.policy.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.message import TTL_MS_MAX, Message
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.stream_message import interval_ms
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.properties import decode_headers
from amqpd.storage.log.batch import CODECS
from amqpd.storage.log.foreign_record import SHORT_BYTES_MAX, shortened

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

TOMBSTONE: Final = "x-tombstone"
CLEANUPS: Final = ("compact", "delete", "compact,delete")
SEGMENT_AGE_MS: Final = 10 * 60_000
"""A compacted stream rolls its active segment at this age of the first message: the active one is never compacted."""


def is_tombstone(message: Message) -> bool:
    """Return whether a message without a body is a tombstone. Cost: 1 us, and decoding its headers."""
    properties = message.properties()
    try:
        return decode_headers(properties, 0, len(properties)).get(TOMBSTONE) is True
    except CodecError:  # the channel checks headers, but other publishers do not
        return False


def codec_of(name: object) -> int:
    """Return the storage's number of a codec of x-compression; 0 for `none`."""
    return CODECS.index(name) if name in CODECS else 0


def cleanup_of(value: object) -> str:
    """Return one of CLEANUPS for the value of x-compact (a boolean) or of the policy key."""
    if isinstance(value, str) and value in CLEANUPS:
        return value
    return "compact,delete" if value is True else "delete"


TYPES: Final = ("disabled", "all", "failed", "returned")
LEVELS_MAX: Final = 100
COUNT_MAX: Final[i64] = 1 << 20


@final
class RetryPolicy:
    """Policy for returned messages (x-delayed-retry-*): which ones wait before the next delivery, and how long.

    A message is *failed* after basic.reject with requeue, or when its channel or connection has ended. It is *returned*
    after basic.nack with requeue, basic.recover or a consumer timeout. RabbitMQ 4.3 makes the same distinction.

    Before the n-th retry a message waits `min_ms` x n, at most `max_ms`; or the n-th of `levels_ms`, and the last level
    from then on. n is the delivery count. Every return raises it here; RabbitMQ does not raise it for a nack, a recover
    or a timeout.

    Source: https://www.rabbitmq.com/docs/quorum-queues#delayed-retry

    Attributes:
        failed: Failed messages wait.
        returned: Returned messages wait.
        levels_ms: If not empty, used instead of `min_ms` and `max_ms`.
        longest_ms: Longest wait of any message.
    """

    def __init__(self, failed: bool, returned: bool, min_ms: i64, max_ms: i64, levels_ms: list[int]) -> None:
        self.failed: Final[bool] = failed
        self.returned: Final[bool] = returned
        self.min_ms: Final[i64] = min_ms
        self.max_ms: Final[i64] = max_ms
        self.levels_ms: Final[list[int]] = levels_ms
        longest: i64 = max_ms
        if levels_ms:
            longest = max(levels_ms)
        self.longest_ms: Final[i64] = longest

    def delay_ms(self, failed: bool, count: i64) -> i64:
        """Return the wait of a message that was returned for the `count`-th time; 0 for no wait."""
        if not (self.failed if failed else self.returned):
            return 0
        if count < 1:
            count = 1
        levels = self.levels_ms
        if levels:
            last: i64 = len(levels)
            return levels[(count if count < last else last) - 1]
        # A minimum of ten years times a count of a million is far below 2^63.
        delay_ms = self.min_ms * (count if count < COUNT_MAX else COUNT_MAX)
        return delay_ms if delay_ms < self.max_ms else self.max_ms


def levels_of(value: object) -> list[int] | None:
    """Return the levels in ms of a text like "1m,5m,30m" or of an array of milliseconds.

    None: the value is no such list. Valid are 1 to LEVELS_MAX levels, each above 0 and at most ten years.
    """
    levels: list[int] = []
    if isinstance(value, str):
        for part in value.split(","):
            levels.append(interval_ms(part.strip()))
    elif isinstance(value, list):
        for each in value:
            if not isinstance(each, int) or isinstance(each, bool):
                return None
            levels.append(each)
    if not 1 <= len(levels) <= LEVELS_MAX:
        return None
    for level in levels:
        if not 1 <= level <= TTL_MS_MAX:
            return None
    return levels


def is_levels(value: object) -> bool:
    """Return whether a policy may have this value for delayed-retry-levels."""
    return levels_of(value) is not None


def retry_rule(values: Mapping[str, object]) -> RetryPolicy | None:
    """Return the retry policy of these rules. None: no message waits, because type or time is not set."""
    when = values.get("retry_type")
    if when not in TYPES or when == "disabled":
        return None
    failed = when != "returned"
    returned = when != "failed"
    levels = levels_of(values.get("retry_levels"))
    if levels is not None:
        return RetryPolicy(failed, returned, 0, 0, levels)
    least = values.get("retry_min_ms")
    if not isinstance(least, int):
        return None
    most = values.get("retry_max_ms")
    return RetryPolicy(failed, returned, least, most if isinstance(most, int) else least, [])


OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")


@mypyc_attr(allow_interpreted_subclasses=True)
class PublishCheck:
    """A rule that can refuse messages. It has no state: queues with the same rule may share it."""

    def admits(self, queue: Queue, host: QueueServices, message: Message) -> bool:
        """Return False to refuse the message; its publisher gets a nack. Hot path: 0.1 us at most."""
        raise NotImplementedError


@final
class QueueConfig:
    """The rules of one queue or stream, immutable. A number of -1: no such rule.

    Args:
        values: Checked values by field name. A missing name means no such rule.
        admissions: Further rules for incoming messages.

    Attributes:
        ttl_ms: x-message-ttl.
        expires_ms: x-expires.
        length_max: Maximum of ready messages.
        length_bytes_max: Maximum of ready body bytes; for a stream, of bytes in files.
        overflow: One of OVERFLOWS: what happens when the queue is full.
        delivery_limit: Returns before a message is dead-lettered.
        level_max: x-max-priority.
        group_by: x-group-by; "" for none.
        retry: x-delayed-retry-*; None if no message waits for a retry.
        counts_shown: Deliveries have the header x-delivery-count.
        single_active: x-single-active-consumer.
        stream: Deliveries remove no messages; only length_bytes_max, max_age_ms and compaction do.
        max_age_ms: x-max-age.
        segment_size_bytes: x-stream-max-segment-size-bytes.
        codec: x-compression: number of a codec in storage/log/batch.py; 0 for none.
        cleanup: One of CLEANUPS.
        retains: Settled messages are kept (x-retain) until `retain_ms` or `retain_bytes` is exceeded.
        drops_head: A full queue drops from its head; otherwise it refuses new messages.
        admissions: All rules for incoming messages, in order.
        plain: There is no rule. The queue then has no `QueueLimits`.
    """

    def __init__(self, values: Mapping[str, object], admissions: Sequence[PublishCheck] = ()) -> None:
        self.ttl_ms: Final[i64] = number(values, "ttl_ms")
        self.expires_ms: Final[i64] = number(values, "expires_ms")
        self.length_max: Final[i64] = number(values, "length_max")
        self.length_bytes_max: Final[i64] = number(values, "length_bytes_max")
        self.delivery_limit: Final[i64] = number(values, "delivery_limit")
        self.consumer_timeout_ms: Final[i64] = number(values, "consumer_timeout_ms")
        self.level_max: Final[i64] = number(values, "level_max")
        self.group_by: Final[str] = text(values, "group_by") or ""
        self.overflow: Final[str] = text(values, "overflow") or OVERFLOWS[0]
        self.dead_letter_exchange: Final[str | None] = text(values, "dead_letter_exchange")
        self.dead_letter_key: Final[str | None] = routing_key(values, "dead_letter_key")
        self.counts_shown: Final[bool] = values.get("counts_shown") is True
        self.single_active: Final[bool] = values.get("single_active") is True
        self.stream: Final[bool] = values.get("stream") is True
        self.max_age_ms: Final[i64] = age_ms(values, "max_age_ms")
        self.segment_size_bytes: Final[i64] = number(values, "segment_size_bytes")
        self.codec: Final[i64] = codec_of(values.get("codec", "none"))
        self.cleanup: Final[str] = cleanup_of(values.get("cleanup"))
        # x-retain as a number is bytes, as a text an age.
        self.retain_bytes: Final[i64] = number(values, "retain")
        self.retain_ms: Final[i64] = age_ms(values, "retain")
        self.retains: Final[bool] = self.retain_bytes >= 0 or self.retain_ms >= 0
        self.retry: Final[RetryPolicy | None] = retry_rule(values)
        has_length = not self.stream and (self.length_max >= 0 or self.length_bytes_max >= 0)
        self.drops_head: Final[bool] = has_length and self.overflow == "drop-head"
        looking: list[PublishCheck] = list(admissions)
        if has_length and not self.drops_head:
            # rabbit: checks this also if a consumer waits, so a queue with limit 0 accepts nothing
            looking.append(RejectPublish(self.overflow == "reject-publish-dlx"))
        self.admissions: Final[list[PublishCheck]] = looking
        self.plain: Final[bool] = (
            self.ttl_ms < 0
            and self.expires_ms < 0
            and not has_length
            and self.dead_letter_exchange is None
            and self.delivery_limit < 0
            and self.retry is None
            and not self.counts_shown
            and not self.stream
            and not looking
            and not self.retains
        )

    def is_over(self, count: i64, size_bytes: i64) -> bool:
        """Return whether so many ready messages or body bytes exceed the length limits."""
        return 0 <= self.length_max < count or 0 <= self.length_bytes_max < size_bytes


@final
class RejectPublish(PublishCheck):
    """x-overflow reject-publish and reject-publish-dlx: a full queue refuses new messages.

    dlx: refused messages are dead-lettered, if the queue has a dead letter exchange.
    """

    def __init__(self, dlx: bool) -> None:
        self.dlx = dlx

    def admits(self, queue: Queue, host: QueueServices, message: Message) -> bool:
        if queue.has_room(1, message.body_size):
            return True
        if self.dlx and queue.makes_dead_letters():
            host.dead_letters.add(queue, None, message, "maxlen")
        return False


def number(values: Mapping[str, object], name: str) -> i64:
    """Return the number, limited to 2^60; -1 if it is not set."""
    value = values.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 1 << 60 else 1 << 60
    return -1


def age_ms(values: Mapping[str, object], name: str) -> i64:
    """Return the milliseconds of a checked text like `7D`; -1 if it is not set."""
    value = values.get(name)
    return interval_ms(value) if isinstance(value, str) else -1


def text(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None


def routing_key(values: Mapping[str, object], name: str) -> str | None:
    """Return the routing key, cut to the size of one: earlier versions accepted longer ones."""
    value = text(values, name)
    key = b"" if value is None else value.encode("utf-8", "surrogateescape")
    return value if len(key) <= SHORT_BYTES_MAX else shortened(key).decode()


PLAIN: Final = QueueConfig({})
