"""The steps of a queue's deletion: tombstone, rename of its directory, reply, removal of files, row and marker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.broker.vhost.deletion import DeletionQueue
from amqpd.broker.vhost.recovery import RecoveryFindings, RecoveryReport
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.rows import Change, Delete, Put, QueueRow, VhostRow
from amqpd.storage.metadata.store import MetadataClosed
from amqpd.storage.storage import Storage

ROUTE = RecordRoute(b"", b"q")
VHOST = VhostRow("/", "v")
HOST: Any = SimpleNamespace(vhost_id=VHOST.id)


class DeletionSteps:
    """A storage without threads, and a log of the steps of deletions with the directories at each step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.seen: list[Any] = []
        self.closed = False
        self.storage = Storage(path, post=lambda call, *given: self.posted.append((call, given)), inline=True)
        self.deletions = DeletionQueue(self.storage, self, self.remove, lambda count: self.record("counted", count))  # type: ignore[arg-type]

    def record(self, step: str, detail: object = None) -> None:
        self.seen.append((step, detail, sorted(path.name for path in self.path.glob("vhosts/v*/queues/*"))))

    def remove(self, changes: Sequence[Change], on_removed: Callable[[], None], done: object) -> None:
        """Commit at once."""
        self.record("forgotten", changes)
        on_removed()

    def submit(self, changes: Sequence[Change], done: Callable[[BaseException | None], None]) -> None:
        self.record("submitted", list(changes))
        self.posted.append((done, (None,)))

    def checkpoint(self, done: Callable[[BaseException | None], None]) -> None:
        if self.closed:
            raise MetadataClosed
        self.record("checkpoint")
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

    def step_names(self) -> list[str]:
        return [step for step, _, _ in self.seen]


@pytest.fixture
def steps(tmp_path: Path) -> DeletionSteps:
    return DeletionSteps(tmp_path)


@pytest.mark.parametrize("filled", [True, False])
def test_steps_of_queue_deletion(steps: DeletionSteps, filled: bool) -> None:
    """A queue without a directory gets a marker too: its row may reappear and must be recognized as deleted."""
    queue = steps.queue("q", filled=filled)
    steps.deletions.drop([queue], lambda: steps.record("answered"))
    assert queue.backing.store is None
    assert steps.seen == [], "no reply before the rename is safe"
    steps.run()
    marker = [f"{queue.id}.deleted"]
    row = QueueRow("/", "q", queue.id)
    assert steps.seen == [("counted", 1, marker), ("answered", None, marker), ("forgotten", [Delete(row)], marker)]
    assert list(steps.path.glob("vhosts/v/queues/*/*")) == [], "its files are removed"
    steps.deletions.tidy()
    steps.run()
    assert steps.step_names()[3:] == ["checkpoint"]
    assert list(steps.path.glob("vhosts/v/queues/*")) == []
    steps.deletions.tidy()
    assert steps.step_names()[4:] == [], "nothing is left to do"


