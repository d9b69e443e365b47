"""Sockets that connect and say nothing: they go for those that log in, and never get the last descriptors."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpd.connection import unauthenticated
from amqpd.connection.unauthenticated import UnauthenticatedSockets
from amqpd.testing import BrokerProcess

LIMIT = 640


class Loop:
    def call_soon(self, call: Any) -> None:
        call()


class Broker:
    loop = Loop()


class Silent:
    """A transport, as far as it is asked for."""

    broker = Broker()

    def __init__(self, address: str) -> None:
        self.peer = (address, 50000)
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class Room:
    """128 descriptors: 64 for sockets before the silent ones go, 4 silent ones stay, 2 more are closed than needed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reserved: int = 0) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
        self.unopened = UnauthenticatedSockets(lambda function: function(), 0.5, reserved)

    def enter(self, address: str, count: int, *, login: bool = False) -> list[Any]:
        made: list[Any] = [Silent(address) for _ in range(count)]
        for each in made:
            self.unopened.add(each)
            if login:
                self.unopened.mark_logged_in(each)
        return made


def gone(sockets: list[Any]) -> list[int]:
    return [number for number, each in enumerate(sockets) if each.aborted]


def test_nobody_is_closed_below_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch)
    assert gone(room.enter("10.0.0.1", 64)) == []


def test_the_oldest_of_the_address_that_has_most_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch)
    few = room.enter("10.0.0.1", 10)
    many = room.enter("10.0.0.2", 54)
    (late,) = room.enter("10.0.0.1", 1)
    assert gone(many) == [0, 1, 2]
    assert gone(few) == [] and not late.aborted


def test_one_network_is_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may take any IPv6 address in its network."""
    room = Room(monkeypatch)
    few = room.enter("2001:db8:2::1", 10)
    many = [room.enter(f"2001:db8:1::{number:x}", 1)[0] for number in range(54)]
    room.enter("10.0.0.1", 1)
    assert (gone(many), gone(few)) == ([0, 1, 2], [])


def test_addresses_of_ipv4_are_told_apart_in_ipv6_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket for both families shows them so."""
    room = Room(monkeypatch)
    few = room.enter("::ffff:10.0.0.1", 10)
    many = room.enter("::ffff:10.0.0.2", 54)
    room.enter("::ffff:10.0.0.3", 1)
    assert (gone(many), gone(few)) == ([0, 1, 2], [])


def test_who_logs_in_stays_and_those_that_come_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many clients there are: the last few that came in are not closed for them."""
    room = Room(monkeypatch)
    clients = room.enter("10.0.0.1", 100, login=True)
    silent = room.enter("10.0.0.2", 20)
    assert gone(clients) == []
    assert gone(silent) == list(range(16))
    assert room.unopened.closed_count == 16


def test_the_last_descriptors_are_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, reserved=20)
    clients = room.enter("10.0.0.1", 108, login=True)
    (more,) = room.enter("10.0.0.3", 1)
    assert more.aborted and gone(clients) == []
    room.unopened.remove(clients[0])
    (more,) = room.enter("10.0.0.3", 1)
    assert not more.aborted


def test_those_that_went_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch)
    for each in room.enter("10.0.0.1", 200) + room.enter("::1", 5, login=True):
        room.unopened.remove(each)
    assert (room.unopened._sockets, room.unopened._waiting, room.unopened._waiting_count) == (set(), {}, 0)


def test_a_flood_is_told_once_a_second(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(unauthenticated.time, "monotonic", lambda: 100.0)
    Room(monkeypatch).enter("10.0.0.1", 500)
    (line,) = caplog.messages
    assert line == (
        "sockets without a login were closed, the last one from 10.0.0.1: "
        "more than 64 of 128 descriptors are sockets (3 since the start)"
    )


async def open_silently(port: int, count: int) -> list[asyncio.StreamWriter]:
    """A handful at once, so that nobody's backlog matters."""
    opened: list[asyncio.StreamWriter] = []
    while len(opened) < count:
        pairs = await asyncio.gather(*[asyncio.open_connection("127.0.0.1", port) for _ in range(50)])
        opened += [writer for _, writer in pairs]
    return opened


@pytest.mark.slow
async def test_silent_sockets_take_no_descriptor_from_anybody(tmp_path: Path) -> None:
    """Twice as many as there are descriptors: publishes are confirmed, new queues get their files, amqpctl answers."""
    command = ["/bin/sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", sys.executable, "-P", "-m", "amqpd"]
    with BrokerProcess(tmp_path / "data", command=command) as broker:
        silent = await open_silently(broker.amqp_port, 2 * LIMIT)
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port)
        connection = await asyncio.to_thread(pika.BlockingConnection, parameters)
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(20):
            channel.queue_declare(f"q{number}", durable=True)
            channel.basic_publish("", f"q{number}", b"x", pika.BasicProperties(delivery_mode=2), mandatory=True)
        line = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(broker.data_dir), "list_queues", "name"]
        listed = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=60)
        assert listed.returncode == 0, listed.stderr
        assert "q19" in listed.stdout
        connection.close()
        for writer in silent:
            writer.close()
        assert broker.says("sockets without a login were closed"), broker.stderr
        assert "Traceback" not in broker.stderr, broker.stderr


def test_a_broker_raises_its_limit(tmp_path: Path) -> None:
    """The soft limit is a shell's default; the hard one is what it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = ["/bin/sh", "-c", 'ulimit -Sn 512; exec "$@"', "sh", sys.executable, "-P", "-m", "amqpd"]
    with BrokerProcess(tmp_path / "data", command=command) as broker:
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        with socket.create_connection(("127.0.0.1", broker.amqp_port)):
            pass
