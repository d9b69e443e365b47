"""Rules: what a queue obeys beside keeping its messages in order, as one immutable value.

They are made from a declaration's arguments (`arguments.rules_of`) and exchanged as a whole while the queue runs
(`Queue.obey`). A queue whose rules are `plain` looks at none of them: it has no `Enforcement` (limits.py), and
that is the one test it makes. Queues whose rules are alike may share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Source
from amqpd.broker.message import Message
from amqpd.broker.queue.compaction import cleanup_of, codec_of
from amqpd.broker.queue.services import QueueHost
from amqpd.broker.queue.retry_rule import RetryRule, retry_rule
from amqpd.broker.stream_start import interval_ms

OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")


@mypyc_attr(allow_interpreted_subclasses=True)
class Admission:
    """A rule that looks at every message that is offered to a queue. One object serves every queue that has the rule:
    it keeps nothing of them."""

    def admits(self, queue: Source, host: QueueHost, message: Message) -> bool:
        """False: the queue does not take it, and its publisher is nacked. On the message path: 0.1 us at most."""
        raise NotImplementedError


@final
class Rules:
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
    codec: of its batches (x-compression), a number of storage/log/compression.py; 0: none. cleanup: `compact`, `delete`
    or both: whether what is superseded goes, and what is too old or too much (compaction.py).
    """

    def __init__(self, values: Mapping[str, object], admissions: Sequence[Admission] = ()) -> None:
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
        self.retry: Final[RetryRule | None] = retry_rule(values)
        has_length = not self.stream and (self.length_max >= 0 or self.length_bytes_max >= 0)
        # Whether what is over a length goes from the head; else newcomers are refused.
        self.drops_head: Final[bool] = has_length and self.overflow == "drop-head"
        looking: list[Admission] = list(admissions)
        if has_length and not self.drops_head:
            # rabbit: also when a consumer waits, so nothing passes a limit of 0
            looking.append(RejectPublish(self.length_max, self.length_bytes_max, self.overflow == "reject-publish-dlx"))
        self.admissions: Final[list[Admission]] = looking
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
class RejectPublish(Admission):
    """x-overflow of reject-publish and reject-publish-dlx: a full queue takes nothing. dlx: what it refuses is
    dead-lettered, where the queue has an exchange for that."""

    def __init__(self, length_max: i64, length_bytes_max: i64, dlx: bool) -> None:
        self.length_max = length_max
        self.length_bytes_max = length_bytes_max
        self.dlx = dlx

    def admits(self, queue: Source, host: QueueHost, message: Message) -> bool:
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


PLAIN: Final = Rules({})
