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
from amqpd.config import LimitSettings
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
        self.alarms = Alarms(loop, data_dir, LimitSettings(disk_free_bytes=100), self.told.append)

    def look(self, memory: int, disk: int) -> list[str]:
        self.memory, self.disk = memory, disk
        self.alarms.check()
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
    real = Alarms(loop, tmp_path, LimitSettings(memory_high_watermark=1.0, disk_free_bytes=0), lambda _: None)
    real.check()
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


def test_by_hand(room: Room) -> None:
    assert room.look(0, 1000) == []
    room.alarms.raise_by_hand("disk")
    assert room.told == ["low on disk"]
    room.told.clear()
    assert room.look(0, 1000) == []
    room.alarms.raise_by_hand("memory")
    room.alarms.raise_by_hand("memory")
    room.alarms.clear_by_hand("disk")
    assert (room.told, set(room.alarms.raised)) == ([], {"memory"})
    room.alarms.clear_by_hand("memory")
    room.alarms.clear_by_hand("memory")
    assert room.told == [""]


def test_one_by_hand_that_has_a_cause_goes_on(room: Room) -> None:
    room.alarms.raise_by_hand("memory")
    assert room.look(900, 1000) == ["low on memory"]
    room.alarms.clear_by_hand("memory")
    assert room.told == []
    assert room.look(0, 1000) == [""]


def test_limits_may_be_changed(room: Room) -> None:
    room.alarms.limit_memory_bytes(10)
    assert room.look(11, 1000) == ["low on memory"]
    room.alarms.limit_memory_bytes(1 << 62)
    assert room.alarms.memory_limit_bytes == 1000, "there is no more"
    assert room.look(11, 1000) == [""]
    room.alarms.limit_memory_share(0.01)
    assert room.look(11, 1000) == ["low on memory"]


def test_what_cannot_be_looked_at_stays_as_it_was(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    assert room.look(900, 1000) == ["low on memory"]

    def fails(_: object) -> Disk:
        raise OSError(24, "no descriptor is left")

    monkeypatch.setattr(os, "statvfs", fails)
    assert room.look(0, 0) == []
    assert set(room.alarms.raised) == {"memory"}


def told(peer: Peer) -> str:
    """Publishes; why the peer is held."""
    peer.publish("nowhere")
    return str(peer.expect("connection.blocked", 0)["reason"])


@pytest.mark.slow
def test_set_and_cleared_while_clients_are_connected(tmp_path: Path) -> None:
    """At once, whoever sets it; unblocked once there is no alarm left; a restart begins without one."""
    with BrokerProcess(tmp_path / "data") as broker, Peer(broker.url) as publisher:
        publisher.handshake()
        publisher.channel()
        assert broker.ctl("set_alarm", "memory").returncode == 0
        assert told(publisher) == "low on memory"
        assert broker.ctl("eval", "rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []}).").stdout == "ok\n"
        with Peer(broker.url) as late:
            late.handshake()
            late.channel()
            assert told(late) in ("low on disk", "low on memory")
        assert broker.ctl("clear_alarm", "memory").returncode == 0
        shown = broker.ctl("status", "--unit", "bytes").stdout
        assert "Low free disk space watermark: 50000000 bytes" in shown
        assert "low on disk" in shown
        assert "low on memory" not in shown
        with pytest.raises(TimeoutError):
            publisher.read(0.3)
        assert broker.ctl("eval", "rabbit_alarm:clear_alarm({resource_limit, disk, node()}).").stdout == "ok\n"
        publisher.expect("connection.unblocked", 0)
        publisher.fence()
        for limit, back, reason in (
            (("set_disk_free_limit", "900000000GB"), ("set_disk_free_limit", "50MB"), "low on disk"),
            (
                ("set_vm_memory_high_watermark", "absolute", "1MB"),
                ("set_vm_memory_high_watermark", "0.9"),
                "low on memory",
            ),
        ):
            assert broker.ctl(*limit).returncode == 0
            assert told(publisher) == reason
            assert broker.ctl(*back).returncode == 0
            publisher.expect("connection.unblocked", 0)
        assert broker.ctl("set_alarm", "disk").returncode == 0
        broker.kill()
        broker.start()
        assert broker.api("GET", "/api/health/checks/alarms") == {"status": "ok"}


@pytest.mark.slow
def test_what_the_next_connection_is_offered(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Peer(broker.url) as before:
        before.start()
        before.send(before.start_ok())
        assert before.expect("connection.tune", 0)["channel_max"] == 2047
        assert broker.ctl("eval", "application:set_env(rabbit, channel_max, 2).").stdout == "ok\n"
        before.send(before.tune_ok(2047), before.open())
        before.expect("connection.open-ok", 0)
        with Peer(broker.url) as peer:
            assert peer.handshake(channel_max=0)["channel_max"] == 2
            peer.channel(1)
            peer.channel(2)
            peer.method("channel.open", 3)
            peer.expect_connection_close(530, 0, 0)
        with Peer(broker.url) as peer:
            peer.start()
            peer.send(peer.start_ok())
            peer.expect("connection.tune", 0)
            peer.send(peer.tune_ok(3), peer.open())
            peer.expect_connection_close(
                530, None, None, "negotiated channel_max = 3 is higher than the maximum allowed value (2)"
            )
        assert broker.ctl("eval", "application:set_env(rabbit, channel_max, 0).").stdout == "ok\n"
        with Peer(broker.url) as peer:
            assert peer.handshake(channel_max=0)["channel_max"] == 0
            for number in range(1, 2100):
                peer.method("channel.open", number)
            for _ in range(1, 2100):
                peer.expect("channel.open-ok", None)


@pytest.mark.slow
def test_who_may_only_come_from_this_machine(tmp_path: Path) -> None:
    get = "{ok, V} = application:get_env(rabbit, loopback_users), V."
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.ctl("eval", get).stdout == '[<<"guest">>]\n'
        assert broker.ctl("eval", "application:set_env(rabbit, loopback_users, []).").stdout == "ok\n"
        assert broker.ctl("eval", get).stdout == "[]\n"
