"""amqpd.testing with a fake broker: how a process is started, watched and stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from amqpd.testing import BrokerFailed, BrokerProcess, Vhost, parse_ready_line


def free_ports(count: int) -> list[int]:
    """Return free ports outside the range from which the system assigns ports (from 32768 on Linux)."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


AMQP_PORT, HTTP_PORT = free_ports(2)
FAKE_BROKER = """
import signal, sys, time
options = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:] if "=" in a)
port = int(options["amqp.port"]) or {amqp_port}
print("noise before", flush=True)
print("starting", file=sys.stderr, flush=True)
print(" ".join(sys.argv[1:]), file=sys.stderr, flush=True)
MODE = {mode!r}
if MODE == "dies":
    sys.exit("no such setting")
if MODE == "silent":
    time.sleep(60)
if MODE == "bad-exit":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
elif MODE == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
listeners = f"amqp 127.0.0.1:{{port}}, http 127.0.0.1:{http_port}"
print(f"amqpd 0.1.0 (compiled) ready in 7 ms: {{listeners}}, data {{sys.argv[2]}}", flush=True)
while True:
    time.sleep(0.05)  # not for long: a signal that comes just before it is seen behind it
"""


def fake_broker(tmp_path: Path, mode: str = "good", **more: object) -> BrokerProcess:
    command = [sys.executable, "-c", FAKE_BROKER.format(mode=mode, amqp_port=AMQP_PORT, http_port=HTTP_PORT)]
    return BrokerProcess(tmp_path / "data", command=command, start_timeout_s=30.0, **more)  # type: ignore[arg-type]


def test_parse_ready_line() -> None:
    ready = parse_ready_line(
        "amqpd 0.1.0 (compiled) ready in 212 ms: "
        "amqp 127.0.0.1:5672, amqps [::1]:5671, http 0.0.0.0:15672, data ./a, b\n"
    )
    assert ready is not None
    assert (ready.version, ready.build, ready.took_ms, ready.data) == ("0.1.0", "compiled", 212, "./a, b")
    assert ready.listeners == {"amqp": ("127.0.0.1", 5672), "amqps": ("::1", 5671), "http": ("0.0.0.0", 15672)}
    assert parse_ready_line("amqpd 0.1.0 (compiled) is starting") is None


def test_broker_starts_and_stops(tmp_path: Path) -> None:
    with fake_broker(tmp_path, settings={"storage.segment_size_bytes": 4096, "amqp.tcp_nodelay": True}) as broker:
        pid = broker.pid
        os.kill(pid, 0)
        assert (broker.amqp_port, broker.http_port) == (AMQP_PORT, HTTP_PORT)
        assert broker.url == f"amqp://guest:guest@127.0.0.1:{AMQP_PORT}/"
        assert broker.http_url == f"http://127.0.0.1:{HTTP_PORT}"
    assert not broker.running
    assert "--storage.segment-size-bytes=4096" in broker.stderr
    assert "--amqp.tcp-nodelay=true" in broker.stderr
    assert "noise before" in broker.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_restart_after_kill_uses_the_same_ports(tmp_path: Path) -> None:
    broker = fake_broker(tmp_path, settings={})
    broker.start()
    first = broker.pid
    with pytest.raises(RuntimeError, match="is already running"):
        broker.start()
    broker.kill()
    assert not broker.running
    with socket.socket() as other, pytest.raises(OSError, match="in use"):  # the ports stay reserved meanwhile
        other.bind(("127.0.0.1", AMQP_PORT))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", AMQP_PORT), 30)
    broker.start()
    with socket.socket() as other:
        other.bind(("127.0.0.1", AMQP_PORT))
    assert broker.pid != first
    assert f"--amqp.port={AMQP_PORT} --http.port={HTTP_PORT}" in wait_for_stderr(broker, "--amqp.port")
    broker.kill()
    broker.start(same_ports=False)
    assert "--amqp.port=0 --http.port=0" in wait_for_stderr(broker, "--amqp.port")
    broker.close()


def wait_for_stderr(broker: BrokerProcess, text: str) -> str:
    deadline = time.monotonic() + 30
    while text not in broker.stderr and time.monotonic() < deadline:
        time.sleep(0.01)
    return broker.stderr


def test_broker_that_exits_at_start_shows_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"exit code 1 before it was ready(.|\n)*no such setting"):
        fake_broker(tmp_path, "dies").start()


def test_start_of_silent_broker_times_out(tmp_path: Path) -> None:
    broker = fake_broker(tmp_path, "silent")
    message = ""
    for seconds in (0.5, 4, 30):  # the process may start slowly
        broker.start_timeout_s = seconds
        with pytest.raises(BrokerFailed, match=f"within {seconds:g} s") as failed:
            broker.start()
        assert not broker.running
        message = str(failed.value)
        if "starting" in message:
            break
    assert "starting" in message


def test_failing_exit_code_is_reported(tmp_path: Path) -> None:
    broker = fake_broker(tmp_path, "bad-exit")
    broker.start()
    with pytest.raises(BrokerFailed, match="exit code 3"):
        broker.stop()


def test_killed_broker_is_reported(tmp_path: Path) -> None:
    broker = fake_broker(tmp_path).start()
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(BrokerFailed, match="exit code -9"):
        broker.stop()


def test_broker_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    broker = fake_broker(tmp_path, "stubborn").start()
    with pytest.raises(BrokerFailed, match="did not stop within 0.3 s"):
        broker.stop(0.3)
    assert not broker.running


def test_environment_settings_of_caller_are_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQPD_AMQP__PORT", "1")
    monkeypatch.setenv("RABBITMQ_DEFAULT_USER", "somebody")
    show = "import os, sys; sys.exit(str(sorted(k for k in os.environ if k.startswith(('AMQPD', 'RABBIT')))))"
    broker = BrokerProcess(tmp_path, command=[sys.executable, "-c", show], env={"AMQPD_LOG__LEVEL": "debug"})
    with pytest.raises(BrokerFailed, match=r"standard error:\n\['AMQPD_CONFIG', 'AMQPD_LOG__LEVEL'\]"):
        broker.start()


@pytest.mark.slow
def test_real_broker_with_amqpctl_and_api(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        vhost = broker.add_vhost()
        assert vhost.url == f"{broker.url}{vhost.name}"
        listed = broker.ctl("list_vhosts", "-q", "--no-table-headers")
        assert (listed.returncode, sorted(listed.stdout.split())) == (0, ["/", vhost.name])
        broker.delete_vhost(vhost.name)
        assert broker.ctl("list_vhosts", "-q", "--no-table-headers").stdout.split() == ["/"]
        with pytest.raises(BrokerFailed, match="404"):
            broker.api("GET", "/api/vhosts/nosuch")


def test_pytest_fixtures(amqpd_broker: BrokerProcess, amqpd_url: str, amqpd_vhost: Vhost) -> None:
    assert amqpd_url == amqpd_broker.url
    assert {"/", amqpd_vhost.name} <= {each["name"] for each in amqpd_broker.api("GET", "/api/vhosts")}  # type: ignore[attr-defined]
