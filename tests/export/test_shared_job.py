"""Shared exports in this process: several jobs at one checkpoint, paused and killed at each step."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqpd.storage.export import shared_checkpoint
from amqpd.storage.export.checkpoint import CheckpointError
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import BadExport, ExportOptions
from amqpd.storage.export.payload import PayloadOptions
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.export.shared_checkpoint import SharedCheckpoint
from amqpd.storage.export.shared_job import SharedExportJob
from amqpd.storage.export.shared_place import SharedDirectory
from amqpd.storage.filesystem import FileSystem

TAKE_OVER_S = 0.03


def options(lake, tmp_path, **given):
    defaults = {"to": str(tmp_path / "lake"), "checkpoint": str(tmp_path / "check"), "take_over_s": TAKE_OVER_S}
    return ExportOptions({"path": lake.data_dir}, "/", "tasks", **(defaults | given))


def run(wanted, engine=None, job=SharedExportJob):
    return job(wanted, engine or PyarrowEngine(), lambda report: None, lambda: False).run()


def offsets(tmp_path):
    found = []
    for path in (tmp_path / "lake").rglob("*.parquet"):
        found += pq.read_table(path, partitioning=None)["offset"].to_pylist()
    return sorted(found)


def state_of(tmp_path):
    return json.loads(SharedDirectory(tmp_path / "check").read()[0])


def left_over(tmp_path):
    """Return the files of the checkpoint that a finished export does not need."""
    found = [path for path in (tmp_path / "check").rglob("*") if path.is_file() and path.name != "lock"]
    return [path for path in found if path.parent.name != "shared" or path.suffix != ".json"]


class Alone(PyarrowEngine):
    """Writes with the driver only. `before` is called before each batch is written, `after` after it."""

    def __init__(self, before=lambda: None, after=lambda: None):
        super().__init__(workers=1)
        self.before, self.after = before, after

    def write_files(self, rows, layout):
        self.before()
        written = super().write_files(rows, layout)
        self.after()
        return written


def test_one_process_exports_all_and_continues(written, tmp_path):
    wanted = options(written, tmp_path, batch_rows=1500)
    total = run(replace(wanted, to_offset=2000))
    assert (total.rows, total.bytes, total.batches, total.lag) == (1000, 200_000, 2, 0)
    assert run(wanted).rows == 3000
    assert run(wanted).rows == 0
    assert offsets(tmp_path) == list(range(1000, 5000))
    assert left_over(tmp_path) == []
    assert state_of(tmp_path)["rows"] == 4000


def test_another_schema_is_refused_with_the_place_of_the_known_one(make_lake, tmp_path):
    """The state of a shared checkpoint has the schema, and no file payload-schema.json."""
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    lake.append(b'{"a": 1}')
    lake.turn()
    schema = '{"type": "object", "properties": {"%s": {"type": "integer"}}}'
    assert run(options(lake, tmp_path, payload=PayloadOptions("json", schema % "a"))).rows == 1
    with pytest.raises(CheckpointError, match=f"not that of the checkpoint, the state of {tmp_path / 'check'}: use"):
        run(options(lake, tmp_path, payload=PayloadOptions("json", schema % "b")))
    assert not list((tmp_path / "check").rglob("payload-schema.json"))


def test_two_processes_share_the_batches(written, tmp_path):
    """The second job runs while the first one writes its first batch, and takes all others."""
    wanted = options(written, tmp_path, batch_rows=500, take_over_s=60.0)
    totals = []
    waits = threading.Event()
    second = threading.Thread(target=lambda: totals.append(run(wanted, Alone(after=waits.set))))

    def start_second():
        if not second.ident:
            second.start()
            assert waits.wait(60)

    totals.append(run(wanted, Alone(start_second)))
    second.join()
    assert offsets(tmp_path) == list(range(1000, 5000))
    assert sum(total.rows for total in totals) == 4000
    assert all(total.batches for total in totals) and sum(total.batches for total in totals) == 10
    assert all(total.lag == 0 for total in totals)  # each has waited for the other


def test_run_waits_for_a_batch_of_another_process(written, tmp_path):
    """A claim with signs of life is not taken over; the run ends when its owner has finished it."""
    wanted = options(written, tmp_path, take_over_s=600.0)
    done = []

    def other():
        done.append(run(replace(wanted, batch_rows=10, take_over_s=TAKE_OVER_S)))

    thread = threading.Thread(target=other)

    def start_and_look():
        thread.start()
        thread.join(10 * TAKE_OVER_S)
        assert thread.is_alive()  # nothing is left for it, and it has not taken over this batch

    assert run(wanted, Alone(start_and_look)).rows == 4000
    thread.join()
    assert (done[0].rows, done[0].lag) == (0, 0)
    assert offsets(tmp_path) == list(range(1000, 5000))


STEPS = ((os, ("fsync", "link")), (Path, ("replace", "mkdir", "unlink")))


@pytest.fixture
def steps(pause_steps, monkeypatch):
    """Steps of the checkpoint and of the renames."""
    monkeypatch.setattr(shared_checkpoint, "LOCK_S", 0.0)
    for owner, names in STEPS:
        pause_steps.wrap(owner, *names)
    return pause_steps


def pause_at_each_step(written, tmp_path, steps, numbers, after, **given):
    """Return the number of pauses. In each round a new export is paused once."""
    for number in numbers:
        place = tmp_path / f"{number}"
        place.mkdir()
        wanted = options(written, place, partition_by=("routing_key",), **given)
        before = steps.count

        def meanwhile(wanted=wanted):
            try:
                run(wanted, Alone())
            except CheckpointError as error:  # the other one is paused while it creates the checkpoint
                if "another export uses the checkpoint" not in str(error):
                    raise

        total = steps.run(number, after, lambda wanted=wanted: run(wanted, Alone()), meanwhile)
        assert offsets(place) == list(range(1000, 5000)), (number, after)
        assert total.lag == 0
        assert run(wanted).rows == 0
        assert left_over(place) == []
        if steps.count == before:
            break
    return steps.count


def test_paused_process_continues_after_it_was_taken_over(written, tmp_path, steps):
    assert pause_at_each_step(written, tmp_path, steps, range(3, 40, 9), False, batch_rows=2500) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "batch_rows", "count"), [(False, 2500, 40), (True, None, 20)], ids=["before", "after"]
)
def test_paused_at_every_step(written, tmp_path, steps, after, batch_rows, count):
    """Before a step in two batches, when it has read what the others change meanwhile; after one in a single batch."""
    assert pause_at_each_step(written, tmp_path, steps, range(1, 300), after, batch_rows=batch_rows) >= count


def test_killed_process_is_taken_over(written, tmp_path, kill_steps):
    kill_steps.wrap(os, "link")
    for number in (4, 11, 18):
        place = tmp_path / f"{number}"
        place.mkdir()
        wanted = options(written, place, batch_rows=2500, partition_by=("routing_key",))
        kill_steps.run(number, True, lambda wanted=wanted: run(wanted, Alone()))
        assert run(wanted).lag == 0
        assert offsets(place) == list(range(1000, 5000))
        assert left_over(place) == []
    assert kill_steps.count == 3


@pytest.mark.slow
def test_killed_at_every_step(written, tmp_path, kill_steps):
    """After one step is before the next one: what a killed process has read meanwhile is gone."""
    kill_steps.wrap(os, "link")
    kill_steps.wrap(Path, "unlink")
    for number in range(1, 300):
        place = tmp_path / f"{number}"
        place.mkdir()
        wanted = options(written, place, batch_rows=2500, partition_by=("routing_key",))
        before = kill_steps.count
        kill_steps.run(number, True, lambda wanted=wanted: run(wanted, Alone()))
        assert run(wanted).lag == 0
        assert offsets(place) == list(range(1000, 5000)), number
        assert left_over(place) == []
        if kill_steps.count == before:
            break
    assert kill_steps.count >= 40


def test_batch_of_a_process_that_fails_is_free_at_once(written, tmp_path):
    """No process waits for ten minutes."""
    wanted = options(written, tmp_path, batch_rows=2500, take_over_s=600.0)

    def fail():
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run(wanted, Alone(after=fail))
    (claim,) = state_of(tmp_path)["claims"]
    assert (claim["token"], claim["moves"]) == ("", None)
    assert run(wanted).rows == 4000
    assert offsets(tmp_path) == list(range(1000, 5000))
    assert left_over(tmp_path) == []


def test_batches_of_a_whole_vhost_are_taken_over(written, tmp_path, kill_steps):
    wanted = replace(options(written, tmp_path, batch_rows=2500), queue=None)
    kill_steps.wrap(os, "link")
    kill_steps.run(14, True, lambda: run(wanted, Alone()))
    assert kill_steps.count == 1 and len(state_of(tmp_path)["claims"]) == 1
    assert run(wanted).lag == 0
    assert offsets(tmp_path) == list(range(1000, 5000))
    assert all(path.name.startswith("vhost-%2F-batch-") for path in (tmp_path / "lake").iterdir())


def test_claim_of_a_deleted_queue_is_a_data_loss(written, tmp_path):
    wanted = options(written, tmp_path)
    ledger = SharedCheckpoint(wanted.checkpoint, wanted.identity())
    ledger.mark_checked()
    position, spans = {"//tasks": {"id": "old", "offset": 10}}, {"//tasks": ["old", 0, 10]}
    ledger.begin(ledger.refresh(), position, spans, "tasks-old")
    ledger.release()
    ledger.close()
    with pytest.raises(DataLoss, match=r"queue //tasks was deleted before offsets 0 to 9 were exported"):
        run(wanted)
    assert run(replace(wanted, fail_on_data_loss=False)).rows == 4000
    assert offsets(tmp_path) == list(range(1000, 5000))
    assert state_of(tmp_path)["claims"] == []


def test_fixed_batch_of_a_deleted_queue_is_completed(written, tmp_path):
    """Its files are complete, so nothing of it is lost."""
    wanted = options(written, tmp_path)
    ledger = SharedCheckpoint(wanted.checkpoint, wanted.identity())
    ledger.mark_checked()
    position, spans = {"//tasks": {"id": "old", "offset": 10}}, {"//tasks": ["old", 0, 10]}
    progress = ledger.begin(ledger.refresh(), position, spans, "tasks-old")
    staged = ledger.attempt() / "staged"
    staged.parent.mkdir()
    staged.write_text("rows")
    progress.rows, progress.moves = 10, [[str(staged), str(tmp_path / "lake" / "old.parquet")]]
    ledger.save()
    ledger.release()
    ledger.close()
    with pytest.raises(DataLoss, match="declared again since offset 10"):
        run(wanted)
    assert (tmp_path / "lake" / "old.parquet").read_text() == "rows"
    assert (state_of(tmp_path)["claims"], state_of(tmp_path)["rows"]) == ([], 10)


def test_files_on_another_file_system_are_refused(written, tmp_path, monkeypatch):
    def rename(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(BadExport, match="is not on the file system of --to"):
        run(options(written, tmp_path))
    assert list((tmp_path / "lake").iterdir()) == [] and left_over(tmp_path) == []
