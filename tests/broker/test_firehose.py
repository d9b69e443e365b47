"""The firehose tracer: slices, limits, on and off. interop/test_firehose.py tests the content of copies."""

from __future__ import annotations

import logging

import pytest

from amqpd.broker.message import Message, MessageRoute, make_message
from amqpd.broker.publish import firehose
from amqpd.broker.publish.firehose import BEHIND_COUNT, COUNT_MAX, EXCHANGE, trace
from amqpd.broker.queue.queue import Queue


def message(body: bytes = b"x", exchange: str = "amq.direct") -> Message:
    return make_message(MessageRoute(exchange, "k"), b"\0\0", body, False, None)


def publish(room, count: int = 1, body: bytes = b"x") -> None:
    for _ in range(count):
        room.vhost.tap.published(message(body), ["k"], [], "c", "guest", 1)


@pytest.fixture
def copies(room) -> Queue:
    """A queue that gets all copies."""
    queue = room.queue("copies", durable=False)
    room.bind(EXCHANGE, queue, "#")
    assert trace(room.vhost, "node", True)
    return queue


def test_no_copy_waits_without_binding(room) -> None:
    trace(room.vhost, "node", True)
    publish(room, 10)
    assert room.vhost.tap._waiting == []


def test_copies_are_published_in_slices(room, copies: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firehose, "SLICE_S", 0.0)
    publish(room, 3)
    tap = room.vhost.tap
    assert copies.ready_count == 0  # not within the publish
    waiting_counts = []
    while tap._waiting:
        tap._copy_slice()
        waiting_counts.append(len(tap._waiting))
    assert waiting_counts == [2, 1, 0]
    room.turns()
    assert copies.ready_count == 3


def test_copies_over_limit_are_dropped_and_logged(room, copies: Queue, caplog: pytest.LogCaptureFixture) -> None:
    tap = room.vhost.tap
    publish(room, BEHIND_COUNT - 1)
    assert not tap.is_behind()
    publish(room)
    assert tap.is_behind()
    publish(room, COUNT_MAX)
    with caplog.at_level(logging.WARNING):
        while tap._waiting:
            tap._copy_slice()
    assert copies.ready_count == COUNT_MAX
    assert f"{BEHIND_COUNT} messages were not traced" in caplog.text
    assert (tap._waiting_bytes, tap._best_effort.lost_count) == (0, 0)


def test_bytes_of_waiting_copies_are_limited(room, copies: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firehose, "BYTES_MAX", 2500)
    publish(room, 3, bytes(1000))
    assert len(room.vhost.tap._waiting) == 2


def test_routing_key_of_copy_is_truncated_to_255_bytes(room, copies: Queue) -> None:
    name = "ä" * 127 + "z"
    room.vhost.tap.delivered(message(exchange="amq.direct"), name, False, "c", "guest", 1)
    room.turns()
    got = room.get(copies)
    assert got.routing_key.startswith("deliver.ää")
    assert len(got.routing_key.encode("utf-8", "surrogateescape")) == 255


def test_queue_still_opening_gets_copies_once_open(room, copies: Queue) -> None:
    durable = room.queue("kept")
    room.publish("kept", b"before")
    room.restart()
    kept = room.vhost.queues["kept"]
    assert kept is not durable
    room.bind(EXCHANGE, kept, "publish.#")
    trace(room.vhost, "node", True)
    publish(room)
    room.turns()
    assert room.bodies(kept) == [b"before", b"x"]


def test_delivery_of_copy_is_not_traced(room, copies: Queue) -> None:
    room.vhost.tap.delivered(message(exchange=EXCHANGE), "copies", False, "c", "guest", 1)
    assert room.vhost.tap._waiting == []


def test_only_change_of_tracing_increments_versions(room, copies: Queue) -> None:
    room.turns()
    version = copies.version
    assert not trace(room.vhost, "node", True)
    assert copies.version == version
    assert trace(room.vhost, "node", False)
    room.turns()
    assert copies.version > version
    assert room.vhost.tap is None
    assert not trace(room.vhost, "node", False)


def test_waiting_copies_are_dropped_if_vhost_is_deleted(room, copies: Queue) -> None:
    publish(room, 2)
    room.vhost.deleted = True
    room.turns()
    assert copies.ready_count == 0
