"""The states of all transactional ids: a compacted log (compacted_log.py), the directory `kafka-transactions`.

    key     version 1, vhost id, transactional id
    value   version 1, state (int8), producer id (int64), epoch, last epoch (int16), time-out (int32), start, update
            (int64, ms since 1970), the partitions and the groups, each with a count (int32) before: topic, id of the
            stream (16 bytes), partition (int32); group

A text is a length of 2 bytes and UTF-8. Records of an unknown version are kept and ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from amqpd.kafka_server.compacted_log import CompactedLog, LogHost, decode_text, encode_text
from amqpd.kafka_server.transactions import TransactionMetadata, TransactionPartition, TransactionState

DIRECTORY: Final = "kafka-transactions"
QUEUE_ID: Final = "0" * 31 + "3"

TransactionKey = tuple[str, str]
"""Vhost id and transactional id."""

_VERSION: Final = b"\x01"
_INT32: Final = struct.Struct(">i")
_PLACE: Final = struct.Struct(">16si")
_FIXED: Final = struct.Struct(">bqhhiqq")


def encode_key(key: TransactionKey) -> bytes:
    return _VERSION + encode_text(key[0]) + encode_text(key[1])


def decode_key(data: bytes) -> TransactionKey | None:
    """Return the key; None if its version is unknown or it is damaged."""
    if data[:1] != _VERSION:
        return None
    try:
        vhost_id, position = decode_text(data, 1)
        return vhost_id, decode_text(data, position)[0]
    except (struct.error, ValueError):
        return None


def encode_value(value: TransactionMetadata) -> bytes:
    parts = [
        _VERSION,
        _FIXED.pack(
            value.state.value,
            value.producer_id,
            value.epoch,
            value.last_epoch,
            value.timeout_ms,
            value.start_ms,
            value.update_ms,
        ),
        _INT32.pack(len(value.partitions)),
    ]
    for each in sorted(value.partitions):
        parts += (encode_text(each.topic), _PLACE.pack(each.queue_id, each.partition))
    parts.append(_INT32.pack(len(value.groups)))
    parts += [encode_text(group) for group in sorted(value.groups)]
    return b"".join(parts)


def decode_value(data: bytes) -> TransactionMetadata | None:
    """Return the transaction; None if its version is unknown or it is damaged."""
    if data[:1] != _VERSION:
        return None
    try:
        state, producer_id, epoch, last_epoch, timeout_ms, start_ms, update_ms = _FIXED.unpack_from(data, 1)
        position = 1 + _FIXED.size
        partitions: list[TransactionPartition] = []
        count = _INT32.unpack_from(data, position)[0]
        position += 4
        for _ in range(count):
            topic, position = decode_text(data, position)
            partitions.append(TransactionPartition(topic, *_PLACE.unpack_from(data, position)))
            position += _PLACE.size
        groups: list[str] = []
        count = _INT32.unpack_from(data, position)[0]
        position += 4
        for _ in range(count):
            group, position = decode_text(data, position)
            groups.append(group)
        return TransactionMetadata(
            producer_id,
            epoch,
            last_epoch,
            timeout_ms,
            TransactionState(state),
            frozenset(partitions),
            frozenset(groups),
            start_ms,
            update_ms,
        )
    except (struct.error, ValueError):
        return None


class TransactionLog(CompactedLog):
    """The log of transaction states: the last record of a transactional id counts.

    Attributes:
        found: what was read; the coordinator takes it.
    """

    directory = DIRECTORY
    queue_id = QUEUE_ID
    content = "states of Kafka's transactions"

    def __init__(self, host: LogHost, loaded: Callable[[], None]) -> None:
        super().__init__(host, loaded)
        self.found: dict[TransactionKey, TransactionMetadata] = {}

    def clear(self) -> None:
        self.found.clear()

    def take(self, key: bytes, value: bytes | None) -> bool:
        place = decode_key(key)
        transaction = None if value is None else decode_value(value)
        if place is None or (transaction is None and value is not None):
            return False
        if transaction is None:
            self.found.pop(place, None)
        else:
            self.found[place] = transaction
        return True

    def write(self, key: TransactionKey, transaction: TransactionMetadata, done: Callable[[bool], None]) -> None:
        """Write a state. `done(True)` is called when it is synced, `done(False)` if it could not be written."""
        self.append(1, [(encode_key(key), encode_value(transaction))], done)

    def remove(self, keys: Sequence[TransactionKey], done: Callable[[bool], None]) -> None:
        """Remove transactional ids. `done` as for `write`."""
        self.append(len(keys), ((encode_key(key), None) for key in keys), done)
