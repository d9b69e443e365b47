"""Brokers for tests: `BrokerProcess`, a pytest plugin, and `embedded` for a broker in the test's own process.

A `BrokerProcess` has its own process, free ports and data directory. So it cannot disturb the test process and may
be killed at any time. For tests that need a broker:

    def test_orders(amqpd_url):                       # amqp://guest:guest@127.0.0.1:<free port>/
        connection = pika.BlockingConnection(pika.URLParameters(amqpd_url))

    def test_alone(amqpd_vhost):                      # a vhost for this test only, deleted afterwards
        connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))

    def test_survives(tmp_path):
        with BrokerProcess(tmp_path) as broker:
            ...
            broker.kill()                             # SIGKILL; then start again, same data, same ports
            broker.start()

Fixtures: `amqpd_broker` (session), `amqpd_url` (session), `amqpd_vhost` (each test). pytest finds them through the
entry point `pytest11` of an installed amqpd; in a checkout use `-p amqpd.testing`. With pytest-xdist each worker
has its own broker. The report of a failed test includes the standard error of the broker that it used.

pytest imports this module in every environment with amqpd. So it imports only cheap parts of the standard library,
and nothing of the server before `embedded` is called.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Self

import pytest

if TYPE_CHECKING:
    from amqpd.protocol_server import Guest
    from amqpd.server import Server

READY: Final = re.compile(
    r"^amqpd (?P<version>\S+) \((?P<build>\w+)\) ready in (?P<took_ms>\d+) ms: (?P<listeners>.*), data (?P<data>.*)$"
)
LISTENER: Final = re.compile(r"(?P<name>[a-z]+) (?P<host>\[[^]]*\]|[^\s\[\]]*):(?P<port>\d+)(?:, |$)")
STDERR_LINES_MAX: Final = 2000
"""Limit for the kept lines of standard error, so that a verbose log does not fill the test process. The newest are
kept.
"""


class BrokerFailed(Exception):
    """The broker did not start, did not stop, or ended by itself; the text has the end of its standard error."""


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


class Vhost(NamedTuple):
    """A vhost for one test.

    Attributes:
        url: AMQP URL of the vhost for the default user.
    """

    name: str
    url: str


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


class BrokerProcess:
    """One amqpd, run as `python -m amqpd` with this interpreter.

    It starts with `start` or `with`. Not thread-safe. Variables that configure a broker (`AMQPD_*`, `RABBITMQ_*`)
    are not passed to it.

    Args:
        data_dir: Directory for messages and metadata; None: a temporary one, which `close` removes.
        settings: Settings by their dotted names (`{"storage.segment_size_bytes": 1 << 20}`).
        env: Additional environment variables.
        command: Command to run instead of this interpreter's amqpd; options are appended.
        start_timeout_s: Time limit for the ready line.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        self._owns_data_dir = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="amqpd-")) if data_dir is None else Path(data_dir)
        self.settings = dict(settings or {})
        self.start_timeout_s = start_timeout_s
        self.ready: ReadyLine | None = None
        self._env = dict(env or {})
        self._command = list(command) if command is not None else [sys.executable, "-P", "-m", "amqpd"]
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_MAX)
        self._reserved_sockets: list[int] = []  # sockets that reserve the ports of a stopped broker
        weakref.finalize(self, _close, self._reserved_sockets)

    # -- start and stop

    def start(self, *, same_ports: bool = True) -> Self:
        """Start the broker and return when it accepts connections.

        Args:
            same_ports: A later start uses the ports of the first one, so that clients can reconnect. False: free
                ports again.

        Raises:
            BrokerFailed: It ended, or was not ready in time; the text has its standard error.
            RuntimeError: It is running.
        """
        if self.running:
            raise RuntimeError(f"the broker is already running as process {self.pid}")
        options: dict[str, object] = {
            "amqp.port": 0,
            "http.port": 0,
            "http.host": "127.0.0.1",
            "amqp.host": "127.0.0.1",
        }
        if same_ports and self.ready is not None:
            options["amqp.port"], options["http.port"] = self.amqp_port, self.http_port
        options.update(self.settings)
        arguments = [f"--{name.replace('_', '-')}={_option(value)}" for name, value in options.items()]
        self._stderr.clear()
        process = subprocess.Popen(
            [*self._command, "--data-dir", str(self.data_dir), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(self._env),
            text=True,
            errors="backslashreplace",
        )
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
        _close(self._reserved_sockets)
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

    def close(self) -> None:
        """Stop the broker and remove a temporary data directory. Raises BrokerFailed as `stop`."""
        try:
            self.stop()
        finally:
            _close(self._reserved_sockets)
            if self._owns_data_dir:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

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
    def amqp_port(self) -> int:
        return self._listener("amqp")[1]

    @property
    def http_port(self) -> int:
        return self._listener("http")[1]

    @property
    def url(self) -> str:
        """Return the AMQP URL of the default vhost and user (guest, only from this machine)."""
        host, port = self._listener("amqp")
        return f"amqp://guest:guest@{host}:{port}/"

    @property
    def http_url(self) -> str:
        """Return the root of the admin API, without credentials and without a slash at the end."""
        host, port = self._listener("http")
        return f"http://{host}:{port}"

    @property
    def stderr(self) -> str:
        """Return the last 2,000 lines of standard error of the running or last process."""
        return "".join(self._stderr)

    def says(self, text: str, timeout_s: float = 30.0) -> bool:
        """Wait until standard error has `text`, and return whether it has. The reader thread may be behind the
        broker.
        """
        deadline = time.monotonic() + timeout_s
        while text not in self.stderr:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    # -- requests of tests

    def api(self, method: str, path: str, body: object = None, timeout_s: float = 30.0) -> object:
        """Send a request to the admin API as guest, such as `api("GET", "/api/queues")`. Return its JSON answer, or
        None.

        Raises:
            BrokerFailed: The HTTP status is 400 or higher.
            OSError: There is no answer.
        """
        import http.client  # imported here, because it costs as much as all other imports of this module
        import json

        host, port = self._listener("http")
        headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise BrokerFailed(f"{method} {path} -> {answer.status} {content.decode('utf-8', 'replace')}")
        return json.loads(content) if content else None

    def add_vhost(self, name: str | None = None) -> Vhost:
        """Create a vhost with all permissions for guest; without a name it gets a random one. Cost: two commits."""
        name = name if name is not None else f"test-{secrets.token_hex(8)}"
        self.api("PUT", f"/api/vhosts/{_quote(name)}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", f"/api/permissions/{_quote(name)}/guest", everything)
        return Vhost(name, f"{self.url}{_quote(name)}")

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with its content; its connections are closed."""
        self.api("DELETE", f"/api/vhosts/{_quote(name)}")

    def ctl(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run amqpctl with this broker's data directory, such as `ctl("add_vhost", "shop")`. Return its exit code
        and output.

        Raises: subprocess.TimeoutExpired.
        """
        command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(self.data_dir), *arguments]
        return subprocess.run(
            command, env=_environment(self._env), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    # -- internals

    def _listener(self, name: str) -> tuple[str, int]:
        if self.ready is None or name not in self.ready.listeners:
            raise RuntimeError(f"the port of {name} is not known: the broker was not started, or has no such listener")
        host, port = self.ready.listeners[name]
        if host in ("", "0.0.0.0"):
            return "127.0.0.1", port
        if host == "::":
            return "[::1]", port
        return (f"[{host}]" if ":" in host else host), port

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
        atexit.unregister(self.kill)
        if self.ready is not None:
            _close(self._reserved_sockets)
            self._reserved_sockets += [_reserve_port(host, port) for host, port in self.ready.listeners.values()]

    def _failed(self, reason: str) -> BrokerFailed:
        deadline = time.monotonic() + 10.0  # the reader threads may not have read the last lines yet
        while any(reader.is_alive() for reader in self._readers) and time.monotonic() < deadline:
            time.sleep(0.01)
        return BrokerFailed(
            f"{reason}; command: {' '.join(self._command)}; its standard error:\n{self.stderr or '(empty)'}"
        )


def _reserve_port(host: str, port: int) -> int:
    """Return a socket that reserves the port and refuses clients, so that the next start gets the port again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # another program uses the port: the start will fail
            sock.bind((host, port))
        return sock.detach()


def _close(sockets: list[int]) -> None:
    while sockets:
        os.close(sockets.pop())


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quote(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _environment(additions: Mapping[str, str]) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AMQPD_", "RABBITMQ_"))}
    # The broker under test is the amqpd that this process imports. An installed one is found anyway; a checkout is
    # not, because -P excludes the working directory.
    home = Path(__file__).absolute().parent.parent
    if str(home) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), env.get("PYTHONPATH")]))
    env.update(additions)
    return env


# -- embedded


@asynccontextmanager
async def embedded(
    data_dir: str | os.PathLike[str], *, settings: Mapping[str, object] | None = None, guests: Sequence[Guest] = ()
) -> AsyncIterator[Server]:
    """Run a broker on this process's event loop, on free ports of 127.0.0.1. It is stopped cleanly at the end.

    It serves tests that inspect the broker, or bring their own protocol server. Blocking clients must run in
    threads, because the broker shares the event loop.

    Args:
        settings: As for `BrokerProcess`.
        guests: See `amqpd.protocol_server`.

    Raises: SettingsError, OSError, MetadataError, as a start.
    """
    import asyncio  # imported here, because all of it belongs to the server

    from amqpd.config import load
    from amqpd.server import Server

    options: dict[str, object] = {"amqp.host": "127.0.0.1", "amqp.port": 0, "http.port": 0, **(settings or {})}
    arguments = [f"--{name.replace('_', '-')}={_option(value)}" for name, value in options.items()]
    server = Server(load(["--data-dir", str(data_dir), *arguments], {}).settings, asyncio.get_running_loop(), guests)
    try:
        await server.begin()
    except BaseException:
        server.metadata.close()
        server.storage.close(clean=False)  # releases the directory
        raise
    try:
        await server.import_definitions()
        await server.listen()
        yield server
    finally:
        server.stop()
        await server.stopped.wait()


# -- pytest


@pytest.fixture(scope="session")
def amqpd_broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess, None, None]:
    """A broker for this test session, or for this worker of pytest-xdist, on free ports.

    A test may kill it and start it again. Tests that need other settings make a `BrokerProcess` themselves.
    """
    broker = BrokerProcess(tmp_path_factory.mktemp("amqpd"))
    broker.start()
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def amqpd_url(amqpd_broker: BrokerProcess) -> str:
    """AMQP URL of the session's broker, vhost `/`, user guest. Tests share its queues."""
    return amqpd_broker.url


@pytest.fixture
def amqpd_vhost(amqpd_broker: BrokerProcess) -> Generator[Vhost, None, None]:
    """An empty vhost of the session's broker for this test only. Cost: some milliseconds."""
    vhost = amqpd_broker.add_vhost()
    yield vhost
    if amqpd_broker.running:
        amqpd_broker.delete_vhost(vhost.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broker's standard error to the report of a failed test that used `amqpd_broker`."""
    report = yield
    if report.failed:
        broker = getattr(item, "funcargs", {}).get("amqpd_broker")
        if isinstance(broker, BrokerProcess) and broker.stderr:
            report.sections.append(("amqpd standard error", broker.stderr))
    return report
