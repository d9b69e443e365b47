"""Compaction of a directory: few files with the same rows, kills at each step, an export and readers beside it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpd.cli.main import run as run_command
from amqpd.storage.export import directory_compaction, file_compaction, targets
from amqpd.storage.export.checkpoint import (
    CheckpointError,
    ExportCheckpoint,
    KnownExport,
    directory_lock,
    lock_checkpoint,
)
from amqpd.storage.export.compaction_job import compact
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.file_compaction import CompactionOptions, FoundFile, Watch, is_past, merge, merged_name, plan
from amqpd.storage.export.import_job import ImportLedger
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.payload import PayloadOptions
from amqpd.storage.export.shared_checkpoint import SharedCheckpoint
from amqpd.storage.export.targets import TargetError
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.record import RecordRoute

LATER = datetime(2200, 1, 1, tzinfo=UTC)
WATCH = Watch(lambda report: None, lambda: False)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(directory_compaction, "RETIRE_S", 0.0)


def options(lake, tmp_path, **given):
    return ExportOptions(
        {"path": lake.data_dir}, "/", "tasks", str(tmp_path / "lake"), str(tmp_path / "check"), **given
    )


def run(wanted):
    return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()


def compacted(tmp_path, **given):
    return compact(CompactionOptions(str(tmp_path / "lake"), tmp_path / "check", **{"now": LATER, **given}), WATCH)


def files(tmp_path):
    return sorted((tmp_path / "lake").rglob("*.parquet"))


def offsets(tmp_path, listing=None):
    """Return the offsets that a reader sees. It lists and reads again if a file that it has listed is gone.

    listing: lock held while it lists.
    """
    while True:
        with listing or nullcontext():
            found = files(tmp_path)
        try:
            return sorted(
                each for path in found for each in pq.read_table(path, columns=["offset"])["offset"].to_pylist()
            )
        except FileNotFoundError:
            continue


def known(**given):
    return KnownExport(**{"id": "0123abcd", "what": {}, "pending": frozenset(), **given})


def named(number, size=10, below="", export="0123abcd"):
    return FoundFile(f"{below}tasks-{number:020d}-{number + 1:020d}-{export}-00000.parquet", size)


def test_plan_takes_small_files_of_this_export_in_the_order_of_their_offsets():
    wanted = CompactionOptions("", Path(), file_bytes=100, now=datetime(2026, 11, 29, 4, 30, tzinfo=UTC))
    small = [named(number, 30) for number in range(7)]
    others = [named(8, 50), named(9, export="deadbeef"), FoundFile("notes.parquet", 5)]
    assert plan([*reversed(small), *others], known(), wanted) == [small[:3], small[3:6]]
    pending = frozenset(each.name for each in small[:2])
    assert plan(small, known(pending=pending), wanted) == [small[2:5], small[5:]]
    today = [named(number, below="date=2026-11-29/") for number in range(2)]
    before = [named(number, below="date=2026-11-28/") for number in range(2)]
    assert plan([*today, *before], known(), wanted) == [before]


def test_file_that_grows_is_not_written_again_for_a_few_small_ones():
    wanted = CompactionOptions("", Path(), file_bytes=1000, now=LATER)
    assert plan([named(0, 400), named(1, 10), named(2, 10)], known(), wanted) == [[named(1, 10), named(2, 10)]]
    assert plan([named(0, 400), named(1, 10)], known(), wanted) == []
    assert plan([named(0, 400), named(1, 200)], known(), wanted) == [[named(0, 400), named(1, 200)]]
    dated = [named(0, 400, "date=2026-11-28/"), named(1, 10, "date=2026-11-28/")]
    assert plan(dated, known(), wanted) == [dated]  # gets no more files


@pytest.mark.parametrize(
    ("name", "past"),
    [
        ("f.parquet", True),
        ("queue=a/f.parquet", True),
        ("date=2026-11-28/f.parquet", True),
        ("date=2026-11-29/f.parquet", False),
        ("date=2026-11-29/hour=3/f.parquet", True),
        ("date=2026-11-29/hour=4/f.parquet", False),
        ("hour=23/date=2026-11-28/f.parquet", True),
        ("hour=4/f.parquet", False),
        ("hour=5/f.parquet", True),
    ],
)
def test_partition_of_the_present_is_left_alone(name, past):
    assert is_past(name, datetime(2026, 11, 29, 4, 30, tzinfo=UTC)) is past


def test_name_of_a_merged_file_has_all_its_offsets():
    assert merged_name([named(3), named(7)]).startswith(f"tasks-{3:020d}-{8:020d}-0123abcd-merged-")
    batches = [FoundFile(f"a/vhost-%2F-batch-{number:08d}-0123abcd-00000.parquet", 1) for number in (4, 9)]
    assert merged_name(batches).startswith("vhost-%2F-batch-00000009-0123abcd-merged-")
    assert plan([FoundFile(merged_name(batches), 1), *batches], known(), CompactionOptions("", Path(), now=LATER))


def test_files_of_a_directory_become_few_with_the_same_rows(written, tmp_path):
    columns = ("offset", "value", "routing_key")
    wanted = options(written, tmp_path, batch_rows=250, partition_by=("routing_key",), columns=columns)
    run(wanted)
    before = {place.name: pq.read_table(place).sort_by("offset") for place in (tmp_path / "lake").iterdir()}
    (tmp_path / "lake" / "routing_key=eu" / "README").write_text("mine")
    assert len(files(tmp_path)) == 32
    report = compacted(tmp_path)
    assert (report.merged, report.written, report.waiting) == (32, 2, 0)
    assert report.bytes_after == sum(path.stat().st_size for path in files(tmp_path)) < report.bytes_before
    for path in files(tmp_path):
        found = pq.ParquetFile(path).read()
        assert found.sort_by("offset").equals(found)
        assert found.equals(before[path.parent.name].select(["offset", "value"]))
    assert (tmp_path / "lake" / "routing_key=eu" / "README").read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["check", "data", "lake"]
    assert compacted(tmp_path).merged == 0
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(replace(wanted, checkpoint=str(tmp_path / "other")))


def test_columns_that_changed_are_not_mixed(make_lake, tmp_path):
    """Files of a directory have one schema; Spark's of an older version had other times."""
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    for _ in range(4):
        lake.append(b"x")
        lake.turn()
        run(options(lake, tmp_path))
    path = files(tmp_path)[1]
    pq.write_table(pq.ParquetFile(path).read(), path, use_deprecated_int96_timestamps=True)
    report = compacted(tmp_path)
    assert (report.merged, report.written, report.waiting) == (2, 1, 0)
    assert len(files(tmp_path)) == 3 and offsets(tmp_path) == [0, 1, 2, 3]


