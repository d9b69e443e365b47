"""Fixtures for the admin API: clients, users of every tag, vhosts. The broker is the session's process."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess, Vhost


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class UnixHttpConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        # Connect through the directory's descriptor: a unix socket path has at most 107 bytes, a data directory can
        # have more.
        directory = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock.connect(f"/proc/self/fd/{directory}/{self.path.name}")
        finally:
            os.close(directory)


class Api:
    """HTTP client of the admin API. With `user=None` it connects through the unix socket."""

    def __init__(self, broker: BrokerProcess, user: str | None = "guest", password: str = "guest") -> None:
        self.broker = broker
        self.user = user
        self.password = password

    def __call__(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, *, raw: bool = False
    ) -> Answer:
        request_headers = dict(headers or {})
        if self.user is None:
            connection: http.client.HTTPConnection = UnixHttpConnection(self.broker.data_dir / "amqpctl.sock")
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.broker.http_port, timeout=60)
            if self.user:
                token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
                request_headers.setdefault("Authorization", f"Basic {token}")
        data = body if raw or body is None else json.dumps(body)
        if data is not None:
            request_headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, data, request_headers)  # type: ignore[arg-type]
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self("GET", path)
        assert answer.status == 200, answer
        return answer.json

    def send_ok(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request that must succeed."""
        answer = self(method, path, body)
        assert answer.status in (200, 201, 204), answer
        return answer


@pytest.fixture(scope="session")
def api(amqpd_broker: BrokerProcess) -> Api:
    return Api(amqpd_broker)


@pytest.fixture(scope="session")
def make_api() -> type[Api]:
    """Return the client class for tests with a broker of their own: make_api(broker, user, password)."""
    return Api


@pytest.fixture(scope="session")
def operator(amqpd_broker: BrokerProcess) -> Api:
    return Api(amqpd_broker, None)


@pytest.fixture
def v(amqpd_vhost: Vhost) -> str:
    """The name of a new vhost, URL-encoded."""
    return quote(amqpd_vhost.name, safe="")


@pytest.fixture
def channel(amqpd_vhost: Vhost) -> Generator[BlockingChannel, None, None]:
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def user(api: Api, amqpd_vhost: Vhost) -> Generator[Callable[..., Api], None, None]:
    """Return a function that makes a user: user("management", configure="^a") gives tag and permissions."""
    names: list[str] = []

    def make(tags: str, vhost: str = amqpd_vhost.name, **patterns: str) -> Api:
        name = f"u{len(names)}-{amqpd_vhost.name}"
        api.send_ok("PUT", f"/api/users/{quote(name, safe='')}", {"password": "secret", "tags": tags})
        names.append(name)
        if patterns:
            permissions = {"configure": "", "write": "", "read": "", **patterns}
            api.send_ok("PUT", f"/api/permissions/{quote(vhost, safe='')}/{quote(name, safe='')}", permissions)
        return Api(api.broker, name, "secret")

    yield make
    for name in names:
        api("DELETE", f"/api/users/{quote(name, safe='')}")
