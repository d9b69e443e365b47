"""ClusterState: read from the `meta` topic at start, then updated in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_kafka import FakeKafka

from amqpd.cluster.row_codec import VHOST_SLOT, WISH, PutAnnotation, SlotChange, encode_note
from amqpd.cluster.row_table import ALL_TABLES, RowTable
from amqpd.cluster.state import ClusterState, Owner, free_slot
from amqpd.kafka.connection import KafkaDisconnected
from amqpd.kafka.keyed_records import KeyedRecord, keyed_batch
from amqpd.storage.metadata.rows import Delete, PermissionRow, Put, UserRow, VhostRow
from amqpd.storage.metadata.store import MetadataError

SLOTS = 4
META = "amqpd.shop.meta"
USER = UserRow("guest", "hash", "argon2id", ("administrator",))
A, B = Owner("a", "10.0.0.1:5690", "f" * 64, 4000, 0, 1), Owner("b", "10.0.0.2:5690", "e" * 64, 4000, 1, 2)


class Cluster:
    """A writer of `meta`."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.table = RowTable(ALL_TABLES)
        kafka.create(META, SLOTS)

    def raw(self, slot: int, *records: tuple[bytes, bytes | None]) -> None:
        batch = keyed_batch([KeyedRecord(*each) for each in records], 0, 1_700_000_000_000, 7, 0, 0)
        self.kafka.append(META, slot, batch.header + batch.records)

    def write(self, *changes: SlotChange) -> int:
        """Write to slot 0. Return the offset after it."""
        submission = self.table.apply(changes)
        self.raw(0, *submission.requested, *submission.dependent)
        return self.kafka.topics[META][0].end

    def vhost(self, name: str, slot: int, **columns: str) -> None:
        self.write(Put(VhostRow(name, f"id of {name}", **columns)), PutAnnotation((VHOST_SLOT, name), {"slot": slot}))

    def owner(self, slot: int, owner: Owner) -> None:
        self.raw(slot, encode_note(owner.note(slot)))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with FakeKafka(brokers=2) as kafka:
        yield Cluster(kafka)


@pytest.fixture
async def state(cluster: Cluster) -> AsyncIterator[ClusterState]:
    made = ClusterState(cluster.kafka.access, META, SLOTS)
    yield made
    await made.close()


async def test_open_reads_the_existing_state(cluster: Cluster, state: ClusterState) -> None:
    cluster.write(Put(USER))
    cluster.vhost("/", 1)
    cluster.vhost("shop", 2, state="deleting")
    cluster.write(Put(PermissionRow("guest", "/", "", "", "")), Put(PermissionRow("guest", "shop", "", "", "")))
    cluster.write(PutAnnotation((WISH, 1), {"node": "b"}))
    cluster.raw(1, (b'["queues","1"]', b'{"vhost":"/","name":"q"}'))  # only the owner of slot 1 reads this
    cluster.owner(1, A)
    cluster.owner(1, B)
    cluster.owner(0, A)
    await state.open()
    assert [row.name for row in state.vhosts()] == ["/", "shop"]
    assert (state.slot_of("/"), state.slot_of("shop"), state.slot_of("none")) == (1, 2, None)
    assert (state.owner_of(0), state.owner_of(1), state.owner_of(2)) == (A, B, None)
    assert [row.name for row in state.vhosts_of(1)] == ["/"]
    assert (state.requested_node(1), state.requested_node(2)) == ("b", None)
    initial = state.metadata_state("me")
    assert (initial.users, initial.vhosts) == ([USER], [])
    assert initial.permissions == [PermissionRow("guest", "/", "", "", "")]


async def test_listeners_get_changes_in_order(cluster: Cluster, state: ClusterState) -> None:
    cluster.vhost("/", 1)
    events: list[object] = []
    state.on_row.append(events.append)
    state.on_vhost.append(lambda name: events.append((name, state.slot_of(name))))
    state.on_owner.append(lambda slot: events.append((slot, state.owner_of(slot))))
    state.on_note.append(events.append)
    await state.open()
    assert events == []
    cluster.write(Put(USER))
    cluster.vhost("shop", 3)
    cluster.write(Put(USER))  # unchanged: no event
    cluster.write(Put(USER._replace(password_hash="other")))
    cluster.write(PutAnnotation((WISH, 3), {"node": "a"}))
    cluster.write(Delete(VhostRow("shop", "")), PutAnnotation((VHOST_SLOT, "shop"), None))
    await state.wait_applied(cluster.write(Delete(USER)))
    shop = VhostRow("shop", "id of shop")
    slot = PutAnnotation((VHOST_SLOT, "shop"), {"slot": 3})
    assert events == [
        Put(USER),
        Put(shop),
        ("shop", None),
        ("shop", 3),
        slot,
        Put(USER._replace(password_hash="other")),
        PutAnnotation((WISH, 3), {"node": "a"}),
        Delete(shop),
        ("shop", None),
        ("shop", None),
        PutAnnotation(slot.key, None),
        Delete(USER._replace(password_hash="other")),
    ]
    events.clear()
    cluster.owner(1, A)
    cluster.owner(1, A)
    while not events:
        assert await state.wait_change(60)
    cluster.owner(1, B)
    while len(events) < 2:
        assert await state.wait_change(60)
    assert events == [(1, A), (1, B)]