def test_rejected_messages_and_directories_of_others_stay(make_lake, tmp_path):
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    wanted = options(lake, tmp_path, payload=PayloadOptions("json"))
    for number in range(3):
        lake.append(b'{"a":%d}' % number, b"not json")
        lake.turn()
        run(wanted)
    (tmp_path / "lake" / "mine").mkdir()
    (tmp_path / "lake" / "link").symlink_to("mine")
    before = sorted(str(path) for path in (tmp_path / "lake").rglob("*") if path.suffix != ".parquet")
    assert len(before) == 6
    assert compacted(tmp_path).merged == 3
    assert sorted(str(path) for path in (tmp_path / "lake").rglob("*") if path.suffix != ".parquet") == before
    (merged,) = files(tmp_path)
    assert [each["a"] for each in pq.read_table(merged)["payload"].to_pylist()] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("by", [(), ("routing_key",)])
def test_kill_at_each_step_shows_each_row_once(written, tmp_path, kill_steps, by):
    wanted = options(written, tmp_path, batch_rows=200, partition_by=by)
    kill_steps.wrap(directory_compaction, "exchange", "merge", "_link_others")
    kill_steps.wrap(shutil, "rmtree", "copystat")
    kill_steps.wrap(os, "link")
    run(replace(wanted, to_offset=2000))
    for name in ("lake", "check"):
        shutil.copytree(tmp_path / name, tmp_path / "data" / name)
    shapes = Counter()
    for number in range(1, 200):
        for name in ("lake", "check"):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(tmp_path / "data" / name, tmp_path / name)
        done = []
        kill_steps.run(number, True, lambda done=done: done.append(compacted(tmp_path)))
        shapes[len(files(tmp_path))] += 1
        assert offsets(tmp_path) == list(range(1000, 2000))
        end = 2200 if number % 3 == 0 else 2000
        run(replace(wanted, to_offset=end))
        compacted(tmp_path)
        assert offsets(tmp_path) == list(range(1000, end))
        assert sorted(each.name for each in tmp_path.iterdir()) == ["check", "data", "lake"]
        if done:
            break
    print(f"{kill_steps.count} kills, {dict(shapes)}")
    assert done and kill_steps.count >= 12 and len(shapes) >= 2


