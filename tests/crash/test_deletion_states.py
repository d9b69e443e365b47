"""A kill and a power cut at every step of a queue's and of a vhost's deletion, then metadata that have lost any part of
their tail, or all: what was answered stays deleted, what was not deleted is there.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from states_disk import Disk, Image

from amqpd.broker.vhost.deletion import DeletionQueue
from amqpd.broker.vhost.recovery import reconcile
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.store import Change, Delete, MetadataState, Put, QueueRow, Row, VhostRow
from amqpd.storage.storage import Storage

VHOST = VhostRow("shop", "a" * 32)
OTHER = VhostRow("/", "b" * 32)
ROUTE = RecordRoute(b"", b"q")
Rows = dict[tuple[str, str], Row]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def key(row: Row) -> tuple[str, str]:
    return (type(row).__name__, row.id if isinstance(row, QueueRow) else row.name)  # type: ignore[union-attr]


def applied(rows: Rows, change: Change) -> Rows:
    rows = dict(rows)
    assert isinstance(change, Put | Delete)
    if isinstance(change, Put):
        rows[key(change.row)] = change.row
    else:
        rows.pop(key(change.row), None)
        if isinstance(change.row, VhostRow):  # as the database does
            rows = {name: row for name, row in rows.items() if getattr(row, "vhost", "") != change.row.name}
    return rows


def state_of(rows: Rows) -> MetadataState:
    vhosts = [row for row in rows.values() if isinstance(row, VhostRow)]
    leaving = {row.name for row in vhosts if row.state == "deleting"}
    queues = [row for row in rows.values() if isinstance(row, QueueRow) and row.vhost not in leaving]
    empty: dict[str, Any] = {name: [] for name in MetadataState._fields}
    return MetadataState(
        **{
            **empty,
            "instance_id": "",
            "fresh": False,
            "vhosts": [row for row in vhosts if row.state == "live"],
            "deleting_vhosts": [row for row in vhosts if row.state == "deleting"],
            "queues": [row for row in queues if row.state == "live"],
            "deleting_queues": [row for row in queues if row.state == "deleting"],
        }
    )


class House:
    """A broker's deletions over a disk that is crashed at each step. history: the metadata since the last checkpoint,
    newest last: a database may be found as any of them. lost: the first of them is that of nothing at all.
    """

    def __init__(self) -> None:
        self.disk = Disk({"/data": None})
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.storage = Storage(
            "/data", post=lambda call, *given: self.posted.append((call, given)), filesystem=self.disk, inline=True
        )
        self.rows: Rows = {}
        self.history: list[Rows] = [{}]
        self.gone: set[str] = set()  # answered
        self.checked = 0
        self.deletions = DeletionQueue(self.storage, self, self.remove, lambda count: None)  # type: ignore[arg-type]

    def commit(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.rows = applied(self.rows, change)
        self.history.append(self.rows)
        self.disk.changed()

    def remove(self, changes: Sequence[Change], gone: Callable[[], None], done: object) -> None:
        self.commit(changes)
        gone()

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
        """Every image of this step with everything that the metadata may have lost."""
        chance = random.Random(self.checked)
        for image in [self.disk.image(), *self.disk.images(chance, 2)]:
            for rows in [*self.history, {key(OTHER): OTHER}]:
                self.start(image, rows)

    def start(self, image: Image, rows: Rows) -> None:
        self.checked += 1
        storage = Storage("/data", post=lambda *_: None, filesystem=Disk(image), inline=True)
        found = reconcile(storage, state_of(rows)).state
        there = {row.name: row for row in found.queues}
        vhosts = {row.name: row.id for row in found.vhosts}
        back = self.gone.intersection(there) | self.gone.intersection(vhosts)
        assert not back, f"{back} came back, with {rows}"
        for name in ("kept", "other"):
            assert name in there, f"{name} is not there, with {rows}"
            row = there[name]
            record = storage.open_queue(vhosts[row.vhost], row.id, name).cursor.read_one(0)
            assert record is not None and record.body == name.encode(), f"{name} is empty, with {rows}"


@pytest.fixture
def house() -> House:
    house = House()
    house.commit([Put(OTHER), Put(VHOST)])
    return house


def test_a_queue(house: House) -> None:
    house.queue("kept", VHOST)
    house.queue("other", OTHER)
    queue = house.queue("q", VHOST)
    house.history = [house.rows]  # all that was in the database's own file before
    house.disk.watch = house.crash
    row = QueueRow("shop", "q", queue.id, state="deleting")
    house.commit([Put(row)])
    house.deletions.drop([queue], lambda: house.gone.add("q"))
    house.run()
    assert house.gone == {"q"}
    house.crash()
    house.deletions.tidy()
    house.run()
    house.crash()
    assert house.checked > 100
    assert not [path for path in house.disk.entries if queue.id in path]


@pytest.mark.slow
def test_a_vhost(house: House) -> None:
    """With two queues; `kept` and `other` are elsewhere."""
    house.queue("kept", OTHER)
    house.queue("other", OTHER)
    queues = [house.queue("q", VHOST), house.queue("r", VHOST)]
    house.history = [house.rows]
    house.disk.watch = house.crash
    house.commit([Put(VHOST._replace(state="deleting"))])

    def answered() -> None:
        house.gone |= {"q", "r", "shop"}
        house.commit([Delete(VHOST)])

    house.deletions.drop_vhost(VHOST, queues, answered)
    house.run()
    assert house.gone == {"q", "r", "shop"}
    house.crash()
    house.deletions.tidy()
    house.run()
    house.crash()
    assert house.checked > 50
    assert not [path for path in house.disk.entries if VHOST.id in path]


def test_without_the_rename_they_come_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this file is there to see."""
    monkeypatch.setattr("amqpd.storage.directory_removal.DirectoryRemover._rename", lambda departures, chains: None)
    with pytest.raises(AssertionError, match="came back"):
        test_a_queue(house)
