"""Requests that need a queue's log before it is open. They wait until it is open, or report that it cannot open."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amqpd.broker.vhost.declaration import make_queue
from amqpd.management import collectors
from amqpd.server import Server
from amqpd.storage.queue_log import QueueLog
from amqpd.testing import BrokerProcess, embedded

PUBLISH = "/api/exchanges/%2F/amq.default/publish"
PERSISTENT = {"routing_key": "q", "payload": "x", "properties": {"delivery_mode": 2}}
REQUESTS = [
    ("PUT", "/api/queues/%2F/q", {"durable": True}, 204),
    ("POST", PUBLISH, PERSISTENT, 200),
    ("POST", "/api/queues/%2F/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, 200),
    ("DELETE", "/api/queues/%2F/q/contents", None, 204),
    ("GET", "/api/amqpd/exports/%2F/q", None, 200),
    ("DELETE", "/api/queues/%2F/q", None, 204),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
def test_first_request_after_torn_write_succeeds(
    tmp_path: Path, api: Any, method: str, path: str, body: Any, status: int
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        fresh = type(api)(broker)
        fresh.send_ok("PUT", "/api/queues/%2F/q", {"durable": True})
        fresh.send_ok("POST", PUBLISH, PERSISTENT)
        broker.kill()
        (log,) = (tmp_path / "data" / "vhosts").rglob("00000000000000000000.log")
        with log.open("ab") as file:
            file.write(b"torn" * 5)  # recovery truncates these bytes in its thread
        broker.start()
        assert type(api)(broker)(method, path, body).status == status


class UnreadableLog(QueueLog):
    """A log whose recovery fails with EIO one loop turn later."""

    def __init__(self) -> None:
        super().__init__("v1", "unreadable", "q", "", True)
        self.tries = 0

    def open_soon(self, done: Callable[[], None]) -> bool:
        self.tries += 1
        assert self.tries < 10, "the log was opened repeatedly without an answer"
        asyncio.get_running_loop().call_soon(done)
        return False

    def recover(self) -> None:
        raise OSError(5, "Input/output error")


class SlowLog(QueueLog):
    """A log that never opens. `open_count` counts the attempts."""

    def __init__(self) -> None:
        super().__init__("v1", "slow", "q", "", True)
        self.open_count = 0

    def open_soon(self, done: Callable[[], None]) -> bool:
        self.open_count += 1
        return False


async def status_of(server: Server, method: str, path: str, body: object) -> int:
    return int((await answer_of(server, method, path, body)).split(maxsplit=2)[1])


async def answer_of(server: Server, method: str, path: str, body: object = None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port("http"))
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.0\r\nAuthorization: Basic {base64.b64encode(b'guest:guest').decode()}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    response = await reader.read()
    writer.close()
    return response


@pytest.mark.parametrize(("method", "path", "body"), [each[:3] for each in REQUESTS])
async def test_request_for_unreadable_log_is_503(tmp_path: Path, method: str, path: str, body: object) -> None:
    async with embedded(tmp_path) as server:
        vhost, log = server.broker.vhosts["/"], UnreadableLog()
        vhost.add_queue(make_queue(vhost.queue_host, "q", True, False, None, {}, log))
        assert await status_of(server, method, path, body) == 503
        assert log.tries == 1
        vhost.take_queue(vhost.queues["q"])


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_coarse_metrics"])
async def test_scrape_does_not_wait_for_slow_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Unopened queues are counted as unread and are in no sum. Later scrapes open them."""
    async with embedded(tmp_path) as server:
        vhost, logs = server.broker.vhosts["/"], [SlowLog() for _ in range(3)]
        for number, log in enumerate(logs):
            vhost.add_queue(make_queue(vhost.queue_host, f"slow{number}", True, False, None, {}, log))
        monkeypatch.setattr(collectors, "OPENING_S", 0.0)
        response = await answer_of(server, "GET", path)
        assert [log.open_count for log in logs] == [0, 0, 0]
        monkeypatch.setattr(collectors, "OPENING_S", 0.5)
        response = await answer_of(server, "GET", path)
        assert response.startswith(b"HTTP/1.0 200 ")
        assert [log.open_count for log in logs] == [1, 0, 0]  # the first log does not open within the time limit
        assert b'queue="slow' not in response
        if "detailed" not in path:
            assert b"\namqpd_queues_unread 3\n" in response
            assert b"\nrabbitmq_queues 3\n" in response
        for number in range(3):
            vhost.take_queue(vhost.queues[f"slow{number}"])
