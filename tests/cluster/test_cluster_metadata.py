"""Cluster metadata of two nodes over one Kafka: each write goes to the owner of its slot and is known on both nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from fake_kafka import FakeKafka
from slot_of import META, SETTLED, FakeTopics, Slot, topic_name, until

from amqpd.auth.internal_backend import AuthChange, AuthenticationRefused, InternalBackend
from amqpd.auth.passwords import ARGON2ID
from amqpd.cluster import metadata
from amqpd.cluster.metadata import ClusterMetadata
from amqpd.cluster.row_codec import SlotChange, changes_from_json, changes_to_json
from amqpd.cluster.state import ClusterState, Owner
from amqpd.storage.metadata.rows import (
    Change,
    Delete,
    DeleteBindings,
    ExchangeRow,
    GlobalParameterRow,
    PermissionRow,
    Put,
    QueueRow,
    StoredOffsetRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.store import MetadataClosed, MetadataError, WriteFailed

SLOTS = 4
VHOST = VhostRow("/", "v" * 32)
OTHER = VhostRow("shop", "w" * 32)
USER = UserRow("guest", "hash", "argon2id")


def _owner(node: str) -> Owner:
    return Owner(node, "h:1", "f", 1, 1, 1)


class Node:
    """One of two nodes. forwarded: the changes that it sent to the owner of slot 0."""

    def __init__(self, name: str, fake: FakeKafka, directory: Path, topics: FakeTopics) -> None:
        self.name = name
        self.fake = fake
        self.directory = directory
        self.topics = topics
        self.other: Node
        self.forwarded: list[Sequence[SlotChange]] = []
        self.state = ClusterState(fake.access, META, SLOTS)
        self.metadata = ClusterMetadata(self.state, name, self._forward)
        self.slots: list[Slot] = []

    async def _forward(self, changes: Sequence[SlotChange]) -> int:
        self.forwarded.append(changes)
        return await self.other.metadata.write_forwarded(
            changes_from_json(json.loads(json.dumps(changes_to_json(changes))))
        )

    async def take(self, number: int, *vhosts: VhostRow) -> Slot:
        self.directory.mkdir(exist_ok=True)
        slot = Slot(self.fake.access, self.topics, self.directory / f"{number}", number, vhosts, slots=SLOTS)
        await slot.take()
        self.slots.append(slot)
        self.metadata.add_slot(number, slot.rows)
        return slot

    async def submit(self, *changes: Change) -> None:
        """Submit and wait. Raises: the error that `done` is called with."""
        result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if error is None:
                result.set_result(None)
            else:
                result.set_exception(error)

        self.metadata.submit(changes, done)
        await result

    async def close(self) -> None:
        self.metadata.close()
        for slot in self.slots:
            await slot.close()
        await self.state.close()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Node a owns slots 0 and 1, node b owns slot 2. Vhost `/` is in slot 1, `shop` in slot 2."""
    async with FakeKafka(brokers=2) as fake:
        fake.create(META, SLOTS)
        fake.create(SETTLED, SLOTS)
        topics = FakeTopics(fake)
        a, b = (Node(name, fake, tmp_path / name, topics) for name in "ab")
        a.other, b.other = b, a
        for node in (a, b):
            await node.state.open()
        await a.take(0)
        await a.submit(Put(VHOST))
        await b.submit(Put(OTHER))
        await a.take(1, VHOST)
        await b.take(2, OTHER)
        yield a, b
        for node in (a, b):
            await node.close()


Submit = Callable[..., Awaitable[None]]


