"""`BrokerProcess`: a broker in a process of its own. It may be killed, and cannot disturb the test process."""

from __future__ import annotations

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Final, NamedTuple, Self

from amqpd.testing.broker_fixture import (
    FAST_HASHING,
    NO_FILE,
    BrokerFixture,
    close_all,
    environment,
    options_of,
    reserve_port,
)
from amqpd.testing.control import BrokerFailed, Control, NotRunning, NotSupported, SocketControl, now

READY: Final = re.compile(
    r"^amqpd (?P<version>\S+) \((?P<build>\w+)\) ready in (?P<took_ms>\d+) ms: (?P<listeners>.*), data (?P<data>.*)$"
)
LISTENER: Final = re.compile(r"(?P<name>[a-z]+) (?P<host>\[[^]]*\]|[^\s\[\]]*):(?P<port>\d+)(?:, |$)")
STDERR_LINES_MAX: Final = 2000
"""Limit for the kept lines of standard error, so that a verbose log does not fill the test process. The newest are
kept.
"""


class ReadyLine(NamedTuple):
    """The content of the ready line.

    Attributes:
        build: `compiled` or `interpreted`.
        took_ms: Time from the start until clients can connect.
        listeners: Protocol (`amqp`, `http`, ...) -> host, port.
        data: The data directory.
    """

    version: str
    build: str
    took_ms: int
    listeners: dict[str, tuple[str, int]]
    data: str


def parse_ready_line(line: str) -> ReadyLine | None:
    """Return the content of the ready line; None for any other line."""
    found = READY.match(line.strip())
    if found is None:
        return None
    listeners: dict[str, tuple[str, int]] = {}
    for each in LISTENER.finditer(found["listeners"]):
        # A protocol with an address per family: the first is IPv4's, and the ports are equal.
        listeners.setdefault(each["name"], (each["host"].strip("[]"), int(each["port"])))
    return ReadyLine(found["version"], found["build"], int(found["took_ms"]), listeners, found["data"])