def test_batch_that_is_not_committed_is_left_to_its_export(written, tmp_path, monkeypatch, kill_steps):
    wanted = options(written, tmp_path, batch_rows=500)
    run(replace(wanted, to_offset=3000))
    with monkeypatch.context() as patched:
        patched.setattr(ExportCheckpoint, "commit", lambda self: (_ for _ in ()).throw(kill_steps.Killed()))
        with pytest.raises(kill_steps.Killed):
            run(wanted)
    count = len(files(tmp_path))
    assert compacted(tmp_path).merged == count - 1 and len(files(tmp_path)) == 2
    assert run(wanted).rows == 2000
    assert offsets(tmp_path) == list(range(1000, 5000))


def test_files_that_appear_during_the_merge_stay(written, tmp_path, monkeypatch):
    wanted = options(written, tmp_path, batch_rows=500)
    run(replace(wanted, to_offset=3000))

    def merge_and_export(sources, target):
        size = merge(sources, target)
        assert run(wanted).rows == 2000
        return size

    monkeypatch.setattr(directory_compaction, "merge", merge_and_export)
    compacted(tmp_path)
    assert offsets(tmp_path) == list(range(1000, 5000)) and len(files(tmp_path)) == 5


def test_export_holds_the_shared_lock_while_its_files_appear(written, tmp_path, monkeypatch):
    real, found = targets.move, []

    def move(moves):
        for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            try:
                with directory_lock(tmp_path / "lake", kind | fcntl.LOCK_NB):
                    found.append(kind)
            except BlockingIOError:
                found.append(0)
        real(moves)

    monkeypatch.setattr(targets, "move", move)
    run(options(written, tmp_path))
    assert found == [fcntl.LOCK_SH, 0]


