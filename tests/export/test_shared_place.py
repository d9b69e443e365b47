"""The state of a shared export in a directory: each version has one writer, also if a writer was paused for long."""

from __future__ import annotations

import errno
import os
import threading
from unittest.mock import Mock

import pytest

from amqpd.storage.export import checkpoint, shared_checkpoint
from amqpd.storage.export.checkpoint import CheckpointError, ExportCheckpoint, create_once, lock_checkpoint
from amqpd.storage.export.claims import StaleOwner
from amqpd.storage.export.shared_checkpoint import SharedCheckpoint, known_export
from amqpd.storage.export.shared_place import VERSIONS, SharedDirectory

WHAT = {"to": "/lake", "columns": ["offset"]}


@pytest.fixture
def place(tmp_path):
    return SharedDirectory(tmp_path)


def write(place, count):
    for _ in range(count):
        found = place.read()
        assert place.replace(os.urandom(8), None if found is None else found[1])


def test_only_one_of_two_writers_of_a_version_succeeds(place):
    assert place.read() is None
    assert place.replace(b"a", None)
    assert not place.replace(b"b", None)
    data, version = place.read()
    assert data == b"a"
    assert place.replace(b"c", version)
    assert not place.replace(b"d", version)
    assert place.read()[0] == b"c"


def test_old_versions_are_removed_and_a_late_writer_of_one_finds_out(place, tmp_path):
    write(place, 3)
    _, late = place.read()
    write(place, VERSIONS + 5)
    assert len(list((tmp_path / "shared").iterdir())) == VERSIONS + 1
    data, _ = place.read()
    assert not place.replace(b"late", late)  # its number is free again
    assert place.read()[0] == data
    second_late = f"4:{late.partition(':')[2]}"
    assert not place.replace(b"late again", second_late)  # the version before is one of a late writer
    assert place.read()[0] == data
    write(place, 1)
    assert len(list((tmp_path / "shared").iterdir())) == VERSIONS + 1


def test_writers_at_one_time_lose_no_change(place):
    assert place.replace(b"0", None)

    def count():
        done = 0
        while done < 20:
            data, version = place.read()
            done += place.replace(b"%d" % (int(data) + 1), version)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.read()[0] == b"80"


def test_link_whose_answer_was_lost_counts(place, monkeypatch):
    """A client of NFS sends a link again if its answer is lost. Then the server says that the name exists."""
    link = os.link

    def linked_twice(*paths):
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", linked_twice)
    assert place.replace(b"a", None)
    _, version = place.read()
    assert place.replace(b"b", version)
    assert not place.replace(b"b", version)
    assert place.read()[0] == b"b"


def test_full_disk_keeps_no_temporary_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        create_once(tmp_path / "name", b"a")
    assert not list(tmp_path.iterdir())


def test_file_system_without_hard_links_is_refused(place, monkeypatch):
    def link(*paths):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(CheckpointError, match="no hard links"):
        place.replace(b"a", None)


def test_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def flock(descriptor, kind):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(checkpoint.fcntl, "flock", flock)
    with pytest.raises(OSError, match="Operation not supported") as raised:
        lock_checkpoint(tmp_path, "export")
    assert raised.value.filename == f"{tmp_path}/lock"


def test_unshared_run_at_a_checkpoint_refuses_a_shared_one(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_checkpoint, "LOCK_S", 0.05)
    lock = lock_checkpoint(tmp_path, "export")
    with pytest.raises(CheckpointError, match="another export uses the checkpoint"):
        SharedCheckpoint(str(tmp_path), WHAT)
    os.close(lock)
    ledger = SharedCheckpoint(str(tmp_path), WHAT)
    ledger.mark_checked()
    ledger.close()
    with pytest.raises(CheckpointError, match="give --share"):
        ExportCheckpoint(tmp_path, WHAT)
    assert known_export(tmp_path).what == WHAT


