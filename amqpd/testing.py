"""A broker for tests: `BrokerProcess` for anybody, a pytest plugin on top of it, and `embedded` for a broker within the
test's own process.

The broker runs as a process of its own, on free ports and a data directory of its own, so it cannot disturb the test
process and may be killed in the middle of anything. Start, in a project whose tests need a broker:

    def test_orders(amqpd_url):                       # amqp://guest:guest@127.0.0.1:<free port>/
        connection = pika.BlockingConnection(pika.URLParameters(amqpd_url))

    def test_alone(amqpd_vhost):                      # a vhost nobody else uses, gone after the test
        connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))

    def test_survives(tmp_path):
        with BrokerProcess(tmp_path) as broker:
            ...
            broker.kill()                             # SIGKILL; then once more, same data, same ports
            broker.start()

Fixtures: `amqpd_broker` (session), `amqpd_url` (session), `amqpd_vhost` (each test). pytest finds them by the entry
point `pytest11` of an installed amqpd; with a checkout say `-p amqpd.testing`. With pytest-xdist every worker has its
own broker. What the broker wrote to standard error is attached to the report of a failed test that used it.

pytest imports this module in every run of an environment that has amqpd, so it imports only cheap parts of the standard
library, and nothing of the server before `embedded` is called.
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
"""Lines of standard error that are kept, the newest ones: a chatty log level must not fill the test process."""


class BrokerFailed(Exception):
    """The broker did not start, did not stop, or ended by itself; the text shows the end of its standard error."""


class ReadyLine(NamedTuple):
    """What the ready line tells.

    version: of amqpd. build: `compiled` or `interpreted`. took_ms: from start to accepting. listeners: name (`amqp`,
    `http`, ...) -> host, port; data: the data directory as the broker names it.
    """

    version: str
    build: str
    took_ms: int
    listeners: dict[str, tuple[str, int]]
    data: str


class Vhost(NamedTuple):
    """A vhost made for one test: its name, and the AMQP URL that opens it as the default user."""

    name: str
    url: str


def parse_ready_line(line: str) -> ReadyLine | None:
    """The ready line's content, None for any other line."""
    found = READY.match(line.strip())
    if found is None:
        return None
    listeners: dict[str, tuple[str, int]] = {}
    for each in LISTENER.finditer(found["listeners"]):
        # Of a protocol with an address per family the first, which is IPv4's; the port is the same.
        listeners.setdefault(each["name"], (each["host"].strip("[]"), int(each["port"])))
    return ReadyLine(found["version"], found["build"], int(found["took_ms"]), listeners, found["data"])