async def test_failing_listener_does_not_stop_the_others(
    cluster: Cluster, state: ClusterState, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(_: object) -> None:
        raise ValueError("a bug")

    changes: list[object] = []
    state.on_row += [failing, changes.append]
    await state.open()
    await state.wait_applied(cluster.write(Put(USER)))
    assert changes == [Put(USER)]
    assert "a bug" in caplog.text


async def test_error_while_reading_stops_the_state_and_calls_on_lost(
    cluster: Cluster, state: ClusterState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node with outdated users and owners must not continue. After a restart the node skips the record."""
    lost: list[str] = []
    state.on_lost = lost.append
    await state.open()
    read = RowTable.read

    def failing(self: RowTable, key: bytes, value: bytes | None) -> Any:
        if b"cursed" in key:
            raise IndexError("a bug of ours")
        return read(self, key, value)

    monkeypatch.setattr(RowTable, "read", failing)
    waiting = asyncio.create_task(state.wait_change(60))
    await asyncio.sleep(0)
    with pytest.raises(KafkaDisconnected):
        await state.wait_applied(cluster.write(Put(USER._replace(name="cursed"))))
    assert lost == ["the cluster's metadata cannot be read any more: IndexError('a bug of ours')"]
    assert await waiting
    cluster.write(Put(USER))
    again = ClusterState(cluster.kafka.access, META, SLOTS)
    await again.open()
    assert list(again.table.rows(UserRow)) == [USER]
    assert again.foreign_count == 1
    assert "a record is skipped" in caplog.text
    await again.close()


async def test_wait_change_and_wait_caught_up(cluster: Cluster, state: ClusterState) -> None:
    await state.open()
    assert not await state.wait_change(0.05)
    waiting = asyncio.create_task(state.wait_change(60))
    await asyncio.sleep(0)
    cluster.vhost("/", 1)
    assert await waiting
    await state.wait_caught_up()
    assert state.next_offset == cluster.kafka.topics[META][0].end


async def test_table_of_a_later_version_prevents_a_start(cluster: Cluster, state: ClusterState) -> None:
    """A running node skips the record and reports a problem."""
    other = ClusterState(cluster.kafka.access, META, SLOTS)
    await other.open()
    cluster.raw(0, (b'["pets","cat"]', b"{}"))
    with pytest.raises(MetadataError, match="table 'pets' is not known to this version of amqpd; start the later"):
        await state.open()
    await other.wait_applied(cluster.write(Put(USER)))
    assert "pets" in other.problem
    assert list(other.table.rows(UserRow)) == [USER]
    await other.close()


@pytest.mark.parametrize("key", [b'["vhost-slot"]', b'["place"]', b'["own-topic"]', b'["wish",1,2]'])
async def test_note_with_another_key_does_not_end_a_running_node(
    cluster: Cluster, state: ClusterState, key: bytes
) -> None:
    await state.open()
    lost: list[str] = []
    state.on_lost = lost.append
    cluster.raw(0, (key, b'{"slot": 1}'))
    await state.wait_applied(cluster.write(Put(USER)))
    assert list(state.table.rows(UserRow)) == [USER]
    assert lost == [] and not state.table.notes
    assert "another key" in state.problem


async def test_foreign_records_are_skipped_and_logged(
    cluster: Cluster, state: ClusterState, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.raw(0, (b"k", b"v"), (b'["owner",0]', b"5"))
    cluster.raw(2, (b'["owner",2]', b"not one of ours"), (b"k", b"v"))
    cluster.raw(3, (b'["owner",3]', b'{"node":"a"}'))
    cluster.owner(2, A)
    await state.open()
    assert state.owners == {2: A}
    assert "records of amqpd.shop.meta are not amqpd's and were skipped" in caplog.text


async def test_large_slot_0_does_not_block_the_event_loop(cluster: Cluster, state: ClusterState) -> None:
    """Ten thousand users in one batch are read over many turns of the event loop."""
    cluster.write(*(Put(UserRow(f"user {each}", "h" * 90, "argon2id")) for each in range(10_000)))
    turns = 0

    async def ticking() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            if 0 < len(state.table) < 10_000:
                turns += 1

    ticks = asyncio.create_task(ticking())
    await state.open()
    ticks.cancel()
    assert len(list(state.table.rows(UserRow))) == 10_000
    assert turns > 5


def test_free_slot_has_the_fewest_vhosts() -> None:
    assert free_slot(1, []) == 0
    assert free_slot(64, []) == 1
    assert free_slot(4, [1, 2]) == 3
    assert free_slot(4, [1, 2, 3, 1, 3]) == 2
    assert free_slot(4, [0, 0]) == 1
