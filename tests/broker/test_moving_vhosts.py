"""Loading and unloading vhosts in a running broker: complete, without delay, and with nothing left in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiormq
import pytest

from amqpd.broker.vhost.pending import DeclarationPending, ObjectName, PendingDeclarations
from amqpd.protocol.field_table import encode_table
from amqpd.server import Server
from amqpd.storage.metadata.rows import (
    BindingRow,
    ExchangeRow,
    ParameterRow,
    PermissionRow,
    PolicyRow,
    Put,
    QueueRow,
    StoredOffsetRow,
    VhostRow,
)
from amqpd.storage.metadata.store import MetadataState, WriteFailed
from amqpd.testing import embedded

NOTHING = MetadataState("", *([] for _ in MetadataState._fields[1:]))
ROWS = NOTHING._replace(
    vhosts=[VhostRow("moves", "a" * 32, "comes and goes")],
    exchanges=[ExchangeRow("moves", "orders", "topic"), ExchangeRow("moves", "late", "fanout")],
    queues=[
        QueueRow("moves", "plain", "1" * 32),
        QueueRow("moves", "leased", "2" * 32, arguments=encode_table({"x-expires": 3_600_000})),
        QueueRow("moves", "ends", "3" * 32, auto_delete=True),
        QueueRow("moves", "stream", "4" * 32, arguments=encode_table({"x-queue-type": "stream"})),
    ],
    bindings=[
        BindingRow("moves", "orders", "plain", "queue", "a.#"),
        BindingRow("moves", "late", "orders", "exchange", ""),
    ],
    policies=[PolicyRow("moves", "short", "plain", "queues", '{"message-ttl": 3600000, "max-length": 1000}')],
    parameters=[ParameterRow("moves", "vhost-limits", "limits", '{"max-queues": 10}')],
    stored_offsets=[StoredOffsetRow("4" * 32, "reader", 7, 1)],
)
WHY = "vhost 'moves' is moving"


async def connect(server: Server, vhost: str = "moves") -> aiormq.abc.AbstractConnection:
    return await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{server.port('amqp')}/{vhost}")


async def allow(server: Server) -> None:
    """Permissions belong to the whole broker, not to the vhost's rows."""
    server.broker.auth.apply_committed([], [PermissionRow("guest", "moves", ".*", ".*", ".*")])


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # the conditions have no event
            await asyncio.sleep(0.01)


def resources(server: Server) -> dict[str, Any]:
    """Return the resources that unloading a vhost must release."""
    broker = server.broker
    return {
        "logs": len(server.storage._stores),
        "windows": len(broker.windows._windows),
        "names": dict(broker.catalogue.declared._held),
        "offsets": dict(broker.catalogue.stored_offsets._of),
        "connections": dict(server.connections.by_name),
        "wheels": dict(broker.delays._wheels),
        "directories": sorted(path.name for path in Path(server.settings.data_dir).glob("vhosts/*/queues/*")),
    }


async def test_loaded_vhost_serves_clients_and_unload_frees_everything(tmp_path) -> None:
    async with embedded(tmp_path) as server:
        await allow(server)
        broker = server.broker
        before = resources(server)
        for _ in range(2):
            (vhost,) = await broker.load_vhosts(ROWS)
            assert broker.vhosts["moves"] is vhost
            assert vhost.limits.value == {"max-queues": 10}
            assert vhost.queues["plain"].rules.ttl_ms == 3_600_000
            connection = await connect(server)
            channel = await connection.channel()
            got: asyncio.Queue[Any] = asyncio.Queue()
            await channel.basic_consume("plain", got.put)
            assert (await channel.basic_publish(b"one", exchange="late", routing_key="a.b")).name == "Basic.Ack"
            assert (await got.get()).body == b"one"
            await channel.basic_publish(b"two", exchange="", routing_key="leased")
            closing = connection.closing
            vhost_ref = weakref.ref(vhost)
            leaving = broker.unload_vhost(vhost, WHY)
            del vhost
            await leaving
            assert "moves" not in broker.vhosts
            with pytest.raises(aiormq.exceptions.ConnectionClosed, match=f"320.*{WHY}"):
                await closing
            await until(lambda: not server.connections.by_name)
            await until(lambda: resources(server) == before)
            del channel, connection, closing, got

            def is_collected(vhost_ref: Any = vhost_ref) -> bool:
                gc.collect()
                return vhost_ref() is None

            await until(is_collected)
        assert broker.catalogue.queue_deleted_count == 0, "unloading deletes no queue"
        assert sum(broker.catalogue.ended_queues.counts) > 0, "counters of unloaded queues must be kept"


async def test_unload_deletes_no_auto_delete_or_exclusive_queue(tmp_path) -> None:
    async with embedded(tmp_path) as server:
        await allow(server)
        (vhost,) = await server.broker.load_vhosts(ROWS)
        connection = await connect(server)
        channel = await connection.channel()
        await channel.basic_consume("ends", lambda message: asyncio.sleep(0))
        await channel.queue_declare("mine", exclusive=True)
        submitted: list[object] = []
        submit = server.metadata.submit

        def record_commit(changes: Any, done: Any) -> None:
            submitted.extend(changes)
            submit(changes, done)

        server.broker.catalogue.declared._commit = record_commit
        await server.broker.unload_vhost(vhost, WHY)
        await until(lambda: not server.connections.by_name)
        await asyncio.sleep(0.05)
        assert submitted == []
        assert not vhost.queues


