from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd import __version__

STOP = ("POST", "/api/amqpd/stop")
STATUS: dict[str, Any] = {
    "node": "amqpd@host",
    "product": "amqpd",
    "version": "0.1.0",
    "build": "compiled",
    "pid": 4711,
    "uptime_ms": 61_999,
    "os": "Linux 6.1",
    "python": "3.11.2",
    "data_dir": "/var/lib/amqpd",
    "log_level": "info",
    "app_running": True,
    "listeners": [
        {"node": "amqpd@host", "protocol": "amqp", "ip_address": "127.0.0.1", "port": 5672},
        {"node": "amqpd@host", "protocol": "http", "ip_address": "127.0.0.1", "port": 15672},
    ],
    "alarms": [],
    "memory": {"rss_bytes": 136_800_000, "limit_bytes": 4_000_000_000},
    "file_descriptors": {"used": 17, "limit": 1024},
    "disk_free_bytes": 83_808_500_000,
    "totals": {
        "connections": 1,
        "channels": 2,
        "queues": 3,
        "exchanges": 7,
        "bindings": 4,
        "consumers": 5,
        "virtual_hosts": 6,
        "users": 8,
    },
    "unsynced_bytes": 0,
}


def test_ping_prints_timeout_and_success(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/amqpd/ping"] = (200, {"status": "ok"})
    result = ctl("ping", "-t", "3")
    assert result.code == 0
    assert result.out.startswith("Will ping n@h. ")
    assert result.out.endswith("Timeout: 3000 ms.\nPing succeeded\n")
    assert ctl("ping", "--formatter", "json").out == '{"message":"Ping succeeded"}\n'


def test_version_needs_no_broker(ctl: Ctl) -> None:
    assert ctl("version") == ctl("--version") == (0, f"{__version__}\n", "")
    assert json.loads(ctl("version", "--formatter", "json").out)["value"] == {"version": __version__}


def test_status_prints_units_and_json(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/amqpd/status"] = (200, STATUS)
    lines = ctl("status").out.splitlines()
    assert lines[:4] == ["Status of node amqpd@host ...", "Runtime", "", "OS PID: 4711"]
    for line in (
        "Uptime (seconds): 61",
        "amqpd version: 0.1.0 (compiled)",
        "Node data directory: /var/lib/amqpd",
        "(none)",
        "Total memory used: 0.1368 gb",
        "Memory available: 4.0 gb",
        "Free disk space: 83.8085 gb",
        "Queue count: 3",
        "Virtual host count: 6",
        "Interface: 127.0.0.1, port: 5672, protocol: amqp, purpose: AMQP 0-9-1",
    ):
        assert line in lines
    assert "Total memory used: 136.8 mb" in ctl("status", "--unit", "mb").out.splitlines()
    assert "Total memory used: 136800000 bytes" in ctl("status", "--unit", "bytes").out.splitlines()
    assert ctl("status", "--unit", "XX").code == 64
    assert json.loads(ctl("status", "--formatter", "json").out) == STATUS


def test_status_with_compat_has_version_line_of_rabbitmq(broker: FakeBroker, ctl: Ctl) -> None:
    """Puppet and Ansible read the rest of this line as a version."""
    for product, version, line in (("RabbitMQ", "3.12.0", ["RabbitMQ version: 3.12.0"]), ("amqpd", "0.1.0", [])):
        status = {**STATUS, "product_name": product, "product_version": version}
        broker.answers["GET", "/api/amqpd/status"] = (200, status)
        assert [each for each in ctl("-q", "status").out.splitlines() if each.startswith("RabbitMQ")] == line


def test_status_names_a_tls_listener_as_listeners_does(broker: FakeBroker, ctl: Ctl) -> None:
    found = [{"node": "n@h", "protocol": "amqp/ssl", "ip_address": "127.0.0.1", "port": 5671}]
    broker.answers["GET", "/api/amqpd/status"] = (200, {**STATUS, "listeners": found})
    line = "Interface: 127.0.0.1, port: 5671, protocol: amqp/ssl, purpose: AMQP 0-9-1 over TLS\n"
    assert line in ctl("status").out
    assert line in ctl("listeners").out


def test_status_of_stopped_app_is_an_error(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/amqpd/status"] = (200, {**STATUS, "app_running": False})
    result = ctl("status")
    assert (result.code, result.out) == (64, "")
    assert "amqpctl start_app" in result.err


def test_stop_app_and_start_app(broker: FakeBroker, ctl: Ctl) -> None:
    for name in ("stop_app", "start_app"):
        broker.answers["POST", f"/api/amqpd/{name}"] = (204, None)
    assert ctl("stop_app") == (0, "Stopping amqpd application on node n@h ...\n", "")
    assert ctl("start_app") == (0, "Starting node n@h ...\n", "")
    broker.answers["POST", "/api/amqpd/start_app"] = (500, {"error": "x", "reason": "port 5672 is taken"})
    assert ctl("-q", "start_app") == (70, "", "Error:\nport 5672 is taken\n")


def test_stop_returns_after_the_process_ended(broker: FakeBroker, ctl: Ctl) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        broker.answers[STOP] = (202, {"pid": process.pid})
        ended = []

        def end() -> None:
            time.sleep(0.3)
            broker.stop()
            process.kill()  # from here on a zombie until wait(); amqpctl counts a zombie as ended
            ended.append(time.monotonic())

        thread = threading.Thread(target=end)
        thread.start()
        result = ctl("stop")
        returned = time.monotonic()
        thread.join()
    assert result == (0, "Stopping and halting node n@h ...\n", "")
    assert returned >= ended[0]


def test_stop_waits_for_the_process_in_the_pid_file(broker: FakeBroker, ctl: Ctl, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        pid_file = tmp_path / "broker.pid"
        pid_file.write_text(f"{process.pid}\n")
        broker.answers[STOP] = (202, {"pid": 2**22 + 1})
        threading.Timer(0.1, broker.stop).start()
        assert ctl("stop", str(pid_file), "-t", "1").code == 75
        process.kill()
    assert ctl("stop", str(tmp_path / "missing")).code == 69


def test_stop_times_out_when_broker_keeps_running(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers[STOP] = (202, {"pid": 2**22 + 1})
    result = ctl("stop", "-q", "-t", "1")
    assert result.code == 75
    assert "still runs after 1000 ms" in result.err


def test_stop_without_broker_fails_unless_idempotent(ctl: Ctl) -> None:
    assert ctl("stop").code == 69
    assert ctl("stop", "--idempotent").code == 0


@pytest.mark.parametrize("command", ["status", "ping", "stop_app", "start_app"])
def test_operand_is_a_usage_error(ctl: Ctl, command: str) -> None:
    result = ctl(command, "x")
    assert (result.code, result.err.splitlines()[0]) == (64, "Error (argument validation): too many arguments.")
