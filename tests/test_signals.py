"""Effects of signals on a running broker, and the format of its log."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest

import amqpd.__main__
from amqpd import logging_config
from amqpd.config.schema import LogSettings
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


@pytest.mark.slow
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


def start_with_fifo(tmp_path, command):
    """Return a process whose start waits for its definitions, and the file to write them to."""
    fifo = tmp_path / "definitions.json"
    os.mkfifo(fifo)
    options = ["--amqp.host=127.0.0.1", "--amqp.port=0", "--http.port=0", f"--load-definitions={fifo}"]
    arguments = [*command, "--data-dir", str(tmp_path / "data"), *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, fifo.open("w")


@pytest.mark.slow
def test_signals_during_a_start_wait_until_the_broker_is_ready(tmp_path):
    """A log rotation or a reload while definitions are imported must not end the broker."""
    process, definitions = start_with_fifo(tmp_path, AS_SERVICE)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        process.send_signal(number)
    document = json.dumps({"users": [], "vhosts": [{"name": "/"}]})
    (tmp_path / "file").write_text(document)
    (tmp_path / "file").rename(definitions.name)  # the reload after SIGHUP reads it
    definitions.write(document)
    definitions.close()
    assert " ready in " in process.stdout.readline()
    process.terminate()
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    for text in ("SIGUSR1: the log goes", "SIGUSR2: thread MainThread", "SIGHUP: the settings are reloaded"):
        assert text in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_start_at_any_place(number):
    """Python drops an exception in a callback of a weak reference, and imports have such callbacks."""
    program = f"""
import signal, weakref
import amqpd.__main__, amqpd.config

def load(*_):
    one = {{signal.SIGINT}}
    callback = weakref.ref(one, lambda _: signal.raise_signal({number:d}))
    del one
    raise SystemExit("the signal is lost")

amqpd.__main__.load = amqpd.config.load = load
amqpd.__main__.main([])
"""
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-number, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_start_that_runs_no_python(number):
    """Python calls no handler in compiled code or in a long system call."""
    program = """
import collections, itertools
import amqpd.__main__, amqpd.config

def load(*_):
    print("loads", flush=True)
    collections.deque(itertools.repeat(0), maxlen=0)  # has no end

