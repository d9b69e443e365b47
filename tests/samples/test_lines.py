"""The sample front end: publishes, credit, acks, errors and stops."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import lines
import pytest

from amqpd.broker.vhost import declare, vhosts
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.pending import wait_done
from amqpd.server import Server
from amqpd.testing import embedded


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *lines_sent: str) -> None:
        self.writer.write("".join(f"{line}\n" for line in lines_sent).encode())

    async def receive(self) -> str:
        async with asyncio.timeout(60):
            return (await self.reader.readline()).decode().rstrip("\n")

    async def ask(self, line: str) -> str:
        self.send(line)
        return await self.receive()


@asynccontextmanager
async def connected(server: Server, user: str = "guest", vhost: str = "%2F") -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port("lines"))
    client = Client(reader, writer)
    assert await client.ask(f"LOGIN {user} guest {vhost}") == "OK"
    try:
        yield client
    finally:
        writer.close()


@asynccontextmanager
async def broker(path: Path, *names: str, **arguments: object) -> AsyncIterator[Server]:
    async with embedded(path, guests=[lines.Lines]) as server:
        vhost = server.broker.vhosts["/"]
        for name in names:
            queue_arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
            await wait_done(
                partial(declare.declare_queue, vhost, QueueDeclaration(name, True, False, False, queue_arguments))
            )
        yield server


async def test_confirmed_publishes_survive_a_restart(tmp_path: Path) -> None:
    async with broker(tmp_path, "orders") as server, connected(server) as client:
        for number in range(3):
            assert await client.ask(f"PUB - orders message%20{number}") == "CONFIRM"
        assert server.broker.vhosts["/"].queues["orders"].ready_count == 3
    async with broker(tmp_path) as server, connected(server) as client:
        assert await client.ask("SUB orders 10") == "OK"
        assert [await client.receive() for _ in range(3)] == [f"MSG {n + 1} orders message%20{n}" for n in range(3)]


async def test_credit_bounds_unacked_messages(tmp_path: Path) -> None:
    async with broker(tmp_path, "q") as server, connected(server) as publisher, connected(server) as consumer:
        assert await consumer.ask("SUB q 2") == "OK"
        for body in "abcd":
            assert await publisher.ask(f"PUB - q {body}") == "CONFIRM"
        queue = server.broker.vhosts["/"].queues["q"]
        assert [await consumer.receive(), await consumer.receive()] == ["MSG 1 q a", "MSG 2 q b"]
        assert (queue.unacked_count, queue.ready_count) == (2, 2)
        assert await consumer.ask("ACK 2") == "MSG 3 q c"
        assert await consumer.ask("ACK 1") == "MSG 4 q d"
        consumer.send("ACK 3", "ACK 4", "PUB - q last")
        assert sorted([await consumer.receive(), await consumer.receive()]) == ["CONFIRM", "MSG 5 q last"]


async def test_unacked_messages_are_requeued_on_disconnect(tmp_path: Path) -> None:
    async with broker(tmp_path, "q") as server:
        async with connected(server) as first:
            assert await first.ask("PUB - q kept") == "CONFIRM"
            assert await first.ask("SUB q 1") == "OK"
            assert await first.receive() == "MSG 1 q kept"
        async with connected(server) as second:
            assert await second.ask("SUB q 1") == "OK"
            assert await second.receive() == "MSG 1 q kept"


async def test_publish_to_full_queue_is_refused(tmp_path: Path) -> None:
    limits: dict[str, object] = {"x_max_length": 1, "x_overflow": "reject-publish"}
    async with broker(tmp_path, "full", **limits) as server, connected(server) as client:
        assert await client.ask("PUB - full one") == "CONFIRM"
        assert await client.ask("PUB - full two") == "REFUSE"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("PUB nosuch key body", "ERR 404 no exchange 'nosuch' in vhost '/'"),
        ("SUB nosuch 1", "ERR 404 no queue 'nosuch' in vhost '/'"),
        ("ACK 7", "ERR 406 unknown delivery tag 7"),
        ("SUB q many", "ERR 501 not this line, or not now"),
        ("SING", "ERR 501 no such line: SING"),
    ],
)
async def test_error_is_sent_and_closes_client(tmp_path: Path, line: str, error: str) -> None:
    async with broker(tmp_path, "q") as server, connected(server) as client:
        assert await client.ask(line) == error
        assert await client.receive() == ""


@pytest.mark.parametrize("line", ["LOGIN guest wrong %2F", "LOGIN guest guest nosuch", "PUB - q body", "\xff"])
async def test_client_without_login_is_refused(tmp_path: Path, line: str) -> None:
    async with broker(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("lines"))
        assert (await Client(reader, writer).ask(line)).startswith("ERR")
        assert await reader.read() == b""
        writer.close()


async def test_revoked_permissions_close_clients(tmp_path: Path) -> None:
    async with broker(tmp_path, "q") as server:
        auth = server.broker.auth
        await auth.add_user("ann", b"guest")
        await auth.set_permissions("ann", "/", ".*", ".*", ".*")
        async with connected(server, "ann") as client:
            assert await client.ask("PUB - q body") == "CONFIRM"
            await auth.set_permissions("ann", "/", "", "", "")
            assert (await client.ask("PUB - q body")).startswith("ERR 403 access to exchange 'amq.default'")
        async with connected(server, "ann") as client:
            await auth.delete_user("ann")
            assert await client.receive() == "ERR 320 user 'ann' was deleted"


async def test_deleted_vhost_closes_its_clients(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        vhosts_by_name = server.broker.vhosts
        await wait_done(lambda done: vhosts.declare(vhosts_by_name, "shop", done=done))
        await server.broker.auth.set_permissions("guest", "shop", ".*", ".*", ".*")
        async with connected(server, vhost="shop") as client:
            await wait_done(partial(vhosts.delete, vhosts_by_name, vhosts_by_name["shop"]))
            assert await client.receive() == "ERR 320 vhost 'shop' is down"


async def test_deleted_queue_closes_its_consumers(tmp_path: Path) -> None:
    async with broker(tmp_path, "q") as server, connected(server) as client:
        assert await client.ask("SUB q 1") == "OK"
        vhost = server.broker.vhosts["/"]
        declare.delete_queue(vhost, vhost.queues["q"])
        assert await client.receive() == "ERR 404 queue 'q' is gone"


async def test_stop_app_closes_clients(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, connected(server) as client:
        await server.stop_app()
        assert await client.receive() == "ERR 320 the broker stops"
        assert [each.protocol for each in server.listeners if each.port] == ["http"]


def test_sample_has_at_most_155_lines() -> None:
    """Lines of code, without imports, blank lines and docstrings."""
    text = Path(lines.__file__).read_text()
    other_lines = sum(
        node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        if node.end_lineno
    )
    assert sum(1 for line in text.splitlines() if line.strip()) - other_lines <= 155


async def test_stop_app_requeues_and_refuses_logins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with broker(tmp_path, "q") as server, connected(server) as client:
        assert await client.ask("PUB - q kept") == "CONFIRM"
        assert await client.ask("SUB q 1") == "OK"
        assert await client.receive() == "MSG 1 q kept"
        unauthenticated = Client(*await asyncio.open_connection("127.0.0.1", server.port("lines")))
        queue = server.broker.vhosts["/"].queues["q"]
        await server.stop_app()
        assert (queue.ready_count, queue.unacked_count, queue.consumers) == (1, 0, [])
        assert (await unauthenticated.ask("LOGIN guest guest %2F")).startswith("ERR")
        unauthenticated.writer.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
