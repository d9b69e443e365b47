"""The order of a deletion: tombstone, name, answer, files, row, and in the end the name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.broker.vhost.deletion import DeletionQueue
from amqpd.broker.vhost.recovery import RecoveryFindings, RecoveryReport
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.store import Change, Delete, MetadataClosed, Put, QueueRow, VhostRow
from amqpd.storage.storage import Storage

ROUTE = RecordRoute(b"", b"q")
VHOST = VhostRow("/", "v")
HOST: Any = SimpleNamespace(vhost_id=VHOST.id)


class Steps:
    """A storage that does everything when it is asked to, and what became of it, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.seen: list[Any] = []
        self.closed = False
        self.storage = Storage(path, post=lambda call, *given: self.posted.append((call, given)), inline=True)
        self.deletions = DeletionQueue(self.storage, self, self.remove, lambda count: self.see("counted", count))  # type: ignore[arg-type]

    def see(self, what: str, more: object = None) -> None:
        self.seen.append((what, more, sorted(path.name for path in self.path.glob("vhosts/v*/queues/*"))))

    def remove(self, changes: Sequence[Change], gone: Callable[[], None], done: object) -> None:
        """Commits at once."""
        self.see("forgotten", changes)
        gone()

    def submit(self, changes: Sequence[Change], done: Callable[[BaseException | None], None]) -> None:
        self.see("submitted", list(changes))
        self.posted.append((done, (None,)))

    def checkpoint(self, done: Callable[[BaseException | None], None]) -> None:
        if self.closed:
            raise MetadataClosed
        self.see("checkpoint")
        self.posted.append((done, (None,)))

    def queue(self, name: str, *, filled: bool = True) -> Any:
        queue_id, store = self.storage.create_queue("v", name, "/")
        if filled:
            store.append_parts(ROUTE, b"", b"x", True)
            self.storage.commits.end_of_turn()
        backing = SimpleNamespace(store=store)
        return SimpleNamespace(name=name, id=queue_id, backing=backing, vhost_name=VHOST.name, host=HOST)

    def run(self) -> None:
        while self.posted:
            call, given = self.posted.pop(0)
            call(*given)

    def names(self) -> list[str]:
        return [what for what, _, _ in self.seen]


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


@pytest.mark.parametrize("filled", [True, False])
def test_a_queue_leaves_in_this_order(steps: Steps, filled: bool) -> None:
    """Also one that never had a directory: its row may come back, and must find that it is void."""
    queue = steps.queue("q", filled=filled)
    steps.deletions.drop([queue], lambda: steps.see("answered"))
    assert queue.backing.store is None
    assert steps.seen == [], "nobody is answered before the name is safe"
    steps.run()
    marker = [f"{queue.id}.deleted"]
    row = QueueRow("/", "q", queue.id)
    assert steps.seen == [("counted", 1, marker), ("answered", None, marker), ("forgotten", [Delete(row)], marker)]
    assert list(steps.path.glob("vhosts/v/queues/*/*")) == [], "its files are gone"
    steps.deletions.tidy()
    steps.run()
    assert steps.names()[3:] == ["checkpoint"]
    assert list(steps.path.glob("vhosts/v/queues/*")) == []
    steps.deletions.tidy()
    assert steps.names()[4:] == [], "there is nothing left to do"


def test_many_are_renamed_together(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [steps.queue(f"q{number}") for number in range(5)]
    synced: list[str] = []
    monkeypatch.setattr(steps.storage.filesystem, "fsync_dir", synced.append)
    for queue in queues:
        steps.deletions.drop([queue], lambda: None)
    steps.run()
    assert len(synced) == 2, "the first by itself, and those that had gathered"
    assert len(list(steps.path.glob("vhosts/v/queues/*.deleted"))) == 5


def test_a_transient_queue_is_counted_and_gone(steps: Steps) -> None:
    queue: Any = SimpleNamespace(name="t", id="", backing=SimpleNamespace(store=None), vhost_name=VHOST.name, host=HOST)
    steps.deletions.drop([queue, queue], lambda: steps.see("answered"))
    assert steps.names() == ["counted", "answered"]
    assert steps.seen[0][1] == 2


def test_what_is_waiting_when_the_broker_stops_waits_for_the_next_start(steps: Steps) -> None:
    queue = steps.queue("q")
    steps.deletions.drop([queue], lambda: None)
    steps.run()
    steps.closed = True
    steps.deletions.tidy()
    assert [path.name for path in steps.path.glob("vhosts/v/queues/*")] == [f"{queue.id}.deleted"]


def test_a_name_that_cannot_be_changed_costs_nobody_the_answer(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tombstone is committed: that alone keeps it deleted then."""
    queue = steps.queue("q")

    def broken(source: str, target: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(steps.storage.filesystem, "rename", broken)
    steps.deletions.drop([queue], lambda: steps.see("answered"))
    steps.run()
    assert "answered" in steps.names()
    assert "only the metadata has its deletion" in caplog.text


def test_a_vhost_leaves_with_one_rename(steps: Steps) -> None:
    queues = [steps.queue(f"q{number}") for number in range(3)]
    steps.deletions.drop_vhost(VHOST, queues, lambda: steps.see("answered"))
    assert steps.seen == []
    steps.run()
    assert steps.names() == ["counted", "answered"]
    assert steps.seen[0][1] == 3
    assert [path.name for path in steps.path.glob("vhosts/*")] == ["v.deleted"]
    assert list(steps.path.glob("vhosts/v.deleted/*")) == []
    assert all(queue.backing.store is None for queue in queues)


def test_a_start_finishes_what_a_crash_cut_short(steps: Steps) -> None:
    queue = steps.queue("q")
    row = QueueRow("/", "q", queue.id, state="deleting")
    steps.deletions.finish("v", row)
    steps.run()
    assert steps.seen == [("forgotten", [Delete(row)], [f"{queue.id}.deleted"])]
    assert list(steps.path.glob("vhosts/v/queues/*/*")) == []


def test_a_start_empties_what_is_void_once_its_row_is_gone(steps: Steps) -> None:
    directory = steps.path / "vhosts/v/queues/0a.deleted"
    directory.mkdir(parents=True)
    (directory / "log").touch()
    row = QueueRow("/", "q", "0a")
    state: Any = None
    changes: list[Change] = [Delete(row), Put(QueueRow("/", "r", "0b"))]
    steps.deletions.take_over(RecoveryFindings(state, changes, [str(directory.with_suffix(""))], [], RecoveryReport()))
    assert (directory / "log").exists()
    steps.run()
    assert steps.seen == [("submitted", changes, ["0a.deleted"])]
    assert list(directory.iterdir()) == []
