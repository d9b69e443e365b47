"""Delayed messages with faults: read errors, bugs, two directories of one exchange, clean stops at any moment."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delay_room import MINUTE, declare, jump, publish_delayed, restart
from simulated_filesystem import SimulatedFileSystem
from test_delays_crash import consume_all

from amqpd.broker.message import MessageRoute, MessageView, make_message
from amqpd.broker.publish import router
from amqpd.broker.publish.confirms import ConfirmTracker
from amqpd.broker.publish.route import TAKEN, Route, offer_to_all
from amqpd.broker.vhost import declare as exchanges
from amqpd.protocol.properties import Properties, encode_properties, scan_properties
from amqpd.storage.log.record import RecordRoute

ROOM = Path("/room")
COUNT = 20


@pytest.mark.parametrize("delay", [300, 20 * MINUTE])
@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_failed_release_is_retried_until_it_succeeds(
    make_room: Callable[..., Any], caplog: pytest.LogCaptureFixture, kind: type[Exception], delay: int
) -> None:
    """After a read error or a bug, the release is retried with growing intervals. Other exchanges are not delayed."""
    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    wheel = declare(room)
    declare(room, "other")
    for number in range(COUNT):
        publish_delayed(room, delay + number, b"%d" % number)
    broken = next(iter(wheel.buckets)).chain[-2]
    attempts = [0]
    readable = [False]

    def fault(name: str, path: str) -> OSError | None:
        if readable[0] or name != "pread" or not path.startswith(broken):
            return None
        attempts[0] += 1
        raise kind(errno.EIO, "cannot be read")

    filesystem.fault = fault
    with caplog.at_level(logging.ERROR):
        jump(room, delay - 100)
        publish_delayed(room, 150, b"other", "other")
        for _ in range(20):
            jump(room, 10_000)
            room.advance(2)
    assert wheel.count() == COUNT
    assert room.bodies(room.vhost.queues["other"]) == [b"other"]
    assert 2 <= attempts[0] <= 60, attempts
    assert len([each for each in caplog.records if each.exc_info]) == (0 if kind is OSError else 1)
    readable[0] = True
    jump(room, 31_000)
    for _ in range(10):
        jump(room, 3000)
    assert [int(body) for body, _ in consume_all(room)] == list(range(COUNT))
    assert (wheel.count(), wheel.failures) == (0, 0)
    publish_delayed(room, 100, b"later on")
    jump(room, 200)
    assert [body for body, _ in consume_all(room)] == [b"later on"]


@pytest.mark.parametrize("delay", [300, 20 * MINUTE])
def test_record_without_delay_in_bucket_is_skipped(make_room: Callable[..., Any], delay: int) -> None:
    room = make_room(ROOM, SimulatedFileSystem())
    wheel = declare(room)
    publish_delayed(room, delay, b"0")
    (bucket,) = wheel.buckets
    bucket.store.append_parts(RecordRoute(b"", b""), b"\0\0", b"foreign", True)
    publish_delayed(room, delay, b"1")
    restart(room)
    for step in (delay - 10, 20, 5000, 10):
        jump(room, step)
    assert [body for body, _ in consume_all(room)] == [b"0", b"1"]


def folders(room: Any) -> list[str]:
    return sorted(room.storage.filesystem.listdir(room.storage.delay_chain("v1")[-1]))


def test_two_directories_of_one_exchange_are_both_used(
    make_room: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The rename failed when an exchange of that name was deleted, so the next start finds two directories."""
    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    declare(room)
    publish_delayed(room, 20 * MINUTE, b"old")
    filesystem.fault = lambda name, path: OSError(errno.EIO, "") if name == "rename" and "/delays/" in path else None
    exchanges.delete_exchange(room.vhost, room.vhost.exchanges["later"], False)
    room.turns()
    filesystem.fault = None
    declare(room)
    publish_delayed(room, 20 * MINUTE, b"new")
    publish_delayed(room, 400 * MINUTE, b"last")
    for _ in range(2):
        restart(room)
        assert len(folders(room)) == 2
    assert "also has delayed messages of exchange 'later'" in caplog.text
    wheel = room.vhost.exchanges["later"].wheel
    publish_delayed(room, 20 * MINUTE, b"newer")
    assert wheel.count() == 4
    jump(room, 20 * MINUTE)
    jump(room, 10)
    assert sorted(body for body, _ in consume_all(room)) == [b"new", b"newer", b"old"]
    restart(room)
    publish_delayed(room, 400 * MINUTE, b"never")
    wheel = room.vhost.exchanges["later"].wheel
    assert wheel.count() == 2
    exchanges.delete_exchange(room.vhost, room.vhost.exchanges["later"], False)
    room.turns()
    declare(room)
    restart(room)
    assert room.vhost.exchanges["later"].wheel.count() == 0


