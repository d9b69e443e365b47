"""Resource alarms: their limits, and how they block publishers."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from memory_broker import StillLoop
from peer import Peer

from amqpd.broker.flow import alarms
from amqpd.broker.flow.alarms import Alarms
from amqpd.config.schema import LimitSettings
from amqpd.testing import BrokerProcess


class Disk(NamedTuple):
    f_bavail: int
    f_frsize: int = 1


class AlarmRig:
    """Alarms at 40 % of 1,000 bytes of memory and below 100 bytes of disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
        self.memory = 0
        self.disk = 1000
        self.reports: list[str] = []
        monkeypatch.setattr(alarms, "total_memory_bytes", lambda: 1000)
        monkeypatch.setattr(alarms, "resident_bytes", lambda: self.memory)
        monkeypatch.setattr(os, "statvfs", lambda _: Disk(self.disk))
        loop: Any = StillLoop()
        self.alarms = Alarms(loop, data_dir, LimitSettings(disk_free_bytes=100), self.reports.append)

    def check_with(self, memory: int, disk: int) -> list[str]:
        self.memory, self.disk = memory, disk
        self.alarms.check()
        reports, self.reports[:] = list(self.reports), []
        return reports


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AlarmRig:
    return AlarmRig(monkeypatch, tmp_path)


def test_alarm_at_limits(rig: AlarmRig) -> None:
    assert rig.check_with(400, 100) == []
    assert rig.check_with(401, 100) == ["low on memory"]
    assert rig.check_with(500, 100) == []
    assert rig.check_with(400, 100) == [""]
    assert rig.check_with(400, 99) == ["low on disk"]
    assert rig.check_with(400, 100) == [""]


def test_all_clear_only_after_both_alarms_end(rig: AlarmRig) -> None:
    assert rig.check_with(900, 1) == ["low on memory"]
    assert set(rig.alarms.raised) == {"memory", "disk"}
    assert rig.check_with(900, 1000) == []
    assert rig.check_with(900, 0) == []
    assert rig.check_with(0, 0) == []
    assert rig.check_with(0, 1000) == [""]


def test_alarm_replaced_by_another_reports_no_all_clear(rig: AlarmRig) -> None:
    """One check clears one alarm and raises the other: no "all clear" is reported in between."""
    assert rig.check_with(900, 1000) == ["low on memory"]
    assert rig.check_with(0, 0) == []
    assert rig.check_with(900, 1000) == []
    assert rig.check_with(0, 1000) == [""]


def test_zero_disk_limit_disables_alarm(rig: AlarmRig) -> None:
    rig.alarms.disk_free_limit_bytes = 0
    assert rig.check_with(0, 0) == []


