"""Effects of signals on a running broker, and the format of its log."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from amqpd import logging_config
from amqpd.config import LogSettings
from amqpd.testing import BrokerProcess, parse_ready_line

LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [\w.]+: ")


# A new session, without the controlling terminal of the tests.
AS_SERVICE = [
    sys.executable, "-P", "-c",
    "import os, sys; os.setsid(); os.execv(sys.executable, [sys.executable, '-P', '-m', 'amqpd', *sys.argv[1:]])",
]  # fmt: skip


def wait_for_log(broker: BrokerProcess, text: str) -> str:
    """Return standard error as soon as it has the text."""
    deadline = time.monotonic() + 60
    while text not in broker.stderr:
        assert time.monotonic() < deadline and broker.running, f"{text!r} is not in\n{broker.stderr}"
        time.sleep(0.02)
    return broker.stderr


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGHUP, "SIGHUP: the settings are reloaded, log.level is info"),
        (signal.SIGUSR1, "there is no file to open again"),
        (signal.SIGUSR2, "SIGUSR2: thread MainThread"),
    ],
)
def test_signal_is_logged_and_broker_keeps_running(tmp_path, number, text):
    with BrokerProcess(tmp_path, command=AS_SERVICE) as broker:
        os.kill(broker.pid, number)
        wait_for_log(broker, text)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            os.kill(broker.pid, ignored)
        broker.add_vhost("still-here")
        broker.stop()


def test_sigusr2_logs_threads_and_tasks(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        broker.add_vhost("v")
        os.kill(broker.pid, signal.SIGUSR2)
        text = wait_for_log(broker, "SIGUSR2: task ")
        assert "amqpd/process.py" in text
        assert "  File " in text


def test_reload_applies_log_level_and_names_restart_settings(tmp_path):
    config = tmp_path / "amqpd.toml"
    config.write_text("[amqp]\nheartbeat_s = 60\n")
    with BrokerProcess(tmp_path / "data", env={"AMQPD_CONFIG": str(config)}, command=AS_SERVICE) as broker:
        config.write_text("[amqp]\nheartbeat_s = 30\n[log]\nlevel = 'debug'\n")
        os.kill(broker.pid, signal.SIGHUP)
        wait_for_log(broker, "log.level is debug; changed, but need a restart: amqp.heartbeat_s")
        config.write_text("[amqp]\nheartbeats = 30\n")
        os.kill(broker.pid, signal.SIGHUP)
        wait_for_log(broker, "the settings are unchanged: ")


def test_reload_keeps_values_set_by_amqpctl(tmp_path):
    """A limit set by amqpctl stays until its setting changes."""
    config = tmp_path / "amqpd.toml"
    config.write_text("[amqp]\nloopback_users = ['guest']\n")
    with BrokerProcess(tmp_path / "data", env={"AMQPD_CONFIG": str(config)}, command=AS_SERVICE) as broker:
        limit = partial(broker.api, "GET", "/api/amqpd/status")
        assert broker.ctl("set_vm_memory_high_watermark", "absolute", "900000000").returncode == 0
        config.write_text("[amqp]\nloopback_users = []\n")
        assert broker.ctl("reload", "-q").stdout == "changed: amqp.loopback_users\n"
        assert broker.api("GET", "/api/amqpd/loopback_users") == {"value": []}
        assert limit()["vm_memory_high_watermark_limit"] == 900_000_000
        config.write_text("[amqp]\nloopback_users = []\nheartbeat_s = 7\n[limits]\nmemory_bytes = 800_000_000\n")
        assert broker.ctl("reload", "-q").stdout == (
            "changed: limits.memory_bytes\nneeds a restart: amqp.heartbeat_s\n"
        )
        assert limit()["vm_memory_high_watermark_limit"] == 800_000_000
        config.write_text("[amqp]\nheartbeat = 7\n")
        refused = broker.ctl("reload")
        assert (refused.returncode, "unknown setting amqp.heartbeat" in refused.stderr) == (69, True)
        assert limit()["vm_memory_high_watermark_limit"] == 800_000_000


def test_closed_terminal_is_a_clean_stop(tmp_path):
    """As when the window of `make run` is closed."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(
            sys.executable,
            [sys.executable, "-P", "-m", "amqpd", "--data-dir", str(tmp_path), "--amqp.port=0", "--http.port=0",
             "--amqp.host=127.0.0.1", f"--log.file={tmp_path}/log"],
        )  # fmt: skip
    output = b""
    while b" ready in " not in output:
        output += os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    log = (tmp_path / "log").read_text()
    assert "SIGHUP: the terminal was closed, stopping" in log
    assert "Traceback" not in log


