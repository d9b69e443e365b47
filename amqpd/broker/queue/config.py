"""Rules: what a queue obeys beside keeping its messages in order, as one immutable value.

They are made from a declaration's arguments (`arguments.rules_of`) and exchanged as a whole while the queue runs
(`Queue.obey`). A queue whose rules are `plain` looks at none of them: it has no `QueueLimits` (limits.py), and
that is the one test it makes. Queues whose rules are alike may share them.

What streams are told of how they are stored: x-compact and the policy key cleanup-policy; x-compression.

A compacted stream keeps the latest message of each routing key. What is superseded goes in the background, some time
after it was superseded (storage/compaction.py); offsets stay, so readers see gaps. A *tombstone* takes what was
before it under its routing key away, and goes itself a day after it was cleaned: a message without a body that has the
header `x-tombstone: true`. AMQP knows no message without a value, so the header says it; with a body it is a message as
any other, since nobody means to throw a body away.

`x-compact: true` compacts besides what x-max-age and x-max-length-bytes let go. A policy says `compact` (nothing goes
by age or size), `delete` (no compaction) or `compact,delete`, as Kafka's cleanup.policy does.

Which messages that come back wait before they are delivered again, and how long: x-delayed-retry-*, as one value.

A message comes back *failed* (basic.reject with requeue; its channel or connection ended) or *returned* (basic.nack
with requeue, basic.recover, a consumer timeout), which is how RabbitMQ 4.3 tells them apart; the type says which of
them wait. The n-th time it waits `min` x n, `max` at most, which is `min` where it is not given; or by a list of levels
the n-th of them, and the last one from then on. n is the message's delivery count, which every return raises here;
there a nack, a recover or a timeout does not.

Source: https://www.rabbitmq.com/docs/quorum-queues#delayed-retry, and its table of when the delivery count is raised.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import QueueBase
from amqpd.broker.message import TTL_MS_MAX, Message
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.stream_message import interval_ms
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.properties import decode_headers
from amqpd.storage.log.batch import CODECS

TOMBSTONE: Final = "x-tombstone"
CLEANUPS: Final = ("compact", "delete", "compact,delete")
SEGMENT_AGE_MS: Final = 10 * 60_000
"""The active segment is never compacted, so of a compacted stream it is rolled when its first message is older."""


def is_tombstone(message: Message) -> bool:
    """Whether a message without a body ends its routing key. Cost: 1 us, and decoding its headers."""
    properties = message.properties()
    try:
        return decode_headers(properties, 0, len(properties)).get(TOMBSTONE) is True
    except CodecError:  # the channel has looked at them; who publishes in another way is not let down
        return False


def codec_of(name: object) -> int:
    """The number of a codec that x-compression names, as the storage knows it; 0 for `none`."""
    return CODECS.index(name) if name in CODECS else 0


def cleanup_of(value: object) -> str:
    """One of CLEANUPS, for what x-compact (a boolean) or the policy says."""
    if isinstance(value, str) and value in CLEANUPS:
        return value
    return "compact,delete" if value is True else "delete"


TYPES: Final = ("disabled", "all", "failed", "returned")
LEVELS_MAX: Final = 100
COUNT_MAX: Final[i64] = 1 << 20


@final
class RetryPolicy:
    """failed, returned: whether such a message waits. min_ms, max_ms: as above. levels_ms: not empty: these instead."""

    def __init__(self, failed: bool, returned: bool, min_ms: i64, max_ms: i64, levels_ms: list[int]) -> None:
        self.failed: Final[bool] = failed
        self.returned: Final[bool] = returned
        self.min_ms: Final[i64] = min_ms
        self.max_ms: Final[i64] = max_ms
        self.levels_ms: Final[list[int]] = levels_ms
        longest: i64 = max_ms
        if levels_ms:
            longest = max(levels_ms)
        # No message waits longer.
        self.longest_ms: Final[i64] = longest

    def delay_ms(self, failed: bool, count: i64) -> i64:
        """How long a message waits that came back for the `count`-th time; 0: it does not."""
        if not (self.failed if failed else self.returned):
            return 0
        if count < 1:
            count = 1
        levels = self.levels_ms
        if levels:
            last: i64 = len(levels)
            return levels[(count if count < last else last) - 1]
        # Both are ten years at most, and a count a million: their product is far below 2^63.
        delay_ms = self.min_ms * (count if count < COUNT_MAX else COUNT_MAX)
        return delay_ms if delay_ms < self.max_ms else self.max_ms


def levels_of(value: object) -> list[int] | None:
    """Milliseconds of "1m,5m,30m", or of an array of them: 1 to LEVELS_MAX, each above 0 and ten years at most. None:
    it is no such list.
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
    """Whether a policy may say so."""
    return levels_of(value) is not None


