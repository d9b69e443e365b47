"""`BrokerFixture`: the common part of brokers for tests, in a process of their own or in a thread of the test."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from amqpd.testing.control import BrokerClock, BrokerFailed, BrokerFaults, Control, NotRunning, NotSupported
from amqpd.testing.recorder import Recorder


class Vhost(NamedTuple):
    """A vhost for one test.

    Attributes:
        url: AMQP URL of the vhost for the default user.
    """

    name: str
    url: str


class BrokerFixture:
    """A broker on free ports of 127.0.0.1. Its user is guest, or that of the settings default.*. Not thread-safe.

    `with` and `async with` start it, and close it at the end.

    Attributes:
        data_dir: Directory of messages and metadata, absolute. In memory mode it has only the socket of amqpctl.
        clock: Its clock, which a test moves.
        faults: Faults of its disk and its connections.
    """

    def __init__(
        self, data_dir: str | os.PathLike[str] | None, settings: Mapping[str, object] | None, start_timeout_s: float
    ) -> None:
        self._owns_data_dir = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="amqpd-") if data_dir is None else data_dir).absolute()
        self.settings = dict(settings or {})
        self.start_timeout_s = start_timeout_s
        self.clock = BrokerClock(self._control)
        self.faults = BrokerFaults(self._control)
        self._remove_data_dir = partial(remove_tree, self.data_dir, os.getpid())
        if self._owns_data_dir:
            atexit.register(self._remove_data_dir)  # for a test run that never calls `close`
        self._reserved_sockets: list[int] = []  # sockets that reserve the ports of a stopped broker
        weakref.finalize(self, close_all, self._reserved_sockets)

    def start(self, *, same_ports: bool = True) -> Self:
        """Start the broker and return when it accepts connections.

        Args:
            same_ports: A later start uses the ports of the first one, so that clients can reconnect.
        """
        raise NotImplementedError

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the broker cleanly; `start` continues with its data. Raises: BrokerFailed."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the broker, as in a crash. Raises: NotSupported for a broker in a thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the broker and remove a temporary data directory. Raises: BrokerFailed.

        If it takes commands, it resets open connections first: a client that is not read would delay its stop by 3 s.
        """
        try:
            if self.running:
                with suppress(BrokerFailed, NotRunning, NotSupported):
                    self.faults.drop_connections()
            self.stop()
        finally:
            close_all(self._reserved_sockets)
            if self._owns_data_dir:
                self._remove_data_dir()
                atexit.unregister(self._remove_data_dir)

    def restart(self) -> None:
        """Stop the broker cleanly and start it again, on the same ports."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        try:
            return self if self.running else self.start()
        except BaseException:
            self.close()  # removes the temporary directory
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        import asyncio  # imported here and in other functions, because it costs half as much as this package

        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    # -- properties

    @property
    def running(self) -> bool:
        raise NotImplementedError

    @property
    def amqp_port(self) -> int:
        return self._listener("amqp")[1]

    @property
    def http_port(self) -> int:
        return self._listener("http")[1]

    @property
    def kafka_port(self) -> int:
        """Return the port for Kafka's clients. Raises: RuntimeError without the setting kafka.port."""
        return self._listener("kafka")[1]

    @property
    def kafka_bootstrap(self) -> str:
        """Return `host:port` for the setting bootstrap.servers of Kafka's clients. Raises: as `kafka_port`."""
        host, port = self._listener("kafka")
        return f"{host}:{port}"

    @property
    def url(self) -> str:
        """Return the AMQP URL of the default vhost and user (guest, only from this machine)."""
        return self._url(str(self.settings.get("default.vhost", "/")))

    @property
    def http_url(self) -> str:
        """Return the root of the admin API, without credentials and without a slash at the end."""
        host, port = self._listener("http")
        return f"http://{host}:{port}"

    # -- requests of tests

    def record(self, vhost: Vhost | str = "/") -> Recorder:
        """Record the messages of a vhost from now on. Raises: BrokerFailed, NotSupported, NotRunning."""
        return Recorder(vhost if isinstance(vhost, str) else vhost.name, self._control)

    def api(self, method: str, path: str, body: object = None, timeout_s: float = 30.0) -> Any:
        """Send a request to the admin API as the default user, such as `api("GET", "/api/queues")`. Return its JSON
        answer, or None.

        Raises:
            BrokerFailed: The HTTP status is 400 or higher.
            OSError: There is no answer.
        """
        import http.client  # imported here, because it costs as much as all other imports of this module
        import json
        from base64 import b64encode

        host, port = self._listener("http")
        login = b64encode(":".join(self._login()).encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
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
        """Create a vhost with all permissions for the default user. Without a name it gets a random one.

        Cost: two commits.
        """
        user, _ = self._login()
        name = name if name is not None else f"test-{secrets.token_hex(8)}"
        try:
            control = self._control()
        except NotSupported:
            self.api("PUT", f"/api/vhosts/{_quote(name)}", {})
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            self.api("PUT", f"/api/permissions/{_quote(name)}/{_quote(user)}", everything)
        else:
            control.call("add_vhost", name=name, user=user)
        return Vhost(name, self._url(name))

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with its content; its connections are closed. Raises: BrokerFailed if there is none."""
        try:
            control = self._control()
        except NotSupported:
            self.api("DELETE", f"/api/vhosts/{_quote(name)}")
        else:
            control.call("delete_vhost", name=name)

    @contextmanager
    def vhost(self) -> Generator[Vhost, None, None]:
        """Create a vhost for the block, and delete it at the end if the broker has it then."""
        added = self.add_vhost()
        try:
            yield added
        finally:
            if self.running and self._has_vhost(added.name):
                self.delete_vhost(added.name)

    def _has_vhost(self, name: str) -> bool:
        """Return whether the vhost exists. A broker in memory has lost it when it was killed."""
        try:
            return bool(self._control().call("has_vhost", name=name))
        except NotSupported:
            return True

    def ctl(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run amqpctl with this broker's data directory, such as `ctl("add_vhost", "shop")`. Return its exit code
        and output.

        Raises: subprocess.TimeoutExpired.
        """
        command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(self.data_dir), *arguments]
        env = environment(self._variables())
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)

    # -- for subclasses

    def _control(self) -> Control:
        """Return the control of the running broker. Raises: NotSupported, NotRunning."""
        raise NotImplementedError

    def _listeners(self) -> Mapping[str, tuple[str, int]]:
        """Return protocol -> host and port; empty before the first start."""
        raise NotImplementedError

    def _variables(self) -> Mapping[str, str]:
        """Return additional environment variables of amqpctl."""
        return {}

    def _login(self) -> tuple[str, str]:
        """Return name and password of the first user."""
        return str(self.settings.get("default.user", "guest")), str(self.settings.get("default.password", "guest"))

    def _url(self, vhost: str) -> str:
        host, port = self._listener("amqp")
        login = ":".join(map(_quote, self._login()))
        return f"amqp://{login}@{host}:{port}/{'' if vhost == '/' else _quote(vhost)}"

    def _listener(self, name: str) -> tuple[str, int]:
        listeners = self._listeners()
        if not listeners:
            raise RuntimeError("the broker was not started, so its ports are not known")
        if name not in listeners:
            raise RuntimeError(f"the broker has no listener for {name}: see the setting {name}.port")
        host, port = listeners[name]
        if host in ("", "0.0.0.0"):
            return "127.0.0.1", port
        if host == "::":
            return "[::1]", port
        return (f"[{host}]" if ":" in host else host), port