def test_unshared_checkpoint_becomes_a_shared_one(tmp_path):
    before = ExportCheckpoint(tmp_path, WHAT)
    before.begin({"//q": {"id": "1", "offset": 5}})
    before.close()
    with pytest.raises(CheckpointError, match="run the export once without --share"):
        SharedCheckpoint(str(tmp_path), WHAT)
    before = ExportCheckpoint(tmp_path, WHAT)  # the refusal has changed nothing
    assert before.state.next is not None
    before.state.next.rows = 5
    before.commit()
    before.close()
    with pytest.raises(CheckpointError, match="--to '/lake', not '/other': use another"):
        SharedCheckpoint(str(tmp_path), {**WHAT, "to": "/other"})
    ledger = SharedCheckpoint(str(tmp_path), WHAT)
    assert (ledger.id, ledger.state.batch, ledger.state.rows) == (before.id, 1, 5)
    assert ledger.exported_offset("//q", "1") == 5 and ledger.shared.is_checked
    ledger.close()


def test_export_that_has_begun_nothing_fixes_no_options(tmp_path):
    first = SharedCheckpoint(str(tmp_path), {**WHAT, "to": "/mistake"})
    second = SharedCheckpoint(str(tmp_path), WHAT)
    with pytest.raises(CheckpointError, match="another export has begun"):
        first.mark_checked()
    second.mark_checked()
    for ledger in (first, second):
        ledger.close()
    with pytest.raises(CheckpointError, match="use another --checkpoint"):
        SharedCheckpoint(str(tmp_path), {**WHAT, "to": "/mistake"})


def test_first_schema_counts(tmp_path):
    ledgers = [SharedCheckpoint(str(tmp_path), WHAT) for _ in range(2)]
    assert ledgers[0].schema() is None
    assert [ledger.fix_schema(text) for ledger, text in zip(ledgers, ("a", "b"), strict=True)] == ["a", "a"]
    for ledger in ledgers:
        ledger.close()


def test_damaged_state_is_an_error(tmp_path, place):
    assert place.replace(b"{", None)
    with pytest.raises(CheckpointError, match="is damaged"):
        SharedCheckpoint(str(tmp_path), WHAT)


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_signs_of_life_that_cannot_be_written_are_logged_once(tmp_path, monkeypatch, caplog, kind):
    done = threading.Event()
    attempts = []

    def beat(place, token, count):
        attempts.append(token)
        if len(attempts) < 4:
            raise kind("stale file handle")
        done.set()

    monkeypatch.setattr(SharedDirectory, "beat", beat)
    ledger = SharedCheckpoint(str(tmp_path), WHAT, 0.01)
    ledger.life.work_for("t")
    assert done.wait(60)
    ledger.close()
    assert set(attempts) == {"t"}
    assert [record.getMessage() for record in caplog.records] == [
        "no sign of life was written: another process may take over the batch: stale file handle"
    ]


def test_local_directories_of_killed_processes_are_removed_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_checkpoint.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "amqpd-export-messages").mkdir()  # a user's
    killed, lock = shared_checkpoint._local_directory()
    os.close(lock)
    alive, first_lock = shared_checkpoint._local_directory()
    made, second_lock = shared_checkpoint._local_directory()
    assert {path.name for path in tmp_path.iterdir()} == {"amqpd-export-messages", alive.name, made.name}
    assert killed.name not in (alive.name, made.name)
    os.close(first_lock)
    os.close(second_lock)


def test_batch_that_is_written_again_is_not_counted_as_done(tmp_path):
    """Its files were gone when another process took the batch over, while the first process was paused."""
    paused, other = SharedCheckpoint(str(tmp_path), WHAT, 1.0), SharedCheckpoint(str(tmp_path), WHAT, 1.0)
    paused.mark_checked()
    progress = paused.begin(paused.refresh(), {"//q": {"id": "i", "offset": 5}}, {"//q": ["i", 0, 5]}, "q")
    progress.moves = [["staged", "final"]]
    paused.save()
    other.take_over(other.refresh().claims[0])
    other.open_again()
    with pytest.raises(StaleOwner, match="batch 1: .* writes its files again"):
        paused.commit()
    assert other.refresh().claims[0].moves is None
    paused.close()
    other.close()