def test_missing_exchange_is_cleaned_up_before_clients_connect(make_room: Callable[..., Any]) -> None:
    """Otherwise a new exchange of that name would get its messages at a later start."""
    room = make_room(ROOM, SimulatedFileSystem())
    declare(room)
    publish_delayed(room, 20 * MINUTE, b"old")
    (before,) = folders(room)
    room.restart()
    room.delays.begin()
    assert folders(room) in ([], [before + ".deleted"])


def stop(room: Any) -> None:
    """Stop cleanly, as the server does."""
    room.timers.stop()
    run_one_turn(room)
    room.delays.stop()
    room.republisher.stop()
    run_one_turn(room)
    room.turn.finish()
    room.storage.close(clean=True)


def run_one_turn(room: Any) -> None:
    soon = room._soon[:]
    room._soon.clear()
    for call in soon:
        call()


@pytest.mark.parametrize("tried", [False, True])
def test_clean_stop_marks_message_that_another_target_may_have(make_room: Callable[..., Any], tried: bool) -> None:
    """If `tried`, another target may have the message already, so it is marked after the restart."""
    room = make_room(ROOM, SimulatedFileSystem())
    room.boot_id = "1" * 32
    declare(room)
    publish_delayed(room, 100, b"0")
    room.vhost.queues["later"].store.failed = True
    jump(room, 110)
    (pending,) = room.republisher._failed
    assert pending.message is not None
    if tried:
        pending.again_end = pending.first + 1
    room.vhost.queues["later"].store.failed = False
    stop(room)
    restart(room)
    room.advance(5)
    assert consume_all(room) == [(b"0", tried)]


@pytest.mark.parametrize("wait", [0, 9000])
def test_clean_stop_at_any_moment_releases_once(make_room: Callable[..., Any], wait: int) -> None:
    """Each message is released once, without a mark. After `wait`, the bucket takes no new messages."""
    moment = 0
    while True:
        room = make_room(ROOM, SimulatedFileSystem())
        room.boot_id = "1" * 32
        declare(room)
        for number in range(6):
            publish_delayed(room, 9500 + number % 2, b"%d" % number)
        if wait:
            jump(room, wait)
        room.clock.now_ms += 9502 - wait
        due = [call for at, call in room._later if at <= room.clock.monotonic()]
        room._later.clear()
        for call in due:
            call()
        for _ in range(moment):
            if room._soon:
                room._soon.pop(0)()
        idle = not room._soon
        stop(room)
        restart(room)
        jump(room, MINUTE)
        jump(room, 10)
        consumed = consume_all(room)
        assert sorted(consumed) == [(b"%d" % number, False) for number in range(6)], moment
        assert room.vhost.exchanges["later"].wheel.count() == 0
        room.storage.close(clean=False)
        if idle:
            break
        moment += 1
    assert moment > 5


def test_dead_letter_waits_for_an_exchange_that_cannot_delay_it(make_room: Callable[..., Any]) -> None:
    """The first delayed message of a data directory changes its format, which needs space on the disk."""
    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    wheel = declare(room)
    queue = room.queue("source", x_message_ttl=100, x_dead_letter_exchange="later")
    room.publish("source", b"0", headers={"x-delay": 300})
    filesystem.capacity = filesystem.used()
    jump(room, 1000)
    assert (queue.store.record_count, wheel.count()) == (1, 0)
    filesystem.capacity = None
    jump(room, 3000)
    assert (queue.store.record_count, wheel.count()) == (0, 1)
    jump(room, 1000)
    assert consume_all(room) == [(b"0", False)]


class Confirms(ConfirmTracker):
    """A publisher that notes its confirms."""

    def __init__(self, room: Any) -> None:
        super().__init__(room.turn)
        self.answers: list[str] = []

    def confirmed(self, first: int, last: int) -> None:
        self.answers += ["ack"] * (last - first + 1)

    def refused(self, first: int, last: int) -> None:
        self.answers += ["nack"] * (last - first + 1)


def test_confirm_is_about_the_log_that_stores_the_message(make_room: Callable[..., Any]) -> None:
    """After a failed sync, later messages of the same time go to another log."""
    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    wheel = declare(room)
    confirms = Confirms(room)

    def publish(body: bytes) -> None:
        properties = encode_properties(Properties(delivery_mode=2, headers={"x-delay": 300}))
        info = scan_properties(properties, 0, len(properties))
        message = make_message(MessageRoute("later", ""), properties, body, True, info)
        exchange = room.vhost.exchanges["later"]
        destinations = router.route(room.vhost, exchange, [""], MessageView(message))
        assert offer_to_all(destinations, message, None) == TAKEN
        confirms.add(Route(message.envelope, destinations, False, exchange.routes, True), message)
        room.turns()

    publish(b"0")
    filesystem.fault = lambda name, path: (
        OSError(errno.EIO, "bad") if name == "fdatasync" and "/delays/" in path else None
    )
    publish(b"1")
    filesystem.fault = None
    publish(b"2")
    assert confirms.answers == ["ack", "nack", "ack"]
    assert len(wheel.buckets) == 2
