"""What systemd is told, what probes are told, and a broker that is drained and revived."""

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


def manager(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(tmp_path / "notify"))
    sock.settimeout(60)
    return sock


def told(sock: socket.socket, first: str) -> dict[str, str]:
    """The next message that begins with this line; only those of the watchdog may come before it."""
    while True:
        lines = sock.recv(4096).decode().split("\n")
        if lines[0] == first:
            return dict(line.split("=", 1) for line in lines)
        assert lines == ["WATCHDOG=1"]


def test_a_service_tells_how_it_is(tmp_path: Path) -> None:
    with manager(tmp_path) as sock:
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with BrokerProcess(tmp_path / "data", env=env, command=AS_SERVICE) as broker:
            ready = told(sock, "READY=1")
            assert ready["MAINPID"] == str(broker.pid)
            assert "amqp 127.0.0.1:" in ready["STATUS"]
            told(sock, "WATCHDOG=1")
            told(sock, "WATCHDOG=1")
            os.kill(broker.pid, signal.SIGHUP)
            assert int(told(sock, "RELOADING=1")["MONOTONIC_USEC"]) > 0
            told(sock, "READY=1")
            broker.stop()
            told(sock, "STOPPING=1")


def test_nobody_is_told_without_systemd() -> None:
    Notifier({}).send("READY=1")


def test_a_manager_that_is_gone_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "none")}
    notifier = Notifier(environ)
    assert environ == {}  # no child speaks for it
    notifier.send("READY=1")
    notifier.send("STOPPING=1")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "systemd cannot be reached, so it gets neither READY=1 nor later reports"
    ]


def test_an_abstract_socket() -> None:
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
def test_drained_and_revived(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert probe(broker, "/health/live") == probe(broker, "/health/ready") == (200, {"status": "ok"})
        inside = connect(broker)
        inside.channel().queue_declare("kept", durable=True)
        for _ in range(2):
            assert broker.ctl("drain").returncode == 0
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Node was put into maintenance mode"):
            inside.process_data_events(10)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(broker)
        reason = {"status": "failed", "reason": "the broker is drained for maintenance"}
        assert probe(broker, "/health/ready") == (503, reason)
        assert probe(broker, "/health/live")[0] == 200
        assert "status: under maintenance" in broker.ctl("cluster_status").stdout
        assert broker.ctl("revive").returncode == 0
        assert probe(broker, "/health/ready")[0] == 200
        with connect(broker) as again:
            assert again.channel().queue_declare("kept", passive=True).method.queue == "kept"
        assert "not under maintenance" in broker.ctl("cluster_status").stdout


def test_who_goes_in_time_is_not_closed(tmp_path: Path) -> None:
    """And a drain waits no longer than there is somebody to wait for."""
    with BrokerProcess(tmp_path) as broker:
        inside = connect(broker)
        answers: list[object] = []
        work = threading.Thread(
            target=lambda: answers.append(broker.api("POST", "/api/amqpd/drain", {"grace_s": 600}, timeout_s=60))
        )
        work.start()
        while probe(broker, "/health/ready")[0] == 200:
            time.sleep(0.02)
        inside.channel().queue_declare("", exclusive=True)  # works on
        inside.close()
        work.join(50)
        assert answers == [{"closed": 0}]


def test_a_revive_ends_a_drain_that_waits(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        inside = connect(broker)
        answers: list[object] = []
        work = threading.Thread(
            target=lambda: answers.append(broker.api("POST", "/api/amqpd/drain", {"grace_s": 600}, timeout_s=60))
        )
        work.start()
        while probe(broker, "/health/ready")[0] == 200:
            time.sleep(0.02)
        assert broker.ctl("revive").returncode == 0
        work.join(50)
        assert answers == [{"closed": 0}]
        inside.channel().queue_declare("", exclusive=True)
        inside.close()


def test_listeners_that_are_resumed_end_it(tmp_path: Path) -> None:
    """Where clients get in, a probe that says otherwise would take the traffic away for ever."""
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.ctl("drain").returncode == 0
        with pytest.raises(BrokerFailed, match="503 .*drained for maintenance"):
            broker.api("GET", "/health/ready")
        assert broker.ctl("resume_listeners").returncode == 0
        assert broker.api("GET", "/health/ready") == {"status": "ok"}
        pika.BlockingConnection(pika.URLParameters(broker.url)).close()


def test_a_grace_that_is_none(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for grace_s in (-1, "5", True, 4000):
            with pytest.raises(BrokerFailed, match="400 .*grace_s must be a number of seconds from 0 to 3600"):
                broker.api("POST", "/api/amqpd/drain", {"grace_s": grace_s})
        assert probe(broker, "/health/ready")[0] == 200
        assert broker.ctl("drain", "--grace", "4000").returncode == 64