class BrokerProcess:
    """One amqpd, run as `python -m amqpd` with this interpreter.

    data_dir: where messages and metadata lie; None: a temporary directory, removed by `close`. settings: more of them,
    by their dotted names (`{"storage.segment_size_bytes": 1 << 20}`). env: additions to the environment. Variables of
    the caller that would configure a broker (`AMQPD_*`, `RABBITMQ_*`) are not handed down. command: what to run
    instead of this interpreter's amqpd, options are appended. start_timeout_s: how long the ready line may take.

    Nothing runs before `start` (or `with`). Not for use by several threads at once.
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
        self._held: list[int] = []  # sockets on the ports of a broker that does not run
        weakref.finalize(self, _close, self._held)

    # -- life

    def start(self, *, same_ports: bool = True) -> Self:
        """Starts the broker and returns once it accepts connections.

        same_ports: a second start listens where the first did, so that clients may reconnect; False: free ports again.
        Raises: BrokerFailed with the broker's standard error if it ends or says nothing in time; RuntimeError when it
        runs already.
        """
        if self.running:
            raise RuntimeError(f"the broker runs already, as process {self.pid}")
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
        atexit.register(self.kill)  # a test run that is broken off leaves no broker behind
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
        _close(self._held)
        if not answers:
            code = process.poll()
            if not answered:
                reason = f"the broker did not say it is ready within {self.start_timeout_s:g} s"
            else:
                code = process.wait(self.start_timeout_s)
                reason = f"the broker ended with exit code {code} before it was ready"
            self.kill()
            raise self._failed(reason)
        self.ready = answers[0]
        return self

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stops it as an operator would (SIGTERM).

        Raises: BrokerFailed if that takes longer, or its exit code is not 0.
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
        """SIGKILL, as a crash: nothing is flushed. Does nothing when it does not run."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
            self._reap()

    def close(self) -> None:
        """Stops the broker and removes a temporary data directory. Raises: BrokerFailed as `stop` does."""
        try:
            self.stop()
        finally:
            _close(self._held)
            if self._owns_data_dir:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it is

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id. Raises: RuntimeError if it was not started, or was stopped."""
        if self._process is None:
            raise RuntimeError("the broker does not run")
        return self._process.pid

    @property
    def amqp_port(self) -> int:
        return self._listener("amqp")[1]

    @property
    def http_port(self) -> int:
        return self._listener("http")[1]

    @property
    def url(self) -> str:
        """AMQP URL of the default vhost for the default user (guest, from this machine only)."""
        host, port = self._listener("amqp")
        return f"amqp://guest:guest@{host}:{port}/"

    @property
    def http_url(self) -> str:
        """Root of the admin API, without credentials and without a slash at its end."""
        host, port = self._listener("http")
        return f"http://{host}:{port}"

    @property
    def stderr(self) -> str:
        """The last 2,000 lines the running, or else the last, process wrote to standard error."""
        return "".join(self._stderr)

    def says(self, text: str, timeout_s: float = 30.0) -> bool:
        """Whether standard error has `text` by then: who reads it may be a moment behind the broker."""
        deadline = time.monotonic() + timeout_s
        while text not in self.stderr:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    # -- what tests ask of it

    def api(self, method: str, path: str, body: object = None, timeout_s: float = 30.0) -> object:
        """One request of the admin API as guest, e.g. `api("GET", "/api/queues")`; its JSON answer, None for no body.

        Raises: BrokerFailed for an HTTP status of 400 and above, OSError if there is no answer.
        """
        import http.client  # here, as it costs as much to import as all the rest of this module
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
        """Makes a vhost in which guest may do everything; without a name it gets one. Cost: two commits."""
        name = name if name is not None else f"test-{secrets.token_hex(8)}"
        self.api("PUT", f"/api/vhosts/{_quote(name)}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", f"/api/permissions/{_quote(name)}/guest", everything)
        return Vhost(name, f"{self.url}{_quote(name)}")

    def delete_vhost(self, name: str) -> None:
        """Deletes a vhost with all that is in it; its connections are closed."""
        self.api("DELETE", f"/api/vhosts/{_quote(name)}")

    def ctl(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Runs amqpctl on this broker's data directory, e.g. `ctl("add_vhost", "shop")`; its exit code and output.

        Raises: subprocess.TimeoutExpired.
        """
        command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(self.data_dir), *arguments]
        return subprocess.run(
            command, env=_environment(self._env), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    # -- inside

    def _listener(self, name: str) -> tuple[str, int]:
        if self.ready is None or name not in self.ready.listeners:
            raise RuntimeError(f"no port of {name} is known: the broker was not started, or has no such listener")
        host, port = self.ready.listeners[name]
        if host in ("", "0.0.0.0"):
            return "127.0.0.1", port
        if host == "::":
            return "[::1]", port
        return (f"[{host}]" if ":" in host else host), port

    def _read_stdout(self, stream: IO[str], answers: deque[ReadyLine], seen: threading.Event) -> None:
        # Reads on after the ready line: a broker that blocks on a full pipe would be our fault.
        with stream:
            for line in stream:
                ready = parse_ready_line(line)
                if ready is not None:
                    answers.append(ready)
                    seen.set()
                else:
                    self._stderr.append(f"(stdout) {line}")
        seen.set()  # end of file: it ended

    def _read_stderr(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._stderr.append(line)

    def _reap(self) -> None:
        # The readers end with the pipes, which they close: closing here would be under their hands.
        for reader in self._readers:
            reader.join(30.0)
        self._process, self._readers = None, []
        atexit.unregister(self.kill)
        if self.ready is not None:
            _close(self._held)
            self._held += [_hold(host, port) for host, port in self.ready.listeners.values()]

    def _failed(self, reason: str) -> BrokerFailed:
        deadline = time.monotonic() + 10.0  # the reader may still be at the last lines
        while any(reader.is_alive() for reader in self._readers) and time.monotonic() < deadline:
            time.sleep(0.01)
        return BrokerFailed(
            f"{reason}; command: {' '.join(self._command)}; its standard error:\n{self.stderr or '(empty)'}"
        )


def _hold(host: str, port: int) -> int:
    """A socket on the port, which refuses clients: nobody else gets it as a free one, and the broker gets it back."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # somebody has it already: the start will tell
            sock.bind((host, port))
        return sock.detach()


def _close(held: list[int]) -> None:
    while held:
        os.close(held.pop())


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quote(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _environment(additions: Mapping[str, str]) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AMQPD_", "RABBITMQ_"))}
    # The broker under test is the amqpd this process imports. An installed one is found anyway; a checkout is not, as
    # -P keeps the working directory off the path.
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
    """A broker on the running loop of this process, on free ports of 127.0.0.1; stopped cleanly at the end.

    For who wants to look into it, or to bring a front end of his own: guests, see `amqpd.protocol_server`. settings: as
    `BrokerProcess` takes them. Clients that block belong into threads: it is their loop too.
    Raises: SettingsError, OSError, MetadataError as a start does.
    """
    import asyncio  # here, as all of it is the server's

    from amqpd.config import load
    from amqpd.server import Server

    options: dict[str, object] = {"amqp.host": "127.0.0.1", "amqp.port": 0, "http.port": 0, **(settings or {})}
    arguments = [f"--{name.replace('_', '-')}={_option(value)}" for name, value in options.items()]
    server = Server(load(["--data-dir", str(data_dir), *arguments], {}).settings, asyncio.get_running_loop(), guests)
    try:
        await server.begin()
    except BaseException:
        server.metadata.close()
        server.storage.close(clean=False)  # which frees the directory
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
    """A broker of this test session (of this worker under pytest-xdist), on free ports; stopped at the end.

    A test may kill and start it again; tests that want other settings make a `BrokerProcess` themselves.
    """
    broker = BrokerProcess(tmp_path_factory.mktemp("amqpd"))
    broker.start()
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def amqpd_url(amqpd_broker: BrokerProcess) -> str:
    """AMQP URL of the session's broker, vhost `/`, user guest. What one test leaves there, the next one finds."""
    return amqpd_broker.url


@pytest.fixture
def amqpd_vhost(amqpd_broker: BrokerProcess) -> Generator[Vhost, None, None]:
    """An empty vhost of the session's broker for this test alone; costs some milliseconds, is deleted afterwards."""
    vhost = amqpd_broker.add_vhost()
    yield vhost
    if amqpd_broker.running:
        amqpd_broker.delete_vhost(vhost.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attaches the broker's standard error to the report of a failed test that used `amqpd_broker`."""
    report = yield
    if report.failed:
        broker = getattr(item, "funcargs", {}).get("amqpd_broker")
        if isinstance(broker, BrokerProcess) and broker.stderr:
            report.sections.append(("amqpd standard error", broker.stderr))
    return report
