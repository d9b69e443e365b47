"""What streams are told of how they are stored: x-compact and the policy key cleanup-policy; x-compression.

A compacted stream keeps the latest message of each routing key. What is superseded goes in the background, some time
after it was superseded (storage/cleaner.py); offsets stay, so readers see gaps. A *tombstone* takes what was
before it under its routing key away, and goes itself a day after it was cleaned: a message without a body that has the
header `x-tombstone: true`. AMQP knows no message without a value, so the header says it; with a body it is a message as
any other, since nobody means to throw a body away.

`x-compact: true` compacts besides what x-max-age and x-max-length-bytes let go. A policy says `compact` (nothing goes
by age or size), `delete` (no compaction) or `compact,delete`, as Kafka's cleanup.policy does.
"""

from __future__ import annotations

from typing import Final

from amqpd.broker.message import Message
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.properties import headers_of
from amqpd.storage.log.batch import CODECS

TOMBSTONE: Final = "x-tombstone"
CLEANUPS: Final = ("compact", "delete", "compact,delete")
SEGMENT_AGE_MS: Final = 10 * 60_000
"""The active segment is never compacted, so of a compacted stream it is rolled when its first message is older."""


def is_tombstone(message: Message) -> bool:
    """Whether a message without a body ends its routing key. Cost: 1 us, and decoding its headers."""
    properties = message.properties()
    try:
        return headers_of(properties, 0, len(properties)).get(TOMBSTONE) is True
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