def test_lock_is_that_of_the_directory_after_an_exchange(tmp_path, monkeypatch):
    """The directory is replaced between its opening and its lock."""
    place, real = tmp_path / "lake", fcntl.flock
    place.mkdir()

    def exchanged(descriptor, kind):
        monkeypatch.setattr(fcntl, "flock", real)
        place.rename(tmp_path / "old")
        place.mkdir()
        real(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", exchanged)
    with (
        directory_lock(place, fcntl.LOCK_SH),
        pytest.raises(BlockingIOError),
        directory_lock(place, fcntl.LOCK_EX | fcntl.LOCK_NB),
    ):
        pass


@pytest.mark.slow
def test_export_and_readers_beside_compactions(written, tmp_path, monkeypatch):
    """Readers see each row once, and no row that an earlier one has seen is missing.

    Replaced directories stay while a reader lists them, however slow: RETIRE_S is for that.
    """
    wanted = options(written, tmp_path, batch_rows=50)
    errors, ended, listing = [], threading.Event(), threading.Lock()
    remove = directory_compaction._remove

    def remove_unlisted(work):
        with listing:
            remove(work)

    monkeypatch.setattr(directory_compaction, "_remove", remove_unlisted)

    def export():
        try:
            run(wanted)
        except (OSError, TargetError, CheckpointError) as error:
            errors.append(error)
        finally:
            ended.set()

    def read():
        seen: set[int] = set()
        while not ended.is_set():
            found = offsets(tmp_path, listing)
            if len(found) != len(set(found)) or not seen <= set(found):
                errors.append(AssertionError("a reader sees a row twice, or not at all"))
            seen = set(found)

    run(replace(wanted, to_offset=1100))
    threads = [threading.Thread(target=export), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    merged = 0
    while not ended.is_set():
        merged += compacted(tmp_path).merged
    for thread in threads:
        thread.join()
    assert not errors and merged > 0, (errors, merged)
    compacted(tmp_path)
    assert offsets(tmp_path) == list(range(1000, 5000)) and len(files(tmp_path)) < 20


def test_file_that_another_program_changes_stops_the_compaction(written, tmp_path, monkeypatch):
    run(options(written, tmp_path, batch_rows=1000))

    def merge_and_change(sources, target):
        size = merge(sources, target)
        files(tmp_path)[0].unlink()
        return size

    monkeypatch.setattr(directory_compaction, "merge", merge_and_change)
    with pytest.raises(TargetError, match="another program has changed its files"):
        compacted(tmp_path)
    assert len(files(tmp_path)) == 3
    assert not list(tmp_path.glob(".lake.*"))


def test_merged_files_are_hidden_from_users_that_cannot_read_the_directory(written, tmp_path, monkeypatch):
    run(options(written, tmp_path, batch_rows=1000))
    (tmp_path / "lake").chmod(0o750)
    found = []

    def merge_and_look(sources, target):
        found.append(target.parent.parent.stat().st_mode & 0o777)
        return merge(sources, target)

    monkeypatch.setattr(directory_compaction, "merge", merge_and_look)
    compacted(tmp_path)
    assert found == [0o700]
    assert (tmp_path / "lake").stat().st_mode & 0o777 == 0o750


def test_checkpoint_of_a_shared_export_or_an_import_among_the_files_is_refused(written, tmp_path):
    """Else the exchange would take the state back to that of an earlier moment, and a batch would be there twice."""
    wanted = options(written, tmp_path, batch_rows=1000)
    run(wanted)
    (inside := tmp_path / "lake" / "inside").mkdir()
    SharedCheckpoint(str(inside), {}).close()
    with pytest.raises(TargetError, match="lake/inside is the checkpoint of an export, which may change"):
        compacted(tmp_path)
    shutil.rmtree(inside)
    ledger = ImportLedger(inside, {})
    ledger.save()
    ledger.close()
    with pytest.raises(TargetError, match="lake/inside is the checkpoint of an import, which may change"):
        compacted(tmp_path)


@pytest.mark.parametrize("below", ["lake/progress", "lake"])
def test_checkpoint_among_the_files_is_refused(written, tmp_path, below):
    """Its export could replace a file of it between the link and the exchange."""
    inside = tmp_path / below
    wanted = replace(options(written, tmp_path, batch_rows=1000), checkpoint=str(inside))
    run(replace(wanted, to_offset=4000))
    where = CompactionOptions(str(tmp_path / "lake"), inside, now=LATER)
    with pytest.raises(TargetError, match=f"{below} is the checkpoint of an export, which may change meanwhile: move"):
        compact(where, WATCH)
    run(wanted)
    assert offsets(tmp_path) == list(range(1000, 5000))


def test_files_without_rows_are_merged(tmp_path):
    """Spark writes such a file for a batch in which no message fits --where."""
    table = pa.table({"offset": pa.array([], pa.int64())})
    for name in ("a", "b"):
        pq.write_table(table, tmp_path / name)
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "new") > 0
    assert pq.read_table(tmp_path / "new").equals(table)


def test_lost_rows_are_an_error(tmp_path, written, monkeypatch):
    run(options(written, tmp_path, batch_rows=1000))
    real = file_compaction.groups
    monkeypatch.setattr(file_compaction, "groups", lambda found: (each.slice(1) for each in real(found)))
    with pytest.raises(TargetError, match=r"has \d+ rows, and its sources have"):
        compacted(tmp_path)
    assert offsets(tmp_path) == list(range(1000, 5000))


def test_file_systems_without_exchange_are_refused(written, tmp_path, monkeypatch):
    run(options(written, tmp_path, batch_rows=1000))

    class NoExchange:
        @staticmethod
        def renameat2(*arguments):
            directory_compaction.ctypes.set_errno(22)
            return -1

    monkeypatch.setattr(directory_compaction.ctypes, "CDLL", lambda *arguments, **named: NoExchange)
    with pytest.raises(TargetError, match=r"cannot exchange directories .*--format delta, iceberg"):
        compacted(tmp_path)
    assert offsets(tmp_path) == list(range(1000, 5000))


def test_one_compaction_of_a_checkpoint_at_a_time(written, tmp_path):
    run(options(written, tmp_path))
    lock = lock_checkpoint(tmp_path / "check" / "compaction", "compaction")
    with pytest.raises(CheckpointError, match="another compaction uses the checkpoint"):
        compacted(tmp_path)
    os.close(lock)
    assert compacted(tmp_path).merged == 0


def test_stop_ends_it_between_directories(written, tmp_path):
    run(options(written, tmp_path, batch_rows=1000, partition_by=("routing_key",)))
    reports = []
    watch = Watch(lambda report: reports.append(report.merged), lambda: len(reports) >= 2)
    report = compact(CompactionOptions(str(tmp_path / "lake"), tmp_path / "check", now=LATER), watch)
    assert reports == [0, 4] and (report.merged, report.waiting) == (4, 4)
    assert offsets(tmp_path) == list(range(1000, 5000))


def answer(*arguments):
    out, err = io.StringIO(), io.StringIO()
    code = run_command(["compact_export", *arguments], out, err, io.StringIO(), {})
    assert "Traceback" not in err.getvalue()
    return code, out.getvalue(), err.getvalue()


def test_command(written, make_lake, tmp_path):
    to = str(tmp_path / "lake")
    wanted = replace(options(written, tmp_path, batch_rows=1000), checkpoint=f"{to}.checkpoint")
    run(wanted)
    code, out, err = answer("--to", to, "--formatter", "json")
    assert code == 0, err
    found = json.loads(out)
    assert found["seconds"] >= 0 and found["bytes_after"] < found["bytes_before"]
    expected = {"merged": 4, "written": 1, "removed": 0, "waiting": 0, "to": to}
    assert {name: found[name] for name in expected} == expected
    assert "4 files merged into 1, 0 wait" in err
    assert answer("--to", f"file://{to}/")[1].startswith("Merged 0 files (0 bytes) into 0 (0 bytes) in ")
    assert offsets(tmp_path) == list(range(1000, 5000))


def test_command_line_errors(written, tmp_path):
    to = str(tmp_path / "lake")
    run(options(written, tmp_path))
    run(replace(options(written, tmp_path), to=str(tmp_path / "json"), checkpoint=str(tmp_path / "c2"), format="json"))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "export.json").write_text("[]")
    (tmp_path / "unreadable" / "export.json").mkdir(parents=True)
    cases = (
        ((), 64, "--to is needed"),
        (("--to", to, "--checkpoint", str(tmp_path / "damaged")), 64, "export.json is damaged"),
        (("--to", to, "--checkpoint", str(tmp_path / "unreadable")), 69, "unreadable: Is a directory"),
        (("--to", to), 64, "is not the checkpoint of an export: give its --checkpoint"),
        (("--to", "s3://a/b"), 64, "--checkpoint is needed"),
        (("--to", to, "--checkpoint", str(tmp_path / "c2")), 64, "has no files that can be merged: only parquet"),
        (("--to", str(tmp_path), "--checkpoint", str(tmp_path / "check")), 64, "belongs to an export --to "),
        (("--to", to, "--checkpoint", str(tmp_path / "check"), "--file-size", "0"), 64, "--file-size : 0"),
    )
    for arguments, code, text in cases:
        found = answer(*arguments)
        assert found[0] == code and text in found[2], found
    shutil.rmtree(to)
    assert answer("--to", to, "--checkpoint", str(tmp_path / "check"))[0] == 69


def test_checkpoint_of_no_batch_and_routes(make_lake, tmp_path):
    """All queues of a vhost: files are named by batches."""
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    wanted = replace(options(lake, tmp_path), queue=None)
    for _ in range(3):
        lake.append(b"x", route=RecordRoute(b"", b"k"))
        lake.turn()
        run(wanted)
    assert compacted(tmp_path).merged == 3
    (path,) = files(tmp_path)
    assert "-batch-00000003-" in path.name and offsets(tmp_path) == [0, 1, 2]
