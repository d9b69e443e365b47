"""Notifications to systemd, health probes, drain and revive."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pika
import pika.exceptions
import pytest

from amqpd.process import Notifier
from amqpd.testing import BrokerFailed, BrokerProcess

AS_SERVICE = [
    sys.executable, "-P", "-c",
    "import os, sys; os.setsid(); os.execv(sys.executable, [sys.executable, '-P', '-m', 'amqpd', *sys.argv[1:]])",
]  # fmt: skip


def notify_socket(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(tmp_path / "notify"))
    sock.settimeout(60)
    return sock


def expect_message(sock: socket.socket, first: str) -> dict[str, str]:
    """Return the next message that begins with this line; only watchdog messages may come before it."""
    while True:
        lines = sock.recv(4096).decode().split("\n")
        if lines[0] == first:
            return dict(line.split("=", 1) for line in lines)
        assert lines == ["WATCHDOG=1"]


def test_systemd_is_notified_of_state_changes(tmp_path: Path) -> None:
    with notify_socket(tmp_path) as sock:
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with BrokerProcess(tmp_path / "data", env=env, command=AS_SERVICE) as broker:
            ready = expect_message(sock, "READY=1")
            assert ready["MAINPID"] == str(broker.pid)
            assert "amqp 127.0.0.1:" in ready["STATUS"]
            expect_message(sock, "WATCHDOG=1")
            expect_message(sock, "WATCHDOG=1")
            os.kill(broker.pid, signal.SIGHUP)
            assert int(expect_message(sock, "RELOADING=1")["MONOTONIC_USEC"]) > 0
            expect_message(sock, "READY=1")
            broker.stop()
            expect_message(sock, "STOPPING=1")


def test_no_notification_without_systemd() -> None:
    Notifier({}).send("READY=1")


def test_missing_notify_socket_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "none")}
    notifier = Notifier(environ)
    assert environ == {}  # child processes must not notify
    notifier.send("READY=1")
    notifier.send("STOPPING=1")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "systemd cannot be reached, so it gets neither READY=1 nor later reports"
    ]


def test_abstract_notify_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"amqpd-test-{os.getpid()}"
        sock.bind("\0" + name)
        sock.settimeout(10)
        Notifier({"NOTIFY_SOCKET": "@" + name}).stopping()
        assert sock.recv(100) == b"STOPPING=1"


def probe(broker: BrokerProcess, path: str) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))


@pytest.mark.slow
def test_drain_and_revive(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert probe(broker, "/health/live") == probe(broker, "/health/ready") == (200, {"status": "ok"})
        connection = connect(broker)
        connection.channel().queue_declare("kept", durable=True)
        for _ in range(2):
            assert broker.ctl("drain").returncode == 0
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Node was put into maintenance mode"):
            connection.process_data_events(10)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(broker)
        reason = {"status": "failed", "reason": "the broker is drained for maintenance"}
        assert probe(broker, "/health/ready") == (503, reason)
        assert probe(broker, "/health/live")[0] == 200
        assert "status: under maintenance" in broker.ctl("cluster_status").stdout
        assert broker.ctl("revive").returncode == 0
        assert probe(broker, "/health/ready")[0] == 200
        with connect(broker) as new_connection:
            assert new_connection.channel().queue_declare("kept", passive=True).method.queue == "kept"
        assert "not under maintenance" in broker.ctl("cluster_status").stdout


def test_drain_waits_for_clients_to_close(tmp_path: Path) -> None:
    """The drain ends as soon as no client is left."""
    with BrokerProcess(tmp_path) as broker:
        connection = connect(broker)
        answers: list[object] = []
        drain = threading.Thread(
            target=lambda: answers.append(broker.api("POST", "/api/amqpd/drain", {"grace_s": 600}, timeout_s=60))
        )
        drain.start()
        while probe(broker, "/health/ready")[0] == 200:
            time.sleep(0.02)
        connection.channel().queue_declare("", exclusive=True)  # the open connection still works
        connection.close()
        drain.join(50)
        assert answers == [{"closed": 0}]


@pytest.mark.slow
def test_revive_ends_waiting_drain(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        connection = connect(broker)
        answers: list[object] = []
        drain = threading.Thread(
            target=lambda: answers.append(broker.api("POST", "/api/amqpd/drain", {"grace_s": 600}, timeout_s=60))
        )
        drain.start()
        while probe(broker, "/health/ready")[0] == 200:
            time.sleep(0.02)
        assert broker.ctl("revive").returncode == 0
        drain.join(50)
        assert answers == [{"closed": 0}]
        connection.channel().queue_declare("", exclusive=True)
        connection.close()


@pytest.mark.slow
def test_resumed_listeners_end_drain(tmp_path: Path) -> None:
    """If clients can connect again, a failing probe would keep the traffic away forever."""
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.ctl("drain").returncode == 0
        with pytest.raises(BrokerFailed, match="503 .*drained for maintenance"):
            broker.api("GET", "/health/ready")
        assert broker.ctl("resume_listeners").returncode == 0
        assert broker.api("GET", "/health/ready") == {"status": "ok"}
        pika.BlockingConnection(pika.URLParameters(broker.url)).close()


def test_invalid_grace_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for grace_s in (-1, "5", True, 4000):
            with pytest.raises(BrokerFailed, match="400 .*grace_s must be a number of seconds from 0 to 3600"):
                broker.api("POST", "/api/amqpd/drain", {"grace_s": grace_s})
        assert probe(broker, "/health/ready")[0] == 200
        assert broker.ctl("drain", "--grace", "4000").returncode == 64