amqpd.__main__.load = amqpd.config.load = load
amqpd.__main__.main([])
"""
    with subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE) as start:
        try:
            assert start.stdout.readline() == b"loads\n"
            time.sleep(0.1)
            start.send_signal(number)
            assert start.wait(20) == -number
        finally:
            start.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_start_in_process_1_of_a_container(monkeypatch, number):
    """The kernel ignores signals to it that have no handler."""
    kept = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    codes = []
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "_exit", codes.append)
    try:
        amqpd.__main__.main(["--version"])
        signal.getsignal(number)(number, None)
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
    assert codes == [128 + number]


def test_signals_at_the_end_of_a_stop_do_not_change_its_exit_code(tmp_path):
    """After the last log line the loop removes its handlers. A thread that has sent a file runs until the end."""
    options = ["--amqp.host=127.0.0.1", "--amqp.port=0", "--http.port=0", "--data-dir", str(tmp_path)]
    with subprocess.Popen([*AS_SERVICE, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        host, port = parse_ready_line(broker.stdout.readline()).listeners["http"]
        send_log_file(HTTPConnection(host, port))
        broker.terminate()
        while "stopped, all logs are synced" not in broker.stderr.readline():
            pass
        while broker.poll() is None:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
                broker.send_signal(number)
        assert broker.returncode == 0


def send_log_file(http: HTTPConnection) -> None:
    """Have the broker send the log of a queue with a message."""
    login = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
    message = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    for method, path, body in (
        ("PUT", "queues/%2F/q", {"durable": True}),
        ("POST", "exchanges/%2F/amq.default/publish", message),
        ("GET", f"amqpd/logs/%2F/q/{0:020}.log", {}),
    ):
        http.request(method, f"/api/{path}", json.dumps(body), login)
        response = http.getresponse()
        assert response.status < 300, response.read()
        assert response.read() or method == "PUT"
    http.close()


@pytest.mark.slow
def test_sighup_is_ignored_under_nohup(tmp_path):
    """A shell sends it to its jobs when the terminal is closed."""
    shell = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-P", "-m", "amqpd"]
    with BrokerProcess(tmp_path, command=shell) as broker:
        os.kill(broker.pid, signal.SIGHUP)
        os.kill(broker.pid, signal.SIGUSR1)
        assert "SIGHUP" not in wait_for_log(broker, "SIGUSR1: ")
        broker.add_vhost("still-here")


def test_closed_standard_streams_are_not_used_for_sockets(tmp_path):
    """libuv aborts the process when it closes a socket whose number is 0, 1 or 2."""
    log = tmp_path / "log"
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-P", "-m", "amqpd"]
    options = ["--amqp.host=127.0.0.1", "--amqp.port=0", "--http.port=0", f"--log.file={log}"]
    process = subprocess.Popen([*shell, "--data-dir", str(tmp_path / "data"), *options])
    deadline = time.monotonic() + 60
    while not log.exists() or " ready in " not in log.read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    descriptors = Path("/proc", str(process.pid), "fd")
    assert [str((descriptors / str(number)).readlink()) for number in range(3)] == ["/dev/null"] * 3
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_log_file_that_cannot_be_opened_again_is_reported_on_standard_error(tmp_path):
    """The old file, which has the error too, may be removed."""
    file = tmp_path / "logs" / "amqpd.log"
    file.parent.mkdir()
    with BrokerProcess(tmp_path / "data", settings={"log.file": file}) as broker:
        file.unlink()
        file.parent.rmdir()
        os.kill(broker.pid, signal.SIGUSR1)
        text = wait_for_log(broker, "cannot be opened")
    assert f"log.file {file} cannot be opened: No such file or directory; the log continues in the old file" in text


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

    def test_full_disk_of_standard_error_is_reported_when_it_has_room(self, tmp_path, monkeypatch):
        """As with `amqpd 2>file`: the torn line ends, and a line says how many records are missing."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with (tmp_path / "log").open("w") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            output = logging_config.LogOutput(LogSettings())
            output.handle(self.record("first"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (stream.tell() + 20, hard))
            try:
                for number in range(3):
                    output.handle(self.record("%d", number))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            output.handle(self.record("last"))
        first, torn, gap, last = (tmp_path / "log").read_text().splitlines()
        assert (first[-5:], len(torn), last[-4:]) == ("first", 20, "last")
        assert gap.endswith(" 3 records were dropped, because the log could not be written")

    def test_full_disk_is_one_line_and_rotation_ends_it(self, tmp_path, capfd):
        """The space of a file that was removed is free when it is closed, so `reopen` must not write to it."""
        output = logging_config.LogOutput(LogSettings(file=Path("/dev/full")))
        for number in range(3):
            output.handle(self.record("%d", number))
        output.path = tmp_path / "log"
        output.reopen()
        output.handle(self.record("after"))
        output.stream.close()
        assert capfd.readouterr().err == "amqpd: log.file /dev/full cannot be written: No space left on device\n"
        *_, gap, last = output.path.read_text().splitlines()
        assert gap.endswith(" 3 records were dropped, because the log could not be written")
        assert last.endswith("after")

    def test_full_disk_without_standard_error(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "stderr", None)
        output = logging_config.LogOutput(LogSettings(file=Path("/dev/full")))
        output.handle(self.record("x"))
        output.stream.close()
        assert output.dropped_count == 1

    def test_stopped_reader_does_not_stop_the_broker(self, monkeypatch):
        """As when a container's log collector hangs. The log says later how many records are missing."""
        reading, writing = os.pipe()
        monkeypatch.setattr(logging_config, "READER_WAIT_S", 0.01)
        with open(reading, "rb", buffering=0) as reader, open(writing, "w") as stream:  # noqa: PTH123
            monkeypatch.setattr(sys, "stderr", stream)
            output = logging_config.LogOutput(LogSettings())
            for number in range(1000):
                output.handle(self.record("%d " + "x" * 10_000, number))
            assert output.dropped_count > 900
            received = reader.read(1 << 20)
            output.handle(self.record("it reads again"))
            received += reader.read(1 << 20)
        *_, gap, last = received.decode().splitlines()
        written = len(re.findall(r" \d+ x{10000}\n", received.decode()))
        assert gap.endswith(f"{1000 - written} records were dropped, because the reader of the log did not read")
        assert last.endswith("it reads again")

    def test_stopped_terminal_does_not_stop_the_broker(self, monkeypatch):
        """As when its window hangs: a terminal says that it is ready, and a write blocks."""
        window, terminal = pty.openpty()
        monkeypatch.setattr(logging_config, "READER_WAIT_S", 0.01)
        with open(window, "rb", buffering=0) as reader, open(terminal, "w") as stream:  # noqa: PTH123
            monkeypatch.setattr(sys, "stderr", stream)
            output = logging_config.LogOutput(LogSettings())
            records = [self.record("%d " + "x" * 1000, number) for number in range(1000)]
            writer = threading.Thread(target=lambda: [output.handle(each) for each in records], daemon=True)
            writer.start()
            writer.join(60)
            assert not writer.is_alive()
            assert output.dropped_count > 900
            received = b""
            while b"it reads again" not in received:
                received += reader.read(1 << 16)
                output.handle(self.record("it reads again"))
            assert b"records were dropped, because the reader of the log did not read" in received

    def test_slow_reader_costs_one_wait_in_a_minute(self, monkeypatch):
        """Read a piece shortly before the broker drops the record."""
        now_s = [0.0]
        monkeypatch.setattr(logging_config.time, "monotonic", lambda: now_s[0])
        monkeypatch.setattr(logging_config.time, "sleep", lambda _seconds: now_s.__setitem__(0, now_s[0] + 0.9))
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0), open(writing, "w") as stream:  # noqa: PTH123
            monkeypatch.setattr(sys, "stderr", stream)
            output = logging_config.LogOutput(LogSettings())
            output._reader = SlowReader(now_s)
            for number in range(10):
                output.handle(self.record("%d", number))
            assert now_s[0] < 2 * logging_config.READER_WAIT_S


class SlowReader:
    """A poll that reports a reader only after a wait."""

    def __init__(self, now_s: list[float]) -> None:
        self._now_s = now_s
        self._ready_s = 0.9

    def poll(self, _timeout_ms: int) -> bool:
        if self._now_s[0] < self._ready_s:
            return False
        self._ready_s = self._now_s[0] + 0.9
        return True