async def test_cluster_rows_are_written_by_slot_0_and_known_on_both_nodes(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    assert [(row.name, a.state.slot_of(row.name)) for row in a.state.vhosts()] == [("/", 1), ("shop", 2)]
    await b.submit(Put(USER))
    assert b.forwarded[-1] == [Put(USER)]
    for node in (a, b):
        await node.state.wait_caught_up()
        assert node.state.table.row(USER) == USER
    await a.submit(Put(PermissionRow("guest", "shop", "a", "b", "c")), Put(GlobalParameterRow("p", "1")))
    assert a.forwarded == []
    await b.state.wait_caught_up()
    assert b.metadata.open().permissions == [PermissionRow("guest", "shop", "a", "b", "c")]
    assert b.metadata.open().global_parameters == [GlobalParameterRow("p", "1")]
    await b.submit(Delete(USER))
    await a.state.wait_caught_up()
    assert a.metadata.open().permissions == []
    with pytest.raises(WriteFailed, match="there is no 'nobody' in users"):
        await b.submit(Put(PermissionRow("nobody", "/", "", "", "")))


async def test_rows_of_a_vhost_are_written_by_its_owner_only(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    queue = QueueRow("/", "q", "1" * 32)
    await a.submit(Put(queue), Put(ExchangeRow("/", "x", "topic")))
    await a.submit(Put(StoredOffsetRow(queue.id, "c", 5, 0)))
    await a.submit(DeleteBindings("/", "q", "queue"))
    assert a.slots[1].rows.table.row(queue) == queue
    assert b.forwarded[1:] == []
    with pytest.raises(WriteFailed, match="vhost '/' is not served by this node: it is moving"):
        await b.submit(Put(queue))
    b.state.owners[1] = _owner("a")
    with pytest.raises(WriteFailed, match="vhost '/' is not served by this node: node a serves it"):
        await b.submit(Delete(queue))
    with pytest.raises(WriteFailed, match="vhost 'none' is not there"):
        await a.submit(Put(ExchangeRow("none", "x", "topic")))
    with pytest.raises(WriteFailed, match="its queue is not on this node"):
        await b.submit(Put(StoredOffsetRow(queue.id, "c", 5, 0)))


async def test_new_vhosts_go_to_the_slots_with_fewest_vhosts(nodes: tuple[Node, Node]) -> None:
    _, b = nodes
    rows = [VhostRow(f"v{number}", f"{number:032x}") for number in range(4)]
    await asyncio.gather(*(b.submit(Put(row)) for row in rows[:2]))
    await b.submit(Put(rows[2]), Put(rows[3]))
    slots = sorted(b.state.slot_of(row.name) or 0 for row in b.state.vhosts())
    assert slots == [1, 1, 2, 2, 3, 3]


async def test_second_vhost_of_a_name_is_refused(nodes: tuple[Node, Node]) -> None:
    """Only the owner of slot 0 knows which vhost names are taken."""
    a, b = nodes
    again = VhostRow("/", "z" * 32)
    with pytest.raises(WriteFailed, match="vhost '/' exists already"):
        await b.submit(Put(again))
    await b.submit(Put(VHOST._replace(description="the first")))
    assert b.state.vhost("/") == VHOST._replace(description="the first")
    await a.submit(Put(VHOST._replace(state="deleting")))
    with pytest.raises(WriteFailed, match="vhost '/' is being deleted"):
        await b.submit(Put(again))
    await a.submit(Delete(VHOST))
    await b.submit(Put(again))
    await a.metadata.write_cluster([Delete(VHOST)])  # a late repeat of the first deletion
    await a.state.wait_caught_up()
    assert a.state.vhost("/") == again
    assert a.state.slot_of("/") is not None


async def test_deleting_a_vhost_deletes_its_queues_and_its_topic(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    await b.submit(*(Put(QueueRow("shop", f"q{number}", f"{number:032x}")) for number in range(3)))
    assert topic_name(OTHER.id) in b.fake.topics
    await b.submit(Put(OTHER._replace(state="deleting")))
    await b.submit(Delete(OTHER))
    assert len(b.slots[0].rows.table) == 0
    assert b.slots[0].placement.places == {}
    assert topic_name(OTHER.id) not in b.fake.topics
    for node in (a, b):
        await node.state.wait_caught_up()
        assert node.state.vhost("shop") is None
        assert node.state.slot_of("shop") is None


async def test_delete_by_another_node_only_marks_the_vhost_as_deleting(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    await a.submit(Delete(OTHER))
    await b.state.wait_caught_up()
    assert b.state.vhost("shop") == OTHER._replace(state="deleting")
    assert b.state.slot_of("shop") == 2


async def test_import_of_a_vhost_with_contents_creates_only_the_vhost(nodes: tuple[Node, Node]) -> None:
    """An import: the vhost is created, but its contents are refused because this node does not own its slot."""
    a, b = nodes
    new = VhostRow("new", "n" * 32)
    with pytest.raises(WriteFailed, match="vhost 'new' is not served by this node"):
        await a.submit(Put(new), Put(ExchangeRow("new", "x", "topic")))
    assert a.state.vhost("new") == new
    await a.submit(Delete(new), Put(USER))  # deletion without an owner: the next owner completes it
    assert b.state.slot_of("new") == 3


async def test_submissions_are_answered_in_order(nodes: tuple[Node, Node]) -> None:
    _, b = nodes
    order: list[int] = []
    for number in range(50):
        b.metadata.submit([Put(UserRow(f"u{number}", "", ""))], lambda _, number=number: order.append(number))  # type: ignore[misc]
    await until(lambda: len(order) == 50)
    assert order == list(range(50))


async def test_write_fails_when_no_node_owns_slot_0(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = nodes
    monkeypatch.setattr(metadata, "OWNER_TIMEOUT_S", 0.2)
    a.metadata.remove_slot(0, "the slot was given up")
    with pytest.raises(metadata.NotOwner, match="node a does not own slot 0"):
        await b.submit(Put(USER))


async def test_cluster_write_waits_for_the_next_owner_of_slot_0(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    a.metadata.remove_slot(0, "the slot was given up")
    waiting = [asyncio.create_task(node.submit(Put(UserRow(node.name, "", "")))) for node in nodes]
    await until(lambda: b.forwarded[1:])
    slot = await b.take(0)
    await slot.rows.write([_owner("b").note(0)])
    await asyncio.gather(*waiting)
    await a.state.wait_caught_up()
    assert {row.name for row in a.metadata.open().users} == {"a", "b"}, "a user of one node is missing"


async def test_metadata_behaves_like_a_database(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    a, b = nodes
    results: list[object] = []
    exchange = Put(ExchangeRow("/", "x", "topic"))
    a.metadata.submit([exchange], lambda error: results.append(("first", error)))
    a.metadata.checkpoint(lambda error: results.append(("checkpoint", error)))
    a.metadata.submit([], lambda error: results.append(("nothing", error)))
    await until(lambda: len(results) == 3)
    assert sorted(map(str, results)) == ["('checkpoint', None)", "('first', None)", "('nothing', None)"]
    assert results.index(("first", None)) < results.index(("checkpoint", None))
    a.metadata.copy(tmp_path / "copy", results.append)
    await until(lambda: len(results) == 4)
    assert isinstance(results[-1], MetadataError)
    waiting: list[BaseException | None] = []
    a.metadata.submit([exchange], waiting.append)
    b.metadata.submit([Put(USER)], waiting.append)
    a.metadata.close()
    b.metadata.close()
    await until(lambda: len(waiting) == 2)
    assert all(isinstance(error, WriteFailed) for error in waiting)
    for node in nodes:
        with pytest.raises(MetadataClosed):
            node.metadata.submit([exchange], waiting.append)


class Backend:
    """The users of a node. Its listener receives the changes that other nodes make."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.changes: list[AuthChange] = []
        state = node.metadata.open()
        self.auth = InternalBackend(node.metadata, state, lambda name: node.state.vhost(name) is not None)
        self.auth.listeners.append(self.changes.append)
        node.state.on_row.append(self._changed)

    def _changed(self, change: Change) -> None:
        assert not isinstance(change, DeleteBindings)
        self.auth.apply_change(change)


async def test_user_created_on_one_node_logs_in_on_the_other(nodes: tuple[Node, Node]) -> None:
    a, b = (Backend(node) for node in nodes)
    await b.auth.add_user("ann", b"secret", tags=["administrator"])
    await b.auth.set_permissions("ann", "/", "^a", "^b", "^c")
    await a.node.state.wait_caught_up()
    user = await a.auth.authenticate("ann", b"secret", True, "")
    assert user.tags == ("administrator",)
    assert a.auth.is_allowed(user, "/", "configure", "abc") and not a.auth.is_allowed(user, "/", "read", "abc")
    await a.auth.change_password("ann", b"other")
    await a.auth.set_tags("ann", ["monitoring"])
    await a.auth.set_topic_permissions("ann", "/", "amq.topic", "^x", "^y")
    await b.node.state.wait_caught_up()
    with pytest.raises(AuthenticationRefused):
        await b.auth.authenticate("ann", b"secret", True, "")
    assert (await b.auth.authenticate("ann", b"other", True, "")).tags == ("monitoring",)
    assert b.auth.has_topic_permissions(user, "/", "amq.topic")
    await b.auth.clear_permissions("ann", "/")
    await b.auth.delete_user("ann")
    await a.node.state.wait_caught_up()
    assert a.auth.users() == [] and b.auth.users() == []
    # each change once, also at the node that made it
    kinds = ["user_added", "permissions", "password", "tags", "topic_permissions", "permissions"]
    assert [change.kind for change in a.changes] == [*kinds, "user_deleted"]
    # b deletes the user after the answer, when it has read that the user's topic permission is deleted
    assert [change.kind for change in b.changes] == [*kinds, "topic_permissions", "user_deleted"]
    for each in (a, b):
        await asyncio.to_thread(each.auth.close)


async def test_concurrent_writes_end_equal_on_both_nodes(nodes: tuple[Node, Node]) -> None:
    """Both nodes set the tags of one user many times at once. Kafka orders the writes: both end with the same tags."""
    a, b = (Backend(node) for node in nodes)
    await a.auth.add_user("ann", password_hash="", hashing_algorithm=ARGON2ID)
    await b.node.state.wait_caught_up()
    for turn in range(10):
        await asyncio.gather(
            *(each.auth.set_tags("ann", [f"{each.node.name}{turn}{try_}"]) for try_ in range(3) for each in (a, b))
        )
        for each in (a, b):
            await each.node.state.wait_caught_up()
        assert a.auth.user("ann") == b.auth.user("ann") == a.node.state.table.row(UserRow("ann", "", ""))
    for each in (a, b):
        each.auth.close()