def test_waiting_renames_share_one_sync(steps: DeletionSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [steps.queue(f"q{number}") for number in range(5)]
    synced: list[str] = []
    monkeypatch.setattr(steps.storage.filesystem, "fsync_dir", synced.append)
    for queue in queues:
        steps.deletions.drop([queue], lambda: None)
    steps.run()
    assert len(synced) == 2, "one sync for the first, one for the four that waited"
    assert len(list(steps.path.glob("vhosts/v/queues/*.deleted"))) == 5


def test_transient_queue_is_counted_and_answered_at_once(steps: DeletionSteps) -> None:
    queue: Any = SimpleNamespace(name="t", id="", backing=SimpleNamespace(store=None), vhost_name=VHOST.name, host=HOST)
    steps.deletions.drop([queue, queue], lambda: steps.record("answered"))
    assert steps.step_names() == ["counted", "answered"]
    assert steps.seen[0][1] == 2


def test_marker_remains_if_metadata_is_closed(steps: DeletionSteps) -> None:
    queue = steps.queue("q")
    steps.deletions.drop([queue], lambda: None)
    steps.run()
    steps.closed = True
    steps.deletions.tidy()
    assert [path.name for path in steps.path.glob("vhosts/v/queues/*")] == [f"{queue.id}.deleted"]


def test_failed_rename_is_logged_and_client_is_answered(
    steps: DeletionSteps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata has the tombstone, so the queue stays deleted."""
    queue = steps.queue("q")

    def broken(source: str, target: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(steps.storage.filesystem, "rename", broken)
        steps.deletions.drop([queue], lambda: steps.record("answered"))
        steps.run()
        assert "answered" in steps.step_names()
        assert "only the metadata has its deletion" in caplog.text
        steps.deletions.tidy()
        steps.run()
    assert "forgotten" not in steps.step_names(), "its row keeps the next start from restoring the queue"
    steps.deletions.tidy()
    steps.run()
    assert steps.step_names()[-1] == "forgotten"
    assert [path.name for path in steps.path.glob("vhosts/v/queues/*")] == [f"{queue.id}.deleted"]
    assert list(steps.path.glob("vhosts/v/queues/*/*")) == []


@pytest.mark.parametrize("filled", [True, False])
def test_row_is_deleted_after_the_rename_is_synced(
    steps: DeletionSteps, monkeypatch: pytest.MonkeyPatch, filled: bool
) -> None:
    """A power cut may undo a rename whose sync failed. Without its row, the next start would restore the queue."""
    queue = steps.queue("q", filled=filled)
    synced: list[str] = []

    def broken(path: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(steps.storage.filesystem, "fsync_dir", broken)
        steps.deletions.drop([queue], lambda: steps.record("answered"))
        steps.run()
        assert "answered" in steps.step_names()
        steps.deletions.tidy()
        steps.run()
    assert "forgotten" not in steps.step_names()
    monkeypatch.setattr(steps.storage.filesystem, "fsync_dir", synced.append)
    steps.deletions.tidy()
    steps.run()
    assert steps.step_names()[-1] == "forgotten"
    assert synced == [str(steps.path / path) for path in (".", "vhosts", "vhosts/v", "vhosts/v/queues")]
    assert [path.name for path in steps.path.glob("vhosts/v/queues/*")] == [f"{queue.id}.deleted"]


def test_marker_of_a_queue_without_directory_is_made_later(
    steps: DeletionSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = steps.queue("q", filled=False)

    def full(path: str) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(steps.storage.filesystem, "mkdir", full)
        steps.deletions.drop([queue], lambda: None)
        steps.run()
    assert steps.step_names() == ["counted"]
    steps.deletions.tidy()
    steps.run()
    assert steps.step_names() == ["counted", "forgotten"]
    assert [path.name for path in steps.path.glob("vhosts/v/queues/*")] == [f"{queue.id}.deleted"]


def test_vhost_is_deleted_with_one_rename(steps: DeletionSteps) -> None:
    queues = [steps.queue(f"q{number}") for number in range(3)]
    steps.deletions.drop_vhost(VHOST, queues, lambda: steps.record("answered"))
    assert steps.seen == []
    steps.run()
    assert steps.step_names() == ["counted", "answered"]
    assert steps.seen[0][1] == 3
    assert [path.name for path in steps.path.glob("vhosts/*")] == ["v.deleted"]
    assert list(steps.path.glob("vhosts/v.deleted/*")) == []
    assert all(queue.backing.store is None for queue in queues)


def test_startup_finishes_interrupted_deletion(steps: DeletionSteps) -> None:
    queue = steps.queue("q")
    row = QueueRow("/", "q", queue.id, state="deleting")
    steps.deletions.finish("v", row)
    steps.run()
    assert steps.seen == [("forgotten", [Delete(row)], [f"{queue.id}.deleted"])]
    assert list(steps.path.glob("vhosts/v/queues/*/*")) == []


def test_startup_empties_deleted_directory_after_commit(steps: DeletionSteps) -> None:
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
