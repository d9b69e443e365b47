"""Resource alarms: readings against limits, and a broker that began with one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from memory_broker import StillLoop
from peer import Peer

from amqpd.broker.flow import alarms
from amqpd.broker.flow.alarms import Alarms
from amqpd.testing import BrokerProcess


class Disk(NamedTuple):
    f_bavail: int
    f_frsize: int = 1


class Room:
    """Alarms at 40 % of 1,000 bytes of memory and below 100 bytes of disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
        self.memory = 0
        self.disk = 1000
        self.told: list[str] = []
        monkeypatch.setattr(alarms, "total_memory_bytes", lambda: 1000)
        monkeypatch.setattr(alarms, "resident_bytes", lambda: self.memory)
        monkeypatch.setattr(os, "statvfs", lambda _: Disk(self.disk))
        loop: Any = StillLoop()
        self.alarms = Alarms(loop, data_dir, 0.4, 100, self.told.append)

    def look(self, memory: int, disk: int) -> list[str]:
        self.memory, self.disk = memory, disk
        self.alarms.look()
        told, self.told[:] = list(self.told), []
        return told


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Room:
    return Room(monkeypatch, tmp_path)


def test_limits(room: Room) -> None:
    assert room.look(400, 100) == []
    assert room.look(401, 100) == ["low on memory"]
    assert room.look(500, 100) == []
    assert room.look(400, 100) == [""]
    assert room.look(400, 99) == ["low on disk"]
    assert room.look(400, 100) == [""]


def test_two_alarms_are_over_together(room: Room) -> None:
    assert room.look(900, 1) == ["low on memory"]
    assert set(room.alarms.raised) == {"memory", "disk"}
    assert room.look(900, 1000) == []
    assert room.look(900, 0) == []
    assert room.look(0, 0) == []
    assert room.look(0, 1000) == [""]


def test_one_alarm_follows_on_the_other(room: Room) -> None:
    """In one look: nobody is told that all is well in between."""
    assert room.look(900, 1000) == ["low on memory"]
    assert room.look(0, 0) == []
    assert room.look(900, 1000) == []
    assert room.look(0, 1000) == [""]


def test_a_limit_of_nothing_is_no_limit(room: Room) -> None:
    room.alarms.disk_free_limit_bytes = 0
    assert room.look(0, 0) == []


def test_the_real_readings(tmp_path: Path) -> None:
    """Memory and disk of this very process; the machine has more memory than the process uses."""
    assert 1 << 20 < alarms.resident_bytes() < alarms.total_memory_bytes()
    loop: Any = StillLoop()
    real = Alarms(loop, tmp_path, 1.0, 0, lambda _: None)
    real.look()
    assert real.disk_free_bytes > 0
    assert real.raised == {}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"limits.memory_high_watermark": 0}, "low on memory"),
        ({"limits.disk_free_bytes": 1 << 60}, "low on disk"),
    ],
)
def test_a_broker_in_need(tmp_path: Path, settings: dict[str, object], reason: str) -> None:
    """Who publishes is told and waits; who declares, gets and consumes goes on; a stop is as quick as ever."""
    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        Peer(broker.url) as publisher,
        Peer(broker.url) as consumer,
    ):
        for peer in (publisher, consumer):
            peer.handshake()
            peer.channel()
        publisher.publish("nowhere")
        assert publisher.expect("connection.blocked", 0)["reason"] == reason
        publisher.method("channel.flow", active=True)
        consumer.queue()
        assert consumer.get() is None
        consumer.call("basic.consume", queue=consumer.q, consumer_tag="t")
        with pytest.raises(TimeoutError):
            publisher.read(0.3)
        stopping = threading.Thread(target=broker.stop, args=(30,))
        stopping.start()
        for peer in (consumer, publisher):
            peer.expect_connection_close(320)
        stopping.join()
