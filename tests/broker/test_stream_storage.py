"""How streams are stored: x-compression, x-compact, tombstones, and the policies for them."""

from __future__ import annotations

import random

import pytest

from amqpd.broker.message import MessageRoute, make_message
from amqpd.broker.queue.arguments import merged, rules_of, validate
from amqpd.broker.queue.config import SEGMENT_AGE_MS, is_tombstone
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.stream import retention_of
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import ExchangeDeclaration
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import encode_table
from amqpd.storage.log.batch import CODECS, BatchHeader

DAY_MS = 24 * 3_600_000


def stream(room, **arguments: object) -> Queue:
    return room.queue("s", x_queue_type="stream", **arguments)


def batches(queue: Queue) -> list[BatchHeader]:
    found = []
    for segment in queue.store.log.segments:  # type: ignore[union-attr]
        data = queue.store.log.filesystem.read_file(segment.prefix + ".log")  # type: ignore[union-attr]
        position = 0
        while position < len(data):
            found.append(BatchHeader(data, position))
            position += int(found[-1].size)
    return found


def records(queue: Queue) -> list[tuple[int, bytes, bytes, bool]]:
    fetched = queue.store.cursor.read(0, 1 << 40).records  # type: ignore[union-attr]
    return [(int(each.offset), each.routing_key, each.body, each.tombstone) for each in fetched]


class TestArguments:
    @pytest.mark.parametrize("name", CODECS)
    def test_batches_have_the_codec(self, room, name: str) -> None:
        queue = stream(room, x_compression=name)
        for number in range(5):
            room.publish("s", b"%d" % number + b"." * 500)
        assert {int(header.attributes) & 7 for header in batches(queue)} == {CODECS.index(name)}
        assert [body[:1] for _, _, body, _ in records(queue)] == [b"0", b"1", b"2", b"3", b"4"]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"x-compression": "lzma"}, "invalid arg 'x-compression' for queue 'q' in vhost '/': invalid_compression"),
            ({"x-compression": 4}, "{unacceptable_type,signedint}|{unacceptable_type,[a-z]+}"),
            ({"x-compact": "yes"}, "{unacceptable_type,longstr}|{unacceptable_type,[a-z]+}"),
        ],
    )
    def test_invalid_values_are_refused(self, arguments: dict[str, object], words: str) -> None:
        with pytest.raises(PreconditionFailed, match=words):
            validate("q", "/", {"x-queue-type": "stream", **arguments})

    @pytest.mark.parametrize("kind", ["classic", "quorum"])
    @pytest.mark.parametrize("argument", [{"x-compression": "zstd"}, {"x-compact": True}])
    def test_other_queue_types_refuse_compression_and_compact(self, kind: str, argument: dict[str, object]) -> None:
        with pytest.raises(PreconditionFailed, match=f"of queue type rabbit_{kind}_queue"):
            validate("q", "/", {"x-queue-type": kind, **argument})

    @pytest.mark.parametrize(
        ("arguments", "policy", "compacts", "age_ms", "roll_ms"),
        [
            ({}, {}, False, -1, -1),
            ({"x-compact": True}, {}, True, -1, SEGMENT_AGE_MS),
            ({"x-compact": True, "x-max-age": "1D"}, {}, True, DAY_MS, SEGMENT_AGE_MS),
            ({"x-compact": True, "x-max-age": "1m"}, {}, True, 60_000, 60_000),
            ({"x-max-age": "1D"}, {"cleanup-policy": "compact"}, True, -1, SEGMENT_AGE_MS),
            ({"x-max-age": "1D"}, {"cleanup-policy": "compact,delete"}, True, DAY_MS, SEGMENT_AGE_MS),
            ({"x-max-age": "1D"}, {"cleanup-policy": "delete"}, False, DAY_MS, DAY_MS),
            ({"x-compact": False}, {"cleanup-policy": "compact"}, False, -1, -1),
            ({"x-compact": True}, {"cleanup-policy": "delete"}, True, -1, SEGMENT_AGE_MS),
        ],
    )
    def test_retention_of_arguments_and_policy(
        self, arguments: dict[str, object], policy: dict[str, object], compacts: bool, age_ms: int, roll_ms: int
    ) -> None:
        retention = retention_of(rules_of({"x-queue-type": "stream", **arguments}, policy))
        assert (retention.compaction is not None, retention.max_age_ms, retention.segment_age_ms) == (
            compacts,
            age_ms,
            roll_ms,
        )

    def test_codec_argument_wins_over_policy(self) -> None:
        policy = {"compression": "zstd"}
        assert retention_of(rules_of({"x-queue-type": "stream"}, policy)).codec == 4
        given = {"x-queue-type": "stream", "x-compression": "none"}
        assert merged(given, policy) == given
        assert retention_of(rules_of(given, policy)).codec == 0


def test_codec_policy_is_set_changed_and_cleared(room) -> None:
    queue = stream(room)
    for policy in ({}, {"compression": "lz4"}, {"compression": "zstd", "cleanup-policy": "compact"}, {}):
        queue.apply_config(rules_of(queue.arguments, policy))
        room.publish("s", b"." * 500)
    assert [int(header.attributes) & 7 for header in batches(queue)] == [0, 3, 4, 0]
    assert not queue.backing.compacts


class TestTombstones:
    @pytest.mark.parametrize(
        ("headers", "body", "is_one"),
        [
            ({"x-tombstone": True}, b"", True),
            ({"x-tombstone": True, "a": 1}, b"", True),
            ({"x-tombstone": False}, b"", False),
            ({"x-tombstone": "true"}, b"", False),
            ({"x-tombstone": 1}, b"", False),
            ({}, b"", False),
            ({"x-tombstone": True}, b"body", False),
        ],
    )
    def test_only_empty_message_with_true_header_is_a_tombstone(
        self, room, headers: dict[str, object], body: bytes, is_one: bool
    ) -> None:
        for compact in (True, False):
            queue = room.queue(f"s{compact}", x_queue_type="stream", x_compact=compact)
            room.publish(queue.name, body, headers=headers or None)
            assert records(queue) == [(0, queue.name.encode(), body, is_one and compact)]


def test_compaction_keeps_the_last_message_of_each_key(room) -> None:
    """The log has gaps after compaction, and the messages after a gap are still there."""
    queue = stream(room, x_compact=True, x_compression="zstd", x_stream_max_segment_size_bytes=64 * 1024)
    declare.declare_exchange(room.vhost, ExchangeDeclaration("keys", "topic", True, False, False, {}))
    declare.bind(room.vhost, room.vhost.exchanges["keys"], queue, "#", {})
    rng = random.Random(3)
    latest: dict[bytes, int] = {}
    for offset in range(600):
        key = f"k{rng.randrange(12)}"
        room.publish(key, rng.randbytes(600), exchange="keys")
        latest[key.encode()] = offset
    room.publish("k1", b"", exchange="keys", headers={"x-tombstone": True})
    latest[b"k1"] = 600
    assert len(queue.store.log.segments) > 4
    active = int(queue.store.log.segments[-1].base)
    room.storage.maintain()
    room.turns()
    found = records(queue)
    kept = [(offset, key) for offset, key, _, _ in found if offset < active]
    assert len(kept) <= 12
    for key, offset in latest.items():
        assert any(each[:2] == (offset, key) for each in found)
    assert found[-1] == (600, b"k1", b"", True)
    assert queue.ready_count == len(found)


def test_malformed_properties_are_no_tombstone() -> None:
    truncated = b"\x20\x00" + encode_table({"x-tombstone": True})[:-3]
    assert not is_tombstone(make_message(MessageRoute("", "k"), truncated, b"", True, None))