FAST_HASHING = {"auth.password_hashing": "rabbit_password_hashing_sha256"}
"""A setting for tests: argon2id takes 21 ms at the first start and at the first login."""

NO_FILE = {"AMQPD_CONFIG": os.devnull}
"""Variables of a broker under test: `./amqpd.toml` can name the database and the ports of another broker."""


def options_of(settings: Mapping[str, object], listeners: Mapping[str, tuple[str, int]]) -> list[str]:
    """Return amqpd's options for a broker of a test.

    Args:
        settings: Settings by their dotted names; they override the others.
        listeners: The listeners whose ports are used again; empty for free ports.
    """
    options: dict[str, object] = {"amqp.port": 0, "http.port": 0, "http.host": "127.0.0.1", "amqp.host": "127.0.0.1"}
    if "kafka.port" in settings:
        options["kafka.host"] = "127.0.0.1"
    options.update({f"{name}.port": listeners[name][1] for name in ("amqp", "http") if name in listeners})
    options.update(settings)
    if settings.get("kafka.port") == 0 and "kafka" in listeners:
        options["kafka.port"] = listeners["kafka"][1]
    return [f"--{name.replace('_', '-')}={_option(value)}" for name, value in options.items()]


def reserve_port(host: str, port: int) -> int:
    """Return a socket that reserves the port and refuses clients, so that the next start gets the port again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # another program uses the port: the start will fail
            sock.bind((host, port))
        return sock.detach()


def close_all(sockets: list[int]) -> None:
    """Close the sockets and empty the list."""
    while sockets:
        os.close(sockets.pop())


def remove_tree(path: Path, pid: int) -> None:
    """Remove a directory with its content, unless this process is a fork of process `pid`. Ignores errors."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def environment(additions: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a broker's process: without those that configure a broker, and with this amqpd."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AMQPD_", "RABBITMQ_"))}
    # The broker under test is the amqpd that this process imports. An installed one is found anyway; a checkout is
    # not, because -P excludes the working directory.
    home = Path(__file__).absolute().parents[2]
    if str(home) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), env.get("PYTHONPATH")]))
    env.update(additions)
    return env


def _option(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_option, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quote(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