def retry_rule(values: Mapping[str, object]) -> RetryPolicy | None:
    """Of `QueueConfig`, by the names of its fields. None: nothing waits, as no type says so or no time is given."""
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
    """A rule that looks at every message that is offered to a queue. One object serves every queue that has the rule:
    it keeps nothing of them."""

    def admits(self, queue: QueueBase, host: QueueServices, message: Message) -> bool:
        """False: the queue does not take it, and its publisher is nacked. On the message path: 0.1 us at most."""
        raise NotImplementedError


@final
class QueueConfig:
    """values: by the names below, checked; what is not in it is not a rule of this queue. admissions: further rules
    that look at what comes in.

    Numbers are -1 where there is no such rule: ttl_ms (x-message-ttl), expires_ms (x-expires), length_max and
    length_bytes_max (of what is ready), delivery_limit, level_max (x-max-priority). overflow: one of OVERFLOWS, what
    happens beyond the lengths. group_by: x-group-by, "" for none. retry: x-delayed-retry-*, None where nothing waits
    before it is delivered again. dead_letter_exchange, dead_letter_key: None where
    there is none. counts_shown: deliveries carry x-delivery-count. single_active: x-single-active-consumer. stream:
    nothing is taken, and length_bytes_max, max_age_ms (x-max-age) and segment_size_bytes
    (x-stream-max-segment-size-bytes) say what stays.
    retains: what is settled stays (x-retain) until it is older than retain_ms or more than retain_bytes.
    codec: of its batches (x-compression), a number of storage/log/batch.py; 0: none. cleanup: `compact`, `delete`
    or both: whether what is superseded goes, and what is too old or too much (compaction.py).
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
        self.dead_letter_key: Final[str | None] = text(values, "dead_letter_key")
        self.counts_shown: Final[bool] = values.get("counts_shown") is True
        self.single_active: Final[bool] = values.get("single_active") is True
        self.stream: Final[bool] = values.get("stream") is True
        self.max_age_ms: Final[i64] = age_ms(values, "max_age_ms")
        self.segment_size_bytes: Final[i64] = number(values, "segment_size_bytes")
        self.codec: Final[i64] = codec_of(values.get("codec", "none"))
        self.cleanup: Final[str] = cleanup_of(values.get("cleanup"))
        # A number is bytes, a text a time; -1 where it is not that.
        self.retain_bytes: Final[i64] = number(values, "retain")
        self.retain_ms: Final[i64] = age_ms(values, "retain")
        self.retains: Final[bool] = self.retain_bytes >= 0 or self.retain_ms >= 0
        self.retry: Final[RetryPolicy | None] = retry_rule(values)
        has_length = not self.stream and (self.length_max >= 0 or self.length_bytes_max >= 0)
        # Whether what is over a length goes from the head; else newcomers are refused.
        self.drops_head: Final[bool] = has_length and self.overflow == "drop-head"
        looking: list[PublishCheck] = list(admissions)
        if has_length and not self.drops_head:
            # rabbit: also when a consumer waits, so nothing passes a limit of 0
            looking.append(RejectPublish(self.length_max, self.length_bytes_max, self.overflow == "reject-publish-dlx"))
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
        """Whether so many ready messages, and body bytes of them, are more than the lengths allow."""
        return is_over(self.length_max, self.length_bytes_max, count, size_bytes)


def is_over(length_max: i64, length_bytes_max: i64, count: i64, size_bytes: i64) -> bool:
    """Whether one of the two bounds is passed; -1: it is none."""
    if length_max >= 0 and count > length_max:
        return True
    return length_bytes_max >= 0 and size_bytes > length_bytes_max


@final
class RejectPublish(PublishCheck):
    """x-overflow of reject-publish and reject-publish-dlx: a full queue takes nothing. dlx: what it refuses is
    dead-lettered, where the queue has an exchange for that."""

    def __init__(self, length_max: i64, length_bytes_max: i64, dlx: bool) -> None:
        self.length_max = length_max
        self.length_bytes_max = length_bytes_max
        self.dlx = dlx

    def admits(self, queue: QueueBase, host: QueueServices, message: Message) -> bool:
        size_bytes = queue.ready_bytes + queue.delayed_bytes + message.body_size
        if not is_over(self.length_max, self.length_bytes_max, queue.ready_count + queue.delayed_count + 1, size_bytes):
            return True
        if self.dlx and queue.makes_dead_letters():
            host.dead_letter(queue, None, message, "maxlen")
        return False


def number(values: Mapping[str, object], name: str) -> i64:
    """-1: not given."""
    value = values.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 1 << 60 else 1 << 60
    return -1


def age_ms(values: Mapping[str, object], name: str) -> i64:
    """Of a text such as `7D`, checked; -1: not given."""
    value = values.get(name)
    return interval_ms(value) if isinstance(value, str) else -1


def text(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None


PLAIN: Final = QueueConfig({})
