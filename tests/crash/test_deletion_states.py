"""Crashes at every step of the deletion of a queue and of a vhost, also with a loss of metadata.

At each step: a kill and power cuts, each with metadata that lost any part of their tail, or everything. Deletions that
were answered must stay, and everything else must still be there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from states_disk import Disk, Image

from amqpd.broker.vhost.deletion import DeletionQueue
from amqpd.broker.vhost.recovery import reconcile
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.rows import Change, Delete, Put, QueueRow, Row, VhostRow
from amqpd.storage.metadata.store import MetadataState
from amqpd.storage.storage import Storage

VHOST = VhostRow("shop", "a" * 32)
OTHER_VHOST = VhostRow("/", "b" * 32)
ROUTE = RecordRoute(b"", b"q")
Rows = dict[tuple[str, str], Row]


pytestmark = pytest.mark.usefixtures("quiet")


def key(row: Row) -> tuple[str, str]:
    return (type(row).__name__, row.id if isinstance(row, QueueRow) else row.name)  # type: ignore[union-attr]


def apply_change(rows: Rows, change: Change) -> Rows:
    rows = dict(rows)
    assert isinstance(change, Put | Delete)
    if isinstance(change, Put):
        rows[key(change.row)] = change.row
    else:
        rows.pop(key(change.row), None)
        if isinstance(change.row, VhostRow):  # the database cascades in the same way
            rows = {name: row for name, row in rows.items() if getattr(row, "vhost", "") != change.row.name}
    return rows


def state_of(rows: Rows) -> MetadataState:
    vhosts = [row for row in rows.values() if isinstance(row, VhostRow)]
    deleting = {row.name for row in vhosts if row.state == "deleting"}
    queues = [row for row in rows.values() if isinstance(row, QueueRow) and row.vhost not in deleting]
    empty: dict[str, Any] = {name: [] for name in MetadataState._fields}
    return MetadataState(
        **{
            **empty,
            "instance_id": "",
            "vhosts": [row for row in vhosts if row.state == "live"],
            "deleting_vhosts": [row for row in vhosts if row.state == "deleting"],
            "queues": [row for row in queues if row.state == "live"],
            "deleting_queues": [row for row in queues if row.state == "deleting"],
        }
    )


class DeletionHarness:
    """Deletions over a disk that crashes at each step.

    history: the states of the metadata since the last checkpoint, oldest first; a start may find any of them, or none
    of the rows.
    """

    def __init__(self) -> None:
        self.disk = Disk({"/data": None})
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.storage = Storage(
            "/data", post=lambda call, *given: self.posted.append((call, given)), filesystem=self.disk, inline=True
        )
        self.rows: Rows = {}
        self.history: list[Rows] = [{}]
        self.deleted: set[str] = set()  # deletions that were answered
        self.checked = 0
        self.deletions = DeletionQueue(self.storage, self, self.remove, lambda count: None)  # type: ignore[arg-type]

    def commit(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.rows = apply_change(self.rows, change)
        self.history.append(self.rows)
        self.disk.changed()

    def remove(self, changes: Sequence[Change], deleted: Callable[[], None], done: object) -> None:
        self.commit(changes)
        deleted()

    def checkpoint(self, done: Callable[[BaseException | None], None]) -> None:
        self.history = [self.rows]
        self.posted.append((done, (None,)))

    def queue(self, name: str, vhost: VhostRow) -> Any:
        queue_id, store = self.storage.create_queue(vhost.id, name, vhost.name)
        self.commit([Put(QueueRow(vhost.name, name, queue_id))])
        store.append_parts(ROUTE, b"", name.encode(), True)
        self.storage.commits.end_of_turn()
        self.run()
        host = SimpleNamespace(vhost_id=vhost.id)
        backing = SimpleNamespace(store=store)
        return SimpleNamespace(name=name, id=queue_id, backing=backing, vhost_name=vhost.name, host=host)

    def run(self) -> None:
        while self.posted:
            call, given = self.posted.pop(0)
            call(*given)

    def crash(self) -> None:
        """Start from every disk image of this step with every state that the metadata may have."""
        rng = random.Random(self.checked)
        for image in [self.disk.image(), *self.disk.images(rng, 2)]:
            for rows in [*self.history, {key(OTHER_VHOST): OTHER_VHOST}]:
                self.start(image, rows)

    def start(self, image: Image, rows: Rows) -> None:
        self.checked += 1
        storage = Storage("/data", post=lambda *_: None, filesystem=Disk(image), inline=True)
        state = reconcile(storage, state_of(rows)).state
        found_rows = {row.name: row for row in state.queues}
        vhosts = {row.name: row.id for row in state.vhosts}
        restored = self.deleted.intersection(found_rows) | self.deleted.intersection(vhosts)
        assert not restored, f"{restored} are there again, with {rows}"
        for name in ("kept", "other"):
            assert name in found_rows, f"{name} is not there, with {rows}"
            row = found_rows[name]
            record = storage.open_queue(vhosts[row.vhost], row.id, name).cursor.read_one(0)
            assert record is not None and record.body == name.encode(), f"{name} is empty, with {rows}"


@pytest.fixture
def harness() -> DeletionHarness:
    harness = DeletionHarness()
    harness.commit([Put(OTHER_VHOST), Put(VHOST)])
    return harness


def test_deleted_queue_stays_deleted_over_crash_at_every_step(harness: DeletionHarness) -> None:
    harness.queue("kept", VHOST)
    harness.queue("other", OTHER_VHOST)
    queue = harness.queue("q", VHOST)
    harness.history = [harness.rows]  # the database file already holds all of this
    harness.disk.watch = harness.crash
    row = QueueRow("shop", "q", queue.id, state="deleting")
    harness.commit([Put(row)])
    harness.deletions.drop([queue], lambda: harness.deleted.add("q"))
    harness.run()
    assert harness.deleted == {"q"}
    harness.crash()
    harness.deletions.tidy()
    harness.run()
    harness.crash()
    assert harness.checked > 100
    assert not [path for path in harness.disk.entries if queue.id in path]


@pytest.mark.slow
def test_deleted_vhost_stays_deleted_over_crash_at_every_step(harness: DeletionHarness) -> None:
    """The vhost has two queues; `kept` and `other` are in another vhost."""
    harness.queue("kept", OTHER_VHOST)
    harness.queue("other", OTHER_VHOST)
    queues = [harness.queue("q", VHOST), harness.queue("r", VHOST)]
    harness.history = [harness.rows]
    harness.disk.watch = harness.crash
    harness.commit([Put(VHOST._replace(state="deleting"))])

    def answered() -> None:
        harness.deleted |= {"q", "r", "shop"}
        harness.commit([Delete(VHOST)])

    harness.deletions.drop_vhost(VHOST, queues, answered)
    harness.run()
    assert harness.deleted == {"q", "r", "shop"}
    harness.crash()
    harness.deletions.tidy()
    harness.run()
    harness.crash()
    assert harness.checked > 50
    assert not [path for path in harness.disk.entries if VHOST.id in path]


def test_check_finds_deletion_without_directory_rename(
    harness: DeletionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect that this module must find."""
    monkeypatch.setattr("amqpd.storage.directory_removal.DirectoryRemover._rename", lambda departures, chains: None)
    with pytest.raises(AssertionError, match="are there again"):
        test_deleted_queue_stays_deleted_over_crash_at_every_step(harness)