class BrokerProcess(BrokerFixture):
    """One amqpd, run as `python -m amqpd` with this interpreter.

    It starts with `start` or `with`. Not thread-safe. Variables that configure a broker (`AMQPD_*`, `RABBITMQ_*`)
    are not passed to it, and it does not read `./amqpd.toml`.

    Args:
        data_dir: Directory for messages and metadata; None: a temporary one, which `close` removes.
        settings: Settings by their dotted names (`{"storage.segment_size_bytes": 1 << 20}`).
        env: Additional environment variables.
        command: Command to run instead of this interpreter's amqpd; options are appended.
        start_timeout_s: Time limit for the ready line.
        control: The broker takes commands of this process: recorder, clock, faults, cheaper vhosts. It stops when this
            process ends, and auth.password_hashing is a fast one by default. Not together with `command`.
        memory: Messages and metadata are in the broker's memory, and a stop loses them. Includes `control`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        start_timeout_s: float = 60.0,
        control: bool = False,
        memory: bool = False,
    ) -> None:
        if command is not None and (control or memory):
            raise ValueError("control and memory need this interpreter's amqpd: they do not go with command")
        super().__init__(data_dir, settings, start_timeout_s)
        self.ready: ReadyLine | None = None
        self._env = dict(env or {})
        self._command = list(command) if command is not None else [sys.executable, "-P", "-m", "amqpd"]
        self._disk = ("memory" if memory else "disk") if control or memory else ""
        self._socket_control: SocketControl | None = None
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_MAX)

    # -- start and stop

    def start(self, *, same_ports: bool = True) -> Self:
        """Start the broker and return when it accepts connections.

        Args:
            same_ports: A later start uses the ports of the first one, so that clients can reconnect. False: free
                ports again. Kafka's port is one of them if the setting kafka.port is 0.

        Raises:
            BrokerFailed: It ended, or was not ready in time; the text has its standard error.
            RuntimeError: It is running.
        """
        if self.running:
            raise RuntimeError(f"the broker is already running as process {self.pid}")
        listeners = self._listeners() if same_ports else {}
        command = [*self._command]
        settings = {**FAST_HASHING, **self.settings} if self._disk else self.settings
        pass_fds: tuple[int, ...] = ()
        ours: socket.socket | None = None
        if self._disk:
            ours, theirs = socket.socketpair()
            pass_fds = (theirs.fileno(),)
            program = "amqpd.testing.process_main"
            arguments = (str(theirs.fileno()), self._disk, str(self.clock.offset_s))
            command = [sys.executable, "-P", "-m", program, *arguments]
        self._stderr.clear()
        process = subprocess.Popen(
            [*command, "--data-dir", str(self.data_dir), *options_of(settings, listeners)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment({**NO_FILE, **self._env}),
            pass_fds=pass_fds,
            text=True,
            errors="backslashreplace",
        )
        if ours is not None:
            theirs.close()
            self._socket_control = SocketControl(ours)
        self._process = process
        atexit.register(self.kill)  # an aborted test run leaves no broker
        assert process.stdout is not None and process.stderr is not None  # both are pipes
        answers: deque[ReadyLine] = deque()
        seen = threading.Event()
        self._readers = [
            threading.Thread(target=self._read_stdout, args=(process.stdout, answers, seen), daemon=True),
            threading.Thread(target=self._read_stderr, args=(process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        answered = seen.wait(self.start_timeout_s)
        close_all(self._reserved_sockets)
        if not answers:
            code = process.poll()
            if not answered:
                reason = f"the broker was not ready within {self.start_timeout_s:g} s"
            else:
                code = process.wait(self.start_timeout_s)
                reason = f"the broker ended with exit code {code} before it was ready"
            self.kill()
            raise self._failed(reason)
        self.ready = answers[0]
        return self

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the broker with SIGTERM.

        Raises:
            BrokerFailed: It takes longer, or the exit code is not 0.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failed(f"the broker did not stop within {timeout_s:g} s of SIGTERM") from None
        self._reap()
        if code != 0:
            raise self._failed(f"the broker ended with exit code {code}")

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as in a crash. Does nothing if it is not running."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
            self._reap()

    # -- properties

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the process id. Raises RuntimeError if the broker is not running."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def stderr(self) -> str:
        """Return the last 2,000 lines of standard error of the running or last process."""
        return "".join(self._stderr)

    def says(self, text: str, timeout_s: float = 30.0) -> bool:
        """Wait until standard error has `text`, and return whether it has. The reader thread may be behind the
        broker.
        """
        deadline = now() + timeout_s
        while text not in self.stderr:
            if now() > deadline:
                return False
            time.sleep(0.01)
        return True

    # -- internals

    def _control(self) -> Control:
        if not self._disk:
            raise NotSupported(
                "this broker takes no commands of the test: use BrokerProcess(control=True), or a BrokerThread"
            )
        if self._socket_control is None:
            raise NotRunning("the broker is not running")
        return self._socket_control

    def _listeners(self) -> Mapping[str, tuple[str, int]]:
        return self.ready.listeners if self.ready is not None else {}

    def _variables(self) -> Mapping[str, str]:
        return self._env

    def _read_stdout(self, stream: IO[str], answers: deque[ReadyLine], seen: threading.Event) -> None:
        # Read also after the ready line: a full pipe would block the broker.
        with stream:
            for line in stream:
                ready = parse_ready_line(line)
                if ready is not None:
                    answers.append(ready)
                    seen.set()
                else:
                    self._stderr.append(f"(stdout) {line}")
        seen.set()  # end of file: the broker has ended

    def _read_stderr(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._stderr.append(line)

    def _reap(self) -> None:
        # The reader threads end with the pipes and close them; closing them here would disturb the threads.
        for reader in self._readers:
            reader.join(30.0)
        self._process, self._readers = None, []
        if self._socket_control is not None:
            self._socket_control.close()
            self._socket_control = None
        atexit.unregister(self.kill)
        if self.ready is not None:
            close_all(self._reserved_sockets)
            self._reserved_sockets += [reserve_port(host, port) for host, port in self.ready.listeners.values()]

    def _failed(self, reason: str) -> BrokerFailed:
        deadline = now() + 10.0  # the reader threads may not have read the last lines yet
        while any(reader.is_alive() for reader in self._readers) and now() < deadline:
            time.sleep(0.01)
        return BrokerFailed(
            f"{reason}; command: {' '.join(self._command)}; its standard error:\n{self.stderr or '(empty)'}"
        )
