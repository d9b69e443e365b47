"""A node over one broker, from within: its lease, its epochs, another writer of its slot; Kafka that goes away."""

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
async def a_node(tmp_path: Path, kafka: Any, name: str) -> AsyncIterator[Server]:
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
        while not holds():  # noqa: ASYNC110  # what it looks at has no event
            await asyncio.sleep(0.02)


async def connect(server: Server) -> aiormq.abc.AbstractConnection:
    return await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{server.port('amqp')}/")


def slot_of(server: Server) -> OwnedSlot:
    """The one of vhost `/`."""
    assert server.node is not None
    return next(owned for owned in server.node.owned.values() if "/" in owned.vhosts)


def nothing(_: object) -> None:
    """Nobody hears."""


async def with_queue(server: Server) -> tuple[Any, Any]:
    connection = await connect(server)
    channel = await connection.channel()
    await channel.queue_declare("q", durable=True)
    return connection, channel


async def test_queues_wait_while_kafka_does_not_answer_and_go_on_behind_that(tmp_path, kafka, topic) -> None:
    async with a_node(tmp_path, kafka, topic) as server:
        connection, channel = await with_queue(server)
        owned = slot_of(server)
        got: asyncio.Queue[Any] = asyncio.Queue()
        await channel.basic_consume("q", got.put, no_ack=True)
        await channel.basic_publish(b"before", routing_key="q")
        assert (await got.get()).body == b"before"
        flush, owned.producer.flush = owned.producer.flush, lambda: None  # nothing goes to Kafka any more
        await until(lambda: owned.is_suspended)
        confirm = asyncio.ensure_future(channel.basic_publish(b"meanwhile", routing_key="q"))
        await until(lambda: owned.vhosts["/"].queues["q"].ready_count == 1)
        await asyncio.sleep(0.3)
        assert got.empty(), "it is delivered though the slot may be another's"
        assert not confirm.done()
        owned.producer.flush = flush
        flush()
        assert (await confirm).name == "Basic.Ack"
        assert (await got.get()).body == b"meanwhile"
        await until(lambda: not owned.is_suspended)
        await connection.close()


async def test_an_idle_slot_keeps_its_lease(tmp_path, kafka, topic, monkeypatch) -> None:
    monkeypatch.setattr(ownership, "CHECK_S", 0.05)
    async with a_node(tmp_path, kafka, topic) as server:
        owned = slot_of(server)
        assert server.node is not None
        offsets = []
        for _ in range(3):
            before = owned.producer.answered_s
            await until(lambda before=before: owned.producer.answered_s > before)
            offsets.append(int(owned.logs.settled.high_watermark))
            assert not owned.is_suspended
        assert offsets[-1] - offsets[0] <= 10, "a record each two seconds, not each look"


async def test_a_later_epoch_of_another_writer_ends_all_and_the_slot_is_taken_again(tmp_path, kafka, topic) -> None:
    async with a_node(tmp_path, kafka, topic) as server:
        connection, channel = await with_queue(server)
        node = server.node
        assert node is not None
        owned = slot_of(server)
        await channel.basic_publish(b"kept", routing_key="q")
        other = KafkaProducer(node.options.access, on_moved=nothing, on_refused=nothing, on_fenced=nothing)
        names = [(each.topic.decode(), int(each.number)) for each in owned.producer.partitions]
        opened = [other.open(name, number, UNKNOWN) for name, number in names]
        await take_over(other, node.options.transactional_id(owned.slot), opened)
        with pytest.raises(aiormq.exceptions.AMQPError):  # a nack, or the end of the connection: no confirm
            await channel.basic_publish(b"lost", routing_key="q")
        await until(lambda: owned.end_reason)
        assert owned.vhosts.get("/") is None or owned.vhosts["/"].deleted
        await until(lambda: node.owned.get(owned.slot) not in {None, owned})
        again = slot_of(server)
        assert again.epoch > owned.epoch
        await other.close()
        connection, channel = await with_queue(server)
        message = await channel.basic_get("q")
        assert message.body == b"kept"
        storage = server.storage
        assert isinstance(storage, ClusterStorage)
        assert all(placed.logs is again.logs for placed in storage.places.values())
        await connection.close()


async def test_a_slot_is_renewed_under_load_and_nothing_is_lost_or_doubled(tmp_path, kafka, topic) -> None:
    async with a_node(tmp_path, kafka, topic) as server:
        connection, channel = await with_queue(server)
        node = server.node
        assert node is not None
        owned = slot_of(server)
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
        with pytest.raises(KafkaRefused, match="FENCED|EPOCH"):  # whoever holds the first epoch
            await init_producer_id(node.options.access, node.options.transactional_id(owned.slot), stale)
        await connection.close()