def test_sigusr1_reopens_log_file(tmp_path):
    file = tmp_path / "amqpd.log"
    with BrokerProcess(tmp_path / "data", settings={"log.file": file, "log.format": "json"}) as broker:
        file.rename(tmp_path / "amqpd.log.1")
        os.kill(broker.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 60
        while not file.exists() or "opened again" not in file.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        broker.add_vhost("later")
    records = [json.loads(line) for path in (tmp_path / "amqpd.log.1", file) for line in path.read_text().splitlines()]
    first = next(record for record in records if " ready in " in record["message"])
    ready = parse_ready_line(first["message"])
    assert ready is not None and ready.data == str(tmp_path / "data")
    assert first["level"] == "info" and first["time"].endswith("Z")


def test_log_file_that_cannot_be_opened_is_reported(tmp_path):
    command = [sys.executable, "-P", "-m", "amqpd", f"--data-dir={tmp_path}/data", f"--log.file={tmp_path}/no/log"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 69
    assert process.stderr == f"amqpd: log.file {tmp_path}/no/log cannot be opened: No such file or directory\n"


class TestFormats:
    def record(self, message: str, *arguments: object, **fields: object) -> logging.LogRecord:
        record = logging.LogRecord("amqpd.x", logging.INFO, "x.py", 1, message, arguments, None)
        record.created = 1_800_000_000.25
        record.__dict__.update(fields)
        return record

    def test_text_format(self):
        record = self.record("user '%s' came", "anna", vhost="/", queue="a b", channel=3, other="not shown")
        assert logging_config.TextFormatter().format(record) == (
            "2027-01-15T08:00:00.250Z INFO amqpd.x: user 'anna' came [channel=3 vhost=/ queue=\"a b\"]"
        )

    def test_json_format(self):
        record = self.record("user '%s' came", "änna\n", vhost="/", channel=3)
        line = logging_config.JsonFormatter().format(record)
        assert line.isascii() and "\n" not in line
        assert json.loads(line) == {
            "time": "2027-01-15T08:00:00.250Z", "level": "info", "logger": "amqpd.x",
            "message": "user 'änna\n' came", "vhost": "/", "channel": 3,
        }  # fmt: skip

    @pytest.mark.parametrize("name", ["a\n2026-01-01 ERROR forged", "\x1b[31m", "\r", "\x85\u2028", "\udcff", "\u202e"])
    def test_client_text_is_escaped(self, name):
        try:
            raise ValueError(name)
        except ValueError:
            failed = self.record("bad: %s", name, queue=name, exc_info=sys.exc_info())
        first, *more = logging_config.TextFormatter().format(failed).split("\n")
        assert first.isprintable() and all(line.isprintable() and line.startswith("  ") for line in more)
        assert LINE.match(first)
        assert logging_config.JsonFormatter().format(failed).isascii()

    def test_existing_log_file_is_appended_to(self, tmp_path):
        (tmp_path / "log").write_text("before\n")
        output = logging_config.LogOutput(LogSettings(file=tmp_path / "log"))
        output.handle(self.record("after"))
        output.close()
        output.stream.close()
        assert (tmp_path / "log").read_text().splitlines()[0] == "before"
