"""Sockets that connect and never log in: closed in favour of clients that log in, and bounded in number."""

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


class SilentTransport:
    """Fake transport with the members that the class uses."""

    broker = Broker()

    def __init__(self, address: str) -> None:
        self.peer = (address, 50000)
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class DescriptorRig:
    """128 descriptors: up to 64 for sockets before silent ones are closed; 4 silent ones stay; 2 more are closed than
    needed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reserved: int = 0) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
        self.unopened = UnauthenticatedSockets(lambda function: function(), 0.5, reserved)

    def connect(self, address: str, count: int, *, login: bool = False) -> list[Any]:
        transports: list[Any] = [SilentTransport(address) for _ in range(count)]
        for each in transports:
            self.unopened.add(each)
            if login:
                self.unopened.mark_logged_in(each)
        return transports


def aborted(sockets: list[Any]) -> list[int]:
    return [number for number, each in enumerate(sockets) if each.aborted]


def test_no_socket_is_closed_below_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DescriptorRig(monkeypatch)
    assert aborted(rig.connect("10.0.0.1", 64)) == []


def test_oldest_sockets_of_busiest_address_are_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DescriptorRig(monkeypatch)
    few = rig.connect("10.0.0.1", 10)
    many = rig.connect("10.0.0.2", 54)
    (late_socket,) = rig.connect("10.0.0.1", 1)
    assert aborted(many) == [0, 1, 2]
    assert aborted(few) == [] and not late_socket.aborted


def test_ipv6_network_counts_as_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may use any IPv6 address of its network."""
    rig = DescriptorRig(monkeypatch)
    few = rig.connect("2001:db8:2::1", 10)
    many = [rig.connect(f"2001:db8:1::{number:x}", 1)[0] for number in range(54)]
    rig.connect("10.0.0.1", 1)
    assert (aborted(many), aborted(few)) == ([0, 1, 2], [])


def test_ipv4_mapped_addresses_are_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dual-stack socket shows IPv4 addresses in this form."""
    rig = DescriptorRig(monkeypatch)
    few = rig.connect("::ffff:10.0.0.1", 10)
    many = rig.connect("::ffff:10.0.0.2", 54)
    rig.connect("::ffff:10.0.0.3", 1)
    assert (aborted(many), aborted(few)) == ([0, 1, 2], [])


def test_logged_in_and_newest_sockets_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent sockets are closed for any number of clients, except the last few."""
    rig = DescriptorRig(monkeypatch)
    clients = rig.connect("10.0.0.1", 100, login=True)
    silent = rig.connect("10.0.0.2", 20)
    assert aborted(clients) == []
    assert aborted(silent) == list(range(16))
    assert rig.unopened.closed_count == 16


def test_last_descriptors_are_reserved_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DescriptorRig(monkeypatch, reserved=20)
    clients = rig.connect("10.0.0.1", 108, login=True)
    (extra,) = rig.connect("10.0.0.3", 1)
    assert extra.aborted and aborted(clients) == []
    rig.unopened.remove(clients[0])
    (extra,) = rig.connect("10.0.0.3", 1)
    assert not extra.aborted


def test_closed_sockets_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DescriptorRig(monkeypatch)
    for each in rig.connect("10.0.0.1", 200) + rig.connect("::1", 5, login=True):
        rig.unopened.remove(each)
    assert (rig.unopened._sockets, rig.unopened._waiting, rig.unopened._waiting_count) == (set(), {}, 0)


def test_flood_is_logged_once_a_second(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(unauthenticated.time, "monotonic", lambda: 100.0)
    DescriptorRig(monkeypatch).connect("10.0.0.1", 500)
    (line,) = caplog.messages
    assert line == (
        "sockets without a login were closed, the last one from 10.0.0.1: "
        "more than 64 of 128 descriptors are sockets (3 since the start)"
    )


async def open_silently(port: int, count: int) -> list[asyncio.StreamWriter]:
    """Open connections 50 at a time, so that no listen backlog overflows."""
    opened: list[asyncio.StreamWriter] = []
    while len(opened) < count:
        pairs = await asyncio.gather(*[asyncio.open_connection("127.0.0.1", port) for _ in range(50)])
        opened += [writer for _, writer in pairs]
    return opened


@pytest.mark.slow
async def test_broker_works_with_more_silent_sockets_than_descriptors(tmp_path: Path) -> None:
    """Twice as many silent sockets as descriptors: publishes are confirmed, new queues get their files, amqpctl
    answers.
    """
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


def test_broker_raises_its_soft_limit(tmp_path: Path) -> None:
    """The soft limit is a shell's default; the hard limit is what the broker may use."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = ["/bin/sh", "-c", 'ulimit -Sn 512; exec "$@"', "sh", sys.executable, "-P", "-m", "amqpd"]
    with BrokerProcess(tmp_path / "data", command=command) as broker:
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        with socket.create_connection(("127.0.0.1", broker.amqp_port)):
            pass