@pytest.mark.parametrize(
    ("own", "file", "taken"),
    [
        ("0::/system.slice/amqpd.service", "system.slice/amqpd.service/memory.max", 5000),
        ("0::/system.slice/amqpd.service", "system.slice/memory.max", 5000),
        ("0::/", "memory.max", 5000),
        ("3:cpu,memory:/docker/ab\n0::/", "memory/docker/ab/memory.limit_in_bytes", 5000),
        ("3:cpu,memory:/docker/ab\n0::/", "memory/memory.limit_in_bytes", 5000),  # as a container sees it
        ("3:cpu:/docker/ab\n0::/", "memory/docker/ab/memory.limit_in_bytes", None),
        ("0::/amqpd", "other/memory.max", None),
        ("0::/not-utf-8-\udcff", "memory.max", 5000),
    ],
)
def test_memory_is_the_lowest_limit_of_the_cgroups_above_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, file: str, taken: int | None
) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "own").write_bytes(os.fsencode(own + "\n"))
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("5000\n")
    if file != "memory.max":
        (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(alarms, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(alarms, "_CGROUPS", tmp_path)
    assert alarms.total_memory_bytes() == (taken or machine)


def test_real_memory_and_disk_readings(tmp_path: Path) -> None:
    """Read memory and disk of this process. The machine has more memory than the process uses."""
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
def test_alarm_blocks_publisher_but_not_consumer(tmp_path: Path, settings: dict[str, object], reason: str) -> None:
    """A publisher gets connection.blocked and waits. Declare, get and consume work, and the broker stops quickly."""
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


def test_alarm_set_and_cleared_manually(rig: AlarmRig) -> None:
    assert rig.check_with(0, 1000) == []
    rig.alarms.raise_by_hand("disk")
    assert rig.reports == ["low on disk"]
    rig.reports.clear()
    assert rig.check_with(0, 1000) == []
    rig.alarms.raise_by_hand("memory")
    rig.alarms.raise_by_hand("memory")
    rig.alarms.clear_by_hand("disk")
    assert (rig.reports, set(rig.alarms.raised)) == ([], {"memory"})
    rig.alarms.clear_by_hand("memory")
    rig.alarms.clear_by_hand("memory")
    assert rig.reports == [""]


def test_clearing_manual_alarm_keeps_measured_alarm(rig: AlarmRig) -> None:
    rig.alarms.raise_by_hand("memory")
    assert rig.check_with(900, 1000) == ["low on memory"]
    rig.alarms.clear_by_hand("memory")
    assert rig.reports == []
    assert rig.check_with(0, 1000) == [""]


def test_limits_change_at_run_time(rig: AlarmRig) -> None:
    rig.alarms.limit_memory_bytes(10)
    assert rig.check_with(11, 1000) == ["low on memory"]
    rig.alarms.limit_memory_bytes(1 << 62)
    assert rig.alarms.memory_limit_bytes == 1000, "limited to the machine's memory"
    assert rig.check_with(11, 1000) == [""]
    rig.alarms.limit_memory_share(0.01)
    assert rig.check_with(11, 1000) == ["low on memory"]


def test_limits_follow_the_memory_that_the_process_may_use(rig: AlarmRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker update --memory` and a pod that is resized change the cgroup of a running process."""

    def after_a_minute(total_bytes: int) -> int:
        monkeypatch.setattr(alarms, "total_memory_bytes", lambda: total_bytes)
        for _ in range(alarms.TOTAL_TICKS):
            rig.alarms._tick()
        return rig.alarms.memory_limit_bytes

    assert [after_a_minute(total) for total in (500, 2000)] == [200, 800]
    rig.alarms.limit_memory_bytes(600)
    assert [after_a_minute(total) for total in (500, 2000)] == [500, 600]
    assert rig.alarms.memory_total_bytes == 2000


def test_memory_is_not_read_without_a_free_descriptor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine's memory would replace the lower limit of the cgroup."""

    def fails(_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_bytes", fails)
    with pytest.raises(OSError, match="Too many open files"):
        alarms.total_memory_bytes()
    monkeypatch.undo()
    (tmp_path / "own").write_text("0::/a\n")
    monkeypatch.setattr(alarms, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(Path, "read_text", fails)
    with pytest.raises(OSError, match="Too many open files"):
        alarms.total_memory_bytes()


def test_failed_reading_keeps_alarms(rig: AlarmRig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.check_with(900, 1000) == ["low on memory"]

    def fails(_: object) -> Disk:
        raise OSError(24, "no descriptor is left")

    monkeypatch.setattr(os, "statvfs", fails)
    assert rig.check_with(0, 0) == []
    assert set(rig.alarms.raised) == {"memory"}


def publish_until_blocked(peer: Peer) -> str:
    """Publish and return the reason in connection.blocked."""
    peer.publish("nowhere")
    return str(peer.expect("connection.blocked", 0)["reason"])


@pytest.mark.slow
def test_alarms_set_and_cleared_by_amqpctl(tmp_path: Path) -> None:
    """Alarms set by amqpctl block at once. Unblocked follows when the last alarm is cleared. A restart clears them."""
    with BrokerProcess(tmp_path / "data") as broker, Peer(broker.url) as publisher:
        publisher.handshake()
        publisher.channel()
        assert broker.ctl("set_alarm", "memory").returncode == 0
        assert publish_until_blocked(publisher) == "low on memory"
        assert broker.ctl("eval", "rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []}).").stdout == "ok\n"
        with Peer(broker.url) as second_publisher:
            second_publisher.handshake()
            second_publisher.channel()
            assert publish_until_blocked(second_publisher) in ("low on disk", "low on memory")
        assert broker.ctl("clear_alarm", "memory").returncode == 0
        status = broker.ctl("status", "--unit", "bytes").stdout
        assert "Low free disk space watermark: 50000000 bytes" in status
        assert "low on disk" in status
        assert "low on memory" not in status
        with pytest.raises(TimeoutError):
            publisher.read(0.3)
        assert broker.ctl("eval", "rabbit_alarm:clear_alarm({resource_limit, disk, node()}).").stdout == "ok\n"
        publisher.expect("connection.unblocked", 0)
        publisher.fence()
        for limit, restore, reason in (
            (("set_disk_free_limit", "900000000GB"), ("set_disk_free_limit", "50MB"), "low on disk"),
            (
                ("set_vm_memory_high_watermark", "absolute", "1MB"),
                ("set_vm_memory_high_watermark", "0.9"),
                "low on memory",
            ),
        ):
            assert broker.ctl(*limit).returncode == 0
            assert publish_until_blocked(publisher) == reason
            assert broker.ctl(*restore).returncode == 0
            publisher.expect("connection.unblocked", 0)
        assert broker.ctl("set_alarm", "disk").returncode == 0
        broker.kill()
        broker.start()
        assert broker.api("GET", "/api/health/checks/alarms") == {"status": "ok"}


@pytest.mark.slow
def test_channel_max_change_applies_to_next_connection(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Peer(broker.url) as old_connection:
        old_connection.start()
        old_connection.send(old_connection.start_ok())
        assert old_connection.expect("connection.tune", 0)["channel_max"] == 2047
        assert broker.ctl("eval", "application:set_env(rabbit, channel_max, 2).").stdout == "ok\n"
        old_connection.send(old_connection.tune_ok(2047), old_connection.open())
        old_connection.expect("connection.open-ok", 0)
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
def test_loopback_users_change_at_run_time(tmp_path: Path) -> None:
    get = "{ok, V} = application:get_env(rabbit, loopback_users), V."
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.ctl("eval", get).stdout == '[<<"guest">>]\n'
        assert broker.ctl("eval", "application:set_env(rabbit, loopback_users, []).").stdout == "ok\n"
        assert broker.ctl("eval", get).stdout == "[]\n"
