"""A node over one broker, tested in process: lease, epochs, a second writer of its slot, Kafka outages."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiormq
import pytest

from amqpd.cluster import ownership
from amqpd.cluster.ownership import OwnedSlot
from amqpd.cluster.row_codec import WISH, PutAnnotation
from amqpd.cluster.storage import ClusterStorage
from amqpd.kafka.partition import UNKNOWN
from amqpd.kafka.producer import KafkaProducer, KafkaRefused, init_producer_id, take_over
from amqpd.kafka.requests import ProducerId
from amqpd.server import Server
from amqpd.testing import embedded


@asynccontextmanager
async def running_node(tmp_path: Path, kafka: Any, name: str) -> AsyncIterator[Server]:
    settings = {
        "cluster.kafka": kafka.bootstrap,
        "cluster.name": name,
        "cluster.secret": "the old pond, a frog jumps in",
        "cluster.node": "a",
        "cluster.listen": "127.0.0.1:0",
        "cluster.replication_factor": 1,
        "cluster.required_insync": 1,
        "cluster.slots": 2,
    }
    async with embedded(tmp_path, settings=settings) as server:
        await until(lambda: "/" in server.broker.vhosts)
        yield server


async def until(holds: Callable[[], object], timeout_s: float = 25) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110  # the condition has no event
            await asyncio.sleep(0.02)


async def connect(server: Server) -> aiormq.abc.AbstractConnection:
    return await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{server.port('amqp')}/")


def owned_slot(server: Server) -> OwnedSlot:
    """Return the slot of vhost `/`."""
    assert server.node is not None
    return next(owned for owned in server.node.owned.values() if "/" in owned.vhosts)


def ignore(_: object) -> None:
    """A callback that does nothing."""


async def connect_and_declare(server: Server) -> tuple[Any, Any]:
    connection = await connect(server)
    channel = await connection.channel()
    await channel.queue_declare("q", durable=True)
    return connection, channel


async def test_deliveries_and_confirms_wait_while_kafka_is_silent(tmp_path, kafka, topic) -> None:
    async with running_node(tmp_path, kafka, topic) as server:
        connection, channel = await connect_and_declare(server)
        owned = owned_slot(server)
        got: asyncio.Queue[Any] = asyncio.Queue()
        await channel.basic_consume("q", got.put, no_ack=True)
        await channel.basic_publish(b"before", routing_key="q")
        assert (await got.get()).body == b"before"
        flush, owned.producer.flush = owned.producer.flush, lambda: None  # nothing goes to Kafka from here on
        await until(lambda: owned.is_suspended)
        confirm = asyncio.ensure_future(channel.basic_publish(b"meanwhile", routing_key="q"))
        await until(lambda: owned.vhosts["/"].queues["q"].ready_count == 1)
        await asyncio.sleep(0.3)
        assert got.empty(), "delivered although another node may own the slot"
        assert not confirm.done()
        owned.producer.flush = flush
        flush()
        assert (await confirm).name == "Basic.Ack"
        assert (await got.get()).body == b"meanwhile"
        await until(lambda: not owned.is_suspended)
        await connection.close()


async def test_idle_slot_keeps_its_lease(tmp_path, kafka, topic, monkeypatch) -> None:
    monkeypatch.setattr(ownership, "CHECK_S", 0.05)
    async with running_node(tmp_path, kafka, topic) as server:
        owned = owned_slot(server)
        assert server.node is not None
        offsets = []
        for _ in range(3):
            before = owned.producer.answered_s
            await until(lambda before=before: owned.producer.answered_s > before)
            offsets.append(int(owned.logs.settled.high_watermark))
            assert not owned.is_suspended
        assert offsets[-1] - offsets[0] <= 10, "more than one record per two seconds"


async def test_slot_with_a_later_epoch_elsewhere_ends_and_is_retaken(tmp_path, kafka, topic) -> None:
    async with running_node(tmp_path, kafka, topic) as server:
        connection, channel = await connect_and_declare(server)
        node = server.node
        assert node is not None
        owned = owned_slot(server)
        await channel.basic_publish(b"kept", routing_key="q")
        other = KafkaProducer(node.options.access, on_moved=ignore, on_refused=ignore, on_fenced=ignore)
        names = [(each.topic.decode(), int(each.number)) for each in owned.producer.partitions]
        opened = [other.open(name, number, UNKNOWN) for name, number in names]
        await take_over(other, node.options.transactional_id(owned.slot), opened)
        with pytest.raises(aiormq.exceptions.AMQPError):  # a nack or a closed connection, but no confirm
            await channel.basic_publish(b"lost", routing_key="q")
        await until(lambda: owned.end_reason)
        assert owned.vhosts.get("/") is None or owned.vhosts["/"].deleted
        await until(lambda: node.owned.get(owned.slot) not in {None, owned})
        again = owned_slot(server)
        assert again.epoch > owned.epoch
        await other.close()
        connection, channel = await connect_and_declare(server)
        message = await channel.basic_get("q")
        assert message.body == b"kept"
        storage = server.storage
        assert isinstance(storage, ClusterStorage)
        assert all(placed.logs is again.logs for placed in storage.places.values())
        await connection.close()


async def test_renewing_a_slot_under_load_loses_and_repeats_nothing(tmp_path, kafka, topic) -> None:
    async with running_node(tmp_path, kafka, topic) as server:
        connection, channel = await connect_and_declare(server)
        node = server.node
        assert node is not None
        owned = owned_slot(server)
        first = owned.epoch

        async def publish() -> None:
            for number in range(400):
                assert (await channel.basic_publish(b"%d" % number, routing_key="q")).name == "Basic.Ack"

        publishing = asyncio.ensure_future(publish())
        for _ in range(3):
            await asyncio.sleep(0.1)
            await node.takeovers.renew(owned)
            node.takeovers.keep_alive(owned)
        await publishing
        assert owned.epoch == first + 3
        assert not owned.end_reason
        taken = [int((await channel.basic_get("q", no_ack=True)).body) for _ in range(400)]
        assert taken == list(range(400))
        stale = ProducerId(0, int(owned.held.producer_id), first)
        with pytest.raises(KafkaRefused, match="FENCED|EPOCH"):  # the holder of the first epoch
            await init_producer_id(node.options.access, node.options.transactional_id(owned.slot), stale)
        await connection.close()


async def test_slot_given_up_during_a_renewal_is_handed_over_cleanly(tmp_path, kafka, topic, monkeypatch) -> None:
    """Kafka knows the later epoch, the node does not yet."""
    async with running_node(tmp_path, kafka, topic) as server:
        node, owned = server.node, owned_slot(server)
        first, gate, real = owned.epoch, asyncio.Event(), init_producer_id

        async def slow(*arguments: Any) -> ProducerId:
            found = await real(*arguments)
            await gate.wait()
            return found

        monkeypatch.setattr(ownership, "init_producer_id", slow)
        renewing = asyncio.create_task(node.takeovers.renew(owned))
        await asyncio.sleep(0.3)
        giving_up = asyncio.create_task(node.takeovers.give_up(owned))
        await asyncio.sleep(0.2)
        gate.set()
        await asyncio.gather(renewing, giving_up)
        again = await node.takeovers.take_over(owned.slot)
        assert (again.epoch, again.logs.is_clean_takeover) == (first + 2, True)
        await node.takeovers.renew(owned)  # no effect: the slot was given up
        await node.takeovers.give_up(again)
        again = await node.takeovers.take_over(owned.slot)
        assert (again.epoch, again.logs.is_clean_takeover) == (first + 3, True)
        await node.takeovers.give_up(again)


async def test_fulfilled_wish_is_removed_but_a_later_wish_stays(tmp_path, kafka, topic) -> None:
    """The node notices the owner change late, or had no chance to remove the wish as the former owner of slot 0."""
    async with running_node(tmp_path, kafka, topic) as server:
        node, owned = server.node, owned_slot(server)
        notes = node.metadata.slots[0].table.notes
        slot = owned.slot
        await until(lambda: 0 in node.owned and node.state.owner_of(slot))  # its own writes have arrived from Kafka
        await node.metadata.slots[0].write([PutAnnotation((WISH, slot), {"node": "elsewhere"})])
        table = node.state.table
        table.notes[WISH, slot] = {"node": "a"}  # the old value: this node is behind
        node._owner_changed(slot)
        await node.metadata.slots[0].write([])
        assert notes[WISH, slot] == {"node": "elsewhere"}
        await node.metadata.slots[0].write([PutAnnotation((WISH, slot), {"node": "a"})])
        node._owner_changed(0)
        await node.metadata.slots[0].write([])
        assert (WISH, slot) not in notes


async def test_slot_that_is_drained_and_retaken_leaks_nothing(tmp_path, kafka, topic) -> None:
    async with running_node(tmp_path, kafka, topic) as server:
        node = server.node
        assert node is not None
        connection, channel = await connect_and_declare(server)
        await channel.basic_publish(b"kept", routing_key="q")
        await connection.close()
        await until(lambda: not server.connections.by_name)
        references: list[weakref.ref[Any]] = []
        tasks = len(asyncio.all_tasks())
        for _ in range(3):
            owned = owned_slot(server)
            references += [weakref.ref(each) for each in (owned, owned.logs, owned.producer, owned.vhosts["/"])]
            del owned
            await node.drain()
            assert not node.owned
            assert not server.broker.vhosts
            assert not server.storage.places  # type: ignore[attr-defined]
            node.undrain()
            await until(lambda: "/" in server.broker.vhosts)

        def all_collected() -> bool:
            gc.collect()
            return not any(each() is not None for each in references) and len(asyncio.all_tasks()) <= tasks + 2

        await until(all_collected)
        connection, channel = await connect_and_declare(server)
        assert (await channel.basic_get("q")).body == b"kept"
        await connection.close()


async def test_node_that_cannot_read_cluster_metadata_stops(tmp_path, kafka, topic, monkeypatch, caplog) -> None:
    """Other nodes take over its vhosts, and the operator's supervisor restarts it."""
    async with running_node(tmp_path, kafka, topic) as server:

        def failing(*_: object) -> None:
            raise IndexError("a bug of ours")

        monkeypatch.setattr(type(server.node.state), "_apply_record", failing)
        await server.node.request_move(1, "nobody")
        async with asyncio.timeout(25):
            await server.stopped.wait()
        assert "IndexError" in server.failed
        assert "the broker stops: the cluster's metadata cannot be read any more" in caplog.text


async def test_wish_for_an_absent_node_moves_nothing(tmp_path, kafka, topic) -> None:
    async with running_node(tmp_path, kafka, topic) as server:
        node = server.node
        assert node is not None
        owned = owned_slot(server)
        await node.request_move(owned.slot, "nobody")
        await until(lambda: node.state.requested_node(owned.slot) == "nobody")
        await asyncio.sleep(1)
        assert node.owned.get(owned.slot) is owned
        await node.request_move(owned.slot, "a")
        await node.request_move(owned.slot, None)
        await until(lambda: node.state.requested_node(owned.slot) is None)
        assert node.owned[owned.slot] is owned
