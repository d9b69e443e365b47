"""The broker of the stock clients, and shared fixtures.

TEST_INTEROP_URL names any running broker (RabbitMQ, for comparison); without it an amqpd of this checkout is started
for the session. TEST_INTEROP_HTTP_URL and TEST_INTEROP_CTL (a command, `rabbitmqctl -n ...`) are that broker's HTTP API
and control command; tests that need a missing one are skipped with the reason.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

from .left_open import nothing_left_open  # noqa: F401  # a fixture of each module

T = TypeVar("T")


@dataclass
class Broker:
    """A broker under test, known only by its addresses."""

    url: str
    http_url: str | None
    ctl: list[str] | None
    process: BrokerProcess | None
    product: str = field(init=False)
    version: str = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 5672
        self.user = unquote(parts.username or "guest")
        self.password = unquote(parts.password or "guest")
        self.vhost = unquote(parts.path[1:]) or "/"
        connection = pika.BlockingConnection(self.pika())
        properties: dict[str, Any] = connection._impl.server_properties
        connection.close()
        self.product, self.version = properties["product"], properties["version"]

    @property
    def is_rabbitmq(self) -> bool:
        """True if RabbitMQ's answer is expected in the few places where amqpd differs on purpose."""
        return self.product == "RabbitMQ"

    def pika(self, **changes: Any) -> pika.ConnectionParameters:
        """Return pika's parameters for this broker; a connection attempt is limited to 30 s."""
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "virtual_host": self.vhost,
            "credentials": pika.PlainCredentials(self.user, self.password),
            "socket_timeout": 30,
            "stack_timeout": 30,
            "blocked_connection_timeout": 30,
        }
        return pika.ConnectionParameters(**{**settings, **changes})

    def url_with(self, query: str) -> str:
        """Return the URL with connection parameters in its query, e.g. `heartbeat=1`."""
        user = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"amqp://{user}@{self.host}:{self.port}/{quote(self.vhost, safe='')}?{query}"

    def api(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        """Send one request to the HTTP API. Skip the test if the broker has none."""
        if self.http_url is None:
            pytest.skip("needs the admin API: set TEST_INTEROP_HTTP_URL")
        parts = urlsplit(self.http_url)
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=30)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Authorization": f"Basic {token}", "Content-Type": "application/json", **(headers or {})},
            )
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        assert answer.status < 400, f"{method} {path} -> {answer.status} {content!r}"
        return json.loads(content) if content else None

    def close_from_outside(self, connection_name: str, reason: str) -> None:
        """Close the client's connection of this name through the HTTP API, as an operator does."""

        def listed() -> list[str]:
            return [
                c["name"]
                for c in self.api("GET", "/api/connections")
                if (c.get("client_properties") or {}).get("connection_name") == connection_name
            ]

        names = wait_for(listed, what=f"connection {connection_name} is never listed")
        for name in names:
            self.api("DELETE", f"/api/connections/{quote(name, safe='')}", headers={"X-Reason": reason})

    def run_ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the control command. Skip the test if there is none."""
        if self.process is not None:
            return self.process.ctl(*arguments)
        if self.ctl is None:
            pytest.skip("needs the control command: set TEST_INTEROP_CTL")
        return subprocess.run([*self.ctl, *arguments], capture_output=True, text=True, timeout=60, check=False)


def wait_for(condition: Callable[[], T], timeout_s: float = 120.0, what: str = "") -> T:
    """Return the first true value of `condition`. Fail the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:g} s: {what or condition}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of this session (of this worker under pytest-xdist)."""
    given = os.environ.get("TEST_INTEROP_URL")
    if given:
        ctl = os.environ.get("TEST_INTEROP_CTL")
        yield Broker(given, os.environ.get("TEST_INTEROP_HTTP_URL"), shlex.split(ctl) if ctl else None, None)
        return
    process = BrokerProcess(tmp_path_factory.mktemp("amqpd"))
    with process:
        yield Broker(process.url, process.http_url, None, process)
        assert "Traceback" not in process.stderr, f"the broker logged a traceback:\n{process.stderr}"


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    """A pika channel in confirm mode, unless a module has its own."""
    connection = pika.BlockingConnection(broker.pika())
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Returns names that no other test, worker or run uses."""
    suffix = secrets.token_hex(6)
    return lambda name: f"{name}-{suffix}"


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """`wait_for`, for test modules."""
    return wait_for


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the broker's standard error to the report of a failed test."""
    report = yield
    found = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(found, Broker) and found.process is not None and found.process.stderr:
        report.sections.append(("amqpd standard error", found.process.stderr[-8000:]))
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Ignore unclosed client sockets and deprecated Python features in clients: they are no failures of a broker."""
    for category in ("ResourceWarning", "DeprecationWarning", "pytest.PytestUnraisableExceptionWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::{category}")
