"""Brokers under test: amqpd, started here, and any other broker that already runs.

A broker started here has a data directory of the run and its own ports on 127.0.0.1. It has its own process group, so
that Ctrl-C reaches only the benchmark, which then stops it. Only processes started here are signalled.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from . import machine

STOP_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 60.0
READY_LINE = re.compile(r"(?P<version>amqpd \S+ \((?P<build>\w+)\)) ready in (?P<ms>\d+) ms: amqp \S+:(?P<port>\d+)")


class StartFailed(Exception):
    """A broker did not start; the text says why."""


class Broker:
    """A broker to measure. name: its column; version: as announced; pid: 0 if it is not on this machine."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.version = name
        self.host = host
        self.port = port
        self.pid = 0

    def start(self) -> None:
        """Start the broker. Raises: StartFailed."""

    def stop(self) -> None:
        """Stop cleanly and keep the data. No effect if it does not run."""

    def can_restart(self) -> bool:
        return False

    def renew(self) -> None:
        """Prepare for the next measurement after a failure. Raises: StartFailed."""
        self.check()

    def check(self) -> None:
        """Raises: StartFailed if the broker has ended."""
        if not machine.speaks_amqp(self.host, self.port, 10.0):
            raise StartFailed(f"{self.name} does not answer on {self.host}:{self.port}")


class Echo(Broker):
    """No broker: a process that echoes its input (echo.c), which shows the share of the machine."""

    def __init__(self) -> None:
        super().__init__("echo", "", 0)
        self.version = "echo (no broker: echo.c)"

    def check(self) -> None:
        """Nothing to check: every run starts its own process."""


class Peer(Broker):
    """A broker started by another user. Its CPU and memory are measured if it is on this machine."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(f"peer {address}", socket.gethostbyname(host or "127.0.0.1"), int(port))

    def start(self) -> None:
        self.check()
        self.version = product(self.host, self.port)
        self.pid = machine.listener(self.port) if self.host.startswith("127.") else 0


class Started(Broker):
    """A broker that is a child process of this one."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name, "127.0.0.1", machine.free_port())
        self.directory = directory
        self.log_path = directory / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def can_restart(self) -> bool:
        return True

    def renew(self) -> None:
        """Start again with an empty data directory."""
        self.stop()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        self.start()

    def spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the process with output and errors in the log file. Raises: StartFailed if the program is missing."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=self.directory,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartFailed(f"{self.name}: {error}") from None
        self._process = process
        self.pid = process.pid
        return process

    def await_ready(self, timeout_s: float) -> None:
        """Wait until the broker is ready. Raises: StartFailed, with the end of the log."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while not machine.speaks_amqp(self.host, self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self.log_path.read_text("utf-8", errors="replace")[-800:]
                self.stop()
                raise StartFailed(f"{self.name} did not start; its log ends with:\n{tail}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as in a crash; the data stays. No effect if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            end(self._process, STOP_TIMEOUT_S)
        self._process = None
        self.pid = 0


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Send SIGTERM, and SIGKILL after the timeout."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


class Amqpd(Started):
    """The amqpd installed for `python` (an absolute or relative path); None: this process's environment."""

    def __init__(self, directory: Path, python: str | None = None, name: str = "amqpd") -> None:
        super().__init__(name, directory)
        # Absolute, because the broker has its own working directory; not resolved, because a link names the
        # environment.
        self.python = str(Path.cwd() / python) if python else sys.executable
        self.program = ["-m", "amqpd"]
        self.build = ""

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AMQPD_")}
        if self.python != sys.executable:
            environment.pop("PYTHONPATH", None)  # it belongs to this environment, not to the broker's
        return environment

    def launch(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the process with more options, without waiting. Raises: StartFailed."""
        command = [self.python, "-P", *self.program, "--data-dir", str(self.data_dir), "--amqp.host", self.host]
        return self.spawn([*command, "--amqp.port", str(self.port), "--http.port", "0", *options], self._environment())

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_path.write_bytes(b"")
        self.launch("--log.level", "warning")
        self.await_ready(READY_TIMEOUT_S)
        deadline = time.monotonic() + 5
        while not (ready := READY_LINE.search(self.log_path.read_text("utf-8", errors="replace"))):
            if time.monotonic() > deadline:
                self.stop()
                raise StartFailed(f"{self.name} said nothing of being ready")
            time.sleep(0.02)
        self.version = ready["version"]
        self.build = ready["build"]

    def start_times_ms(self, cycles: int) -> list[float]:
        """Return the milliseconds from process start to the first accepted connection, for each cycle."""
        times = []
        for _ in range(cycles):
            self.stop()
            began = time.monotonic()
            process = self.launch()
            while True:
                try:
                    socket.create_connection((self.host, self.port), timeout=1).close()
                    break
                except OSError:
                    if process.poll() is not None:
                        raise StartFailed(f"{self.name} ended while it was starting") from None
                    time.sleep(0.002)
            times.append((time.monotonic() - began) * 1000)
        return times

    def control_times_ms(self, cycles: int) -> list[float]:
        """Return the milliseconds of `amqpctl list_vhosts`, for each cycle. Raises: StartFailed without an answer."""
        times = []
        for _ in range(cycles):
            began = time.monotonic()
            done = subprocess.run(
                [self.python, "-P", "-m", "amqpd.cli", "--data-dir", str(self.data_dir), "--quiet", "list_vhosts"],
                env=self._environment(),
                cwd=self.directory,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise StartFailed(f"amqpctl list_vhosts: {done.stderr.strip()}")
            times.append((time.monotonic() - began) * 1000)
        return times


def start_and_answer_ms(broker: Amqpd, cycles: int) -> tuple[float, float]:
    """Return two medians: start to first connection, and an answer of amqpctl. The broker runs afterwards. Raises:
    StartFailed.
    """
    starts = broker.start_times_ms(cycles)
    machine.wait_for_amqp(broker.host, broker.port, READY_TIMEOUT_S)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not READY_LINE.search(
        broker.log_path.read_text("utf-8", errors="replace")[-4000:]
    ):  # the HTTP API is ready later
        if time.monotonic() > deadline:
            raise StartFailed("no ready line")
        time.sleep(0.05)
    time.sleep(0.5)
    return statistics.median(starts), statistics.median(broker.control_times_ms(cycles))


def product(host: str, port: int) -> str:
    """Return product and version from connection.start."""
    with socket.create_connection((host, port), timeout=10) as peer:
        peer.sendall(b"AMQP\x00\x00\x09\x01")
        data = peer.recv(65536)
    words = []
    for key in (b"\x07productS", b"\x07versionS"):
        at = data.find(key)
        if at >= 0:
            start = at + len(key) + 4
            words.append(
                data[start : start + int.from_bytes(data[start - 4 : start], "big")].decode("utf-8", "replace")
            )
    return " ".join(words) or "unknown broker"