async def test_dead_letter_of_closed_vhost_keeps_its_source_message(tmp_path, caplog) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "plain"}
    dying = QueueRow("moves", "dying", "5" * 32, arguments=encode_table(arguments))
    async with embedded(tmp_path) as server:
        await allow(server)
        (vhost,) = await server.broker.load_vhosts(ROWS._replace(queues=[*ROWS.queues, dying]))
        connection = await connect(server)
        channel = await connection.channel()
        await channel.basic_publish(b"one", exchange="", routing_key="dying")
        queue = vhost.queues["dying"]
        server.broker.close_vhost(vhost, WHY)
        entry = queue.take()
        assert entry is not None
        queue.discard(entry, "expired")
        await until(lambda: not server.broker.republisher.line)
        assert queue.store is not None
        assert queue.store.record_count == 1, "the message was acked without being dead-lettered"
        assert "a bug in amqpd, please report it" not in caplog.text
        await server.broker.unload_vhost(vhost, WHY)


async def test_connection_to_unloaded_vhost_is_refused(tmp_path) -> None:
    async with embedded(tmp_path) as server:
        await allow(server)
        (vhost,) = await server.broker.load_vhosts(ROWS)
        leaving = asyncio.create_task(server.broker.unload_vhost(vhost, WHY))
        await asyncio.sleep(0)
        assert "moves" not in server.broker.vhosts
        with pytest.raises(aiormq.exceptions.AMQPError):
            await connect(server)
        await leaving
        await server.broker.unload_vhost(vhost, WHY)  # a second call does nothing


async def test_failed_load_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    async with embedded(tmp_path) as server:
        before = resources(server)
        open_queue = server.storage.open_queue
        opened = 0

        def fails(*arguments: Any) -> Any:
            nonlocal opened
            opened += 1
            if opened == 3:
                raise OSError("no descriptor left")
            return open_queue(*arguments)

        monkeypatch.setattr(server.storage, "open_queue", fails)
        with pytest.raises(OSError, match="no descriptor left"):
            await server.broker.load_vhosts(ROWS)
        assert "moves" not in server.broker.vhosts
        await until(lambda: resources(server) == before)


@pytest.mark.slow
async def test_load_and_unload_of_ten_thousand_queues_yields_to_the_loop(tmp_path) -> None:
    queues = [QueueRow("moves", f"q{number}", f"{number:032x}") for number in range(10_000)]
    async with embedded(tmp_path) as server:
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1
            again = loop.call_soon(count)
            handles.append(again)
            del handles[:-1]

        loop = asyncio.get_running_loop()
        handles: list[asyncio.Handle] = []
        count()
        (vhost,) = await server.broker.load_vhosts(ROWS._replace(queues=queues, bindings=[], stored_offsets=[]))
        assert turns > 10
        assert len(vhost.queues) == 10_000
        turns = 0
        await server.broker.unload_vhost(vhost, WHY)
        assert turns > 3
        handles[-1].cancel()


async def test_suspended_queue_delivers_after_resume(tmp_path) -> None:
    async with embedded(tmp_path) as server:
        await allow(server)
        (vhost,) = await server.broker.load_vhosts(ROWS)
        connection = await connect(server)
        channel = await connection.channel()
        got: asyncio.Queue[Any] = asyncio.Queue()
        await channel.basic_consume("leased", got.put)
        for name in ("leased", "plain"):
            vhost.queues[name].round_robin.suspend(True)
        await channel.basic_publish(b"one", exchange="", routing_key="leased")
        await channel.basic_publish(b"two", exchange="", routing_key="plain")
        other = await connection.channel()
        getting = asyncio.ensure_future(other.basic_get("plain"))
        await asyncio.sleep(0.1)
        assert got.empty()
        assert not getting.done(), "the queue has a message: basic.get must wait instead of returning get-empty"
        assert vhost.queues["leased"].ready_count == 1
        for name in ("leased", "plain"):
            vhost.queues[name].round_robin.suspend(False)
            vhost.queues[name].schedule_dispatch()
        assert (await got.get()).body == b"one"
        assert (await getting).body == b"two"
        await connection.close()


def test_failed_removal_is_not_retried_after_unload_of_its_vhost() -> None:
    soon: list[Callable[[], None]] = []
    later: list[Callable[[], None]] = []
    attempts: list[object] = []

    def fails(changes: object, done: Callable[[BaseException | None], None]) -> None:
        attempts.append(changes)
        done(WriteFailed("the slot is another's"))

    declared = PendingDeclarations(fails, lambda *call: soon.append(call), lambda _, call: later.append(call))
    removed: list[int] = []
    declared.remove([Put(QueueRow("moves", "q", "1" * 32, state="deleting"))], lambda: removed.append(1))
    declared.remove([Put(QueueRow("stays", "q", "2" * 32, state="deleting"))], lambda: removed.append(2))
    with pytest.raises(DeclarationPending):
        declared.check("moves", "queue", "q")
    declared.forget_vhost("moves")
    declared.check("moves", "queue", "q")
    with pytest.raises(DeclarationPending):
        declared.check("stays", "queue", "q")
    attempts.clear()
    for call in later[:]:
        call()
    assert len(attempts) == 1, "only removals of the remaining vhost are retried"
    assert removed == []
    declared.hold(ObjectName("moves", "queue", "q"))
