"""Listeners: all interfaces means IPv4 and IPv6 on one port; a kernel without IPv6 is supported."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpd import listeners
from amqpd.listeners import Listener, bound_socket, bound_sockets
from amqpd.testing import BrokerFailed, BrokerProcess, parse_ready_line


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this kernel has no IPv6")


class FakeSocket:
    """Fake socket on a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.closed = False

    def getsockname(self) -> tuple[str, int]:
        return "", self.port

    def close(self) -> None:
        self.closed = True


class FakeKernel:
    """Fake kernel: error numbers of successive IPv6 binds; free ports from 1001 on."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.sockets: list[FakeSocket] = []

    def __call__(self, host: str, port: int, only_ipv6: bool = False) -> Any:
        if only_ipv6 and self.errors:
            raise OSError(self.errors.pop(0), f"cannot listen on [{host}]:{port}")
        self.sockets.append(FakeSocket(port or 1001 + len(self.sockets)))
        return self.sockets[-1]


def ports(monkeypatch: pytest.MonkeyPatch, kernel: FakeKernel, port: int) -> list[int]:
    monkeypatch.setattr(listeners, "bound_socket", kernel)
    return [sock.getsockname()[1] for sock in bound_sockets("", port)]


@pytest.mark.parametrize("error", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_only_ipv4_without_ipv6_in_kernel(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    assert ports(monkeypatch, FakeKernel(error), 5672) == [5672]


def test_port_free_for_one_family_only_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel(errno.EADDRINUSE, errno.EADDRINUSE)
    assert ports(monkeypatch, kernel, 0) == [1003, 1003]
    assert [sock.closed for sock in kernel.sockets] == [True, True, False, False]


def test_requested_port_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel(errno.EADDRINUSE)
    with pytest.raises(OSError, match=r"cannot listen on \[::\]:5672"):
        ports(monkeypatch, kernel, 5672)
    assert [sock.closed for sock in kernel.sockets] == [True]


def test_no_port_is_free_for_both_families(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="free for IPv4 and IPv6"):
        ports(monkeypatch, FakeKernel(*[errno.EADDRINUSE] * 100), 0)


def test_listener_as_text() -> None:
    assert str(Listener("amqp", "::", 5672)) == "amqp [::]:5672"
    assert str(Listener("amqps", "0.0.0.0", 5671)) == "amqps 0.0.0.0:5671"


def log_in(host: str, port: int) -> None:
    """Log in as guest, who may log in from loopback only."""
    pika.BlockingConnection(pika.ConnectionParameters(host, port)).close()


def test_vanished_client_is_noticed_by_keepalive() -> None:
    with bound_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.slow
@needs_ipv6
def test_default_is_both_families(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"amqp.host": ""}) as broker:
        port = broker.amqp_port
        assert broker.ready is not None
        assert broker.ready.listeners["amqp"] == ("0.0.0.0", port)
        for host in ("127.0.0.1", "::1"):
            log_in(host, port)
        status = broker.ctl("status").stdout
        for host in ("0.0.0.0", "::"):
            assert f"Interface: {host}, port: {port}, protocol: amqp," in status
        assert broker.ctl("stop_app").returncode == broker.ctl("start_app").returncode == 0
        for host in ("127.0.0.1", "::1"):
            log_in(host, port)
        with pytest.raises(BrokerFailed, match=rf"cannot listen on 0\.0\.0\.0:{port}"):
            BrokerProcess(tmp_path / "other", settings={"amqp.host": "", "amqp.port": port}).start()


@needs_ipv6
def test_single_address(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "four", settings={"amqp.host": "0.0.0.0"}) as broker:
        log_in("127.0.0.1", broker.amqp_port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("::1", broker.amqp_port), 5)
    with BrokerProcess(tmp_path / "six", settings={"amqp.host": "::"}) as broker:
        log_in("::1", broker.amqp_port)
        log_in("127.0.0.1", broker.amqp_port)  # it arrives as ::ffff:127.0.0.1


def test_ready_line_with_both_families() -> None:
    ready = parse_ready_line(
        "amqpd 0.1.0 (compiled) ready in 2 ms: amqp 0.0.0.0:5672, amqp [::]:5672, amqps 0.0.0.0:5671, amqps [::]:5671, "
        "http 127.0.0.1:15672, data x\n"
    )
    assert ready is not None
    assert ready.listeners == {
        "amqp": ("0.0.0.0", 5672),
        "amqps": ("0.0.0.0", 5671),
        "http": ("127.0.0.1", 15672),
    }