async def test_a_slot_that_is_renewed_as_it_is_given_up_is_given_up_cleanly(
    tmp_path, kafka, topic, monkeypatch
) -> None:
    """The later epoch is known to Kafka, and not yet here."""
    async with a_node(tmp_path, kafka, topic) as server:
        node, owned = server.node, slot_of(server)
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
        await node.takeovers.renew(owned)  # nothing, for it is given up
        await node.takeovers.give_up(again)
        again = await node.takeovers.take_over(owned.slot)
        assert (again.epoch, again.logs.is_clean_takeover) == (first + 3, True)
        await node.takeovers.give_up(again)


async def test_a_wish_that_has_come_true_is_taken_away_but_no_later_one(tmp_path, kafka, topic) -> None:
    """Told late, and told by who was slot 0's owner before and did not come to it."""
    async with a_node(tmp_path, kafka, topic) as server:
        node, owned = server.node, slot_of(server)
        notes = node.metadata.slots[0].table.notes
        slot = owned.slot
        await until(lambda: 0 in node.owned and node.state.owner_of(slot))  # what it has written comes back by Kafka
        await node.metadata.slots[0].write([PutAnnotation((WISH, slot), {"node": "elsewhere"})])
        table = node.state.table
        table.notes[WISH, slot] = {"node": "a"}  # as it was before: this node is behind
        node._owner_changed(slot)
        await node.metadata.slots[0].write([])
        assert notes[WISH, slot] == {"node": "elsewhere"}
        await node.metadata.slots[0].write([PutAnnotation((WISH, slot), {"node": "a"})])
        node._owner_changed(0)
        await node.metadata.slots[0].write([])
        assert (WISH, slot) not in notes


async def test_a_slot_that_is_given_up_and_taken_again_leaves_nothing_behind(tmp_path, kafka, topic) -> None:
    async with a_node(tmp_path, kafka, topic) as server:
        node = server.node
        assert node is not None
        connection, channel = await with_queue(server)
        await channel.basic_publish(b"kept", routing_key="q")
        await connection.close()
        await until(lambda: not server.connections.by_name)
        gone: list[weakref.ref[Any]] = []
        tasks = len(asyncio.all_tasks())
        for _ in range(3):
            owned = slot_of(server)
            gone += [weakref.ref(each) for each in (owned, owned.logs, owned.producer, owned.vhosts["/"])]
            del owned
            await node.drain()
            assert not node.owned
            assert not server.broker.vhosts
            assert not server.storage.places  # type: ignore[attr-defined]
            node.undrain()
            await until(lambda: "/" in server.broker.vhosts)

        def all_gone() -> bool:
            gc.collect()
            return not any(each() is not None for each in gone) and len(asyncio.all_tasks()) <= tasks + 2

        await until(all_gone)
        connection, channel = await with_queue(server)
        assert (await channel.basic_get("q")).body == b"kept"
        await connection.close()


async def test_a_node_that_cannot_follow_the_cluster_any_more_stops(
    tmp_path, kafka, topic, monkeypatch, caplog
) -> None:
    """Others take over what it serves, and whoever runs it starts it again."""
    async with a_node(tmp_path, kafka, topic) as server:

        def failing(*_: object) -> None:
            raise IndexError("a bug of ours")

        monkeypatch.setattr(type(server.node.state), "_apply_record", failing)
        await server.node.request_move(1, "nobody")
        async with asyncio.timeout(25):
            await server.stopped.wait()
        assert "IndexError" in server.failed
        assert "the broker stops: the cluster's metadata cannot be read any more" in caplog.text


async def test_a_wish_moves_nothing_where_there_is_no_such_node(tmp_path, kafka, topic) -> None:
    async with a_node(tmp_path, kafka, topic) as server:
        node = server.node
        assert node is not None
        owned = slot_of(server)
        await node.request_move(owned.slot, "nobody")
        await until(lambda: node.state.requested_node(owned.slot) == "nobody")
        await asyncio.sleep(1)
        assert node.owned.get(owned.slot) is owned
        await node.request_move(owned.slot, "a")
        await node.request_move(owned.slot, None)
        await until(lambda: node.state.requested_node(owned.slot) is None)
        assert node.owned[owned.slot] is owned
