"""Compaction of objects: what `live_files` names at each step, kills of it at each request, failures of the store."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from amqpd.storage.export import store_compaction
from amqpd.storage.export.compaction_job import compact
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.file_compaction import CompactionOptions, Watch, merge
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.object_store import ObjectStore, ObjectStoreError
from amqpd.storage.export.store_compaction import live_files
from amqpd.storage.export.targets import TargetError

obstore = pytest.importorskip("obstore")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`

MANUAL = Path(__file__).parents[2] / "docs" / "export.md"
LATER = datetime(2200, 1, 1, tzinfo=UTC)
WATCH = Watch(lambda report: None, lambda: False)


def options(lake, tmp_path, to, **given):
    return ExportOptions({"path": lake.data_dir}, "/", "tasks", to, str(tmp_path / "check"), **given)


def run(wanted):
    return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()


def compacted(tmp_path, to):
    return compact(CompactionOptions(to, tmp_path / "check", now=LATER), WATCH)


def names(to):
    return [name for name in ObjectStore(to).names() if name.endswith(".parquet")]


def read(to, found):
    store = ObjectStore(to)
    offsets = []
    for name in found:
        data = store.read(name)
        if data is None:
            raise FileNotFoundError(name)
        offsets += pq.ParquetFile(io.BytesIO(data[0])).read(["offset"])["offset"].to_pylist()
    return sorted(offsets)


def upload(store, name, data):
    obstore.put(store._store, name, data)


def live_offsets(to):
    """Return the offsets that a reader of the live files sees. It begins again if one of them is gone."""
    while True:
        try:
            return read(to, [each.removeprefix(f"{to}/") for each in live_files(to)])
        except FileNotFoundError:
            continue


def test_objects_become_few_with_the_same_rows(written, tmp_path, s3):
    to = "s3://lake/few"
    wanted = options(written, tmp_path, to, batch_rows=500, partition_by=("routing_key",))
    run(wanted)
    assert len(live_files(to)) == len(names(to)) == 16
    report = compacted(tmp_path, to)
    assert (report.merged, report.written, report.waiting) == (16, 2, 0)
    assert [each.removeprefix(f"{to}/") for each in live_files(to)] == sorted(names(to))
    assert {each.split("/")[0] for each in names(to)} == {"routing_key=eu", "routing_key=us"} and len(names(to)) == 2
    assert live_offsets(to) == list(range(1000, 5000))
    assert compacted(tmp_path, to).merged == 0
    assert not (tmp_path / "check" / "compaction" / "objects").exists()
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(replace(wanted, checkpoint=str(tmp_path / "other")))


@pytest.mark.slow
def test_kill_at_each_request_shows_each_row_once_in_live_files(written, tmp_path, s3, monkeypatch, kill_steps):
    kill_steps.wrap(ObjectStore, "replace", "delete", "publish", "download")
    kill_steps.wrap(store_compaction, "merge")
    merged = 0
    for number in range(1, 50):
        to = f"s3://lake/killed/{number}"
        wanted = replace(options(written, tmp_path, to, batch_rows=500), checkpoint=str(tmp_path / str(number)))
        run(replace(wanted, to_offset=2000))
        before = len(names(to))
        where = CompactionOptions(to, tmp_path / str(number), now=LATER)
        done = []
        after = number > 1  # after one step is before the next one
        kill_steps.run(max(number - 1, 1), after, lambda where=where, done=done: done.append(compact(where, WATCH)))
        assert live_offsets(to) == list(range(1000, 2000))
        merged += len(live_files(to)) < before
        end = 2500 if number % 3 == 0 else 2000
        if end > 2000:
            run(replace(wanted, to_offset=end))
            assert live_offsets(to) == list(range(1000, end))
        compact(where, WATCH)
        assert read(to, names(to)) == list(range(1000, end))
        assert [each.removeprefix(f"{to}/") for each in live_files(to)] == sorted(names(to))
        if done:
            break
    print(f"{kill_steps.count} kills, {merged} after the commit")
    assert done and kill_steps.count >= 8 and merged >= 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["500", "500 after", "hang up", "hang up after"])
def test_failed_requests_are_repeated(written, tmp_path, s3, fault):
    to = f"s3://lake/compact-again/{fault.replace(' ', '-')}"
    run(options(written, tmp_path, to, batch_rows=1000))
    s3.reset(lambda number: fault if number % 2 else "")
    assert compacted(tmp_path, to).merged == 4
    assert s3.writes >= 8
    s3.reset()
    assert live_offsets(to) == read(to, names(to)) == list(range(1000, 5000))


@pytest.mark.slow
def test_readers_beside_compactions_and_an_export_see_each_row_once(written, tmp_path, s3):
    to = "s3://lake/beside"
    wanted = options(written, tmp_path, to, batch_rows=250)
    run(replace(wanted, to_offset=2000))
    errors, ended = [], threading.Event()

    def reader():
        seen: set[int] = set()
        while not ended.is_set():
            found = live_offsets(to)
            if len(found) != len(set(found)) or not seen <= set(found):
                errors.append("a reader sees a row twice, or not at all")
            seen = set(found)

    thread = threading.Thread(target=reader)
    thread.start()
    merged = 0
    try:
        for end in range(2500, 5001, 500):
            run(replace(wanted, to_offset=end))
            merged += compacted(tmp_path, to).merged
    finally:
        ended.set()
        thread.join()
    assert not errors and merged >= 8
    assert live_offsets(to) == list(range(1000, 5000))


def test_late_upload_of_a_killed_process_is_hidden_and_deleted(written, tmp_path, s3):
    to = "s3://lake/late"
    run(options(written, tmp_path, to, batch_rows=1000))
    store = ObjectStore(to)
    (name, *_) = names(to)
    data, _ = store.read(name)
    compacted(tmp_path, to)
    upload(store, name, data)
    assert max(Counter(read(to, names(to))).values()) == 2
    assert live_offsets(to) == list(range(1000, 5000))
    compacted(tmp_path, to)
    assert read(to, names(to)) == list(range(1000, 5000))


def test_late_manifest_of_a_killed_process_changes_nothing(written, tmp_path, s3, monkeypatch, kill_steps):
    """The commit of a killed run arrives when the next run has read the manifest, or at its end."""
    real, late = ObjectStore.replace, []

    def killed(self, name, data, version):
        if len(json.loads(data)["hidden"]) == 4:
            late.append((self, name, data, version))
            raise kill_steps.Killed
        return real(self, name, data, version)

    for number, moment in enumerate(("delete", "download", "")):
        to = f"s3://lake/late-manifest/{number}"
        where = CompactionOptions(to, tmp_path / str(number), now=LATER)
        run(replace(options(written, tmp_path, to, batch_rows=1000), checkpoint=str(tmp_path / str(number))))
        with monkeypatch.context() as patched:
            patched.setattr(ObjectStore, "replace", killed)
            with pytest.raises(kill_steps.Killed):
                compact(where, WATCH)
        refused = []

        def arrive(*arguments, refused=refused):
            assert real(*late[-1]) is None  # another program has written it
            refused.append(1)

        with monkeypatch.context() as patched:
            if moment:
                step = getattr(ObjectStore, moment)
                patched.setattr(ObjectStore, moment, lambda self, *given, step=step: (arrive(), step(self, *given))[1])
            compact(where, WATCH)
        arrive()
        assert len(refused) >= (2 if moment else 1)
        assert live_offsets(to) == read(to, names(to)) == list(range(1000, 5000))


def test_list_that_a_compaction_changes_is_repeated_and_then_refused(written, tmp_path, s3, monkeypatch):
    to = "s3://lake/changing"
    run(options(written, tmp_path, to, batch_rows=1000))
    real, changes = ObjectStore.names, []

    def changing(self):
        found = list(real(self))
        if len(changes) < limit:
            changes.append(1)
            if len(changes) == 1:
                compacted(tmp_path, to)
            else:
                upload(self, "_compaction/0.manifest", json.dumps({"number": len(changes), "hidden": []}).encode())
        return iter(found)

    monkeypatch.setattr(ObjectStore, "names", changing)
    limit = 2
    assert len(live_files(to)) == 1
    limit = 100
    monkeypatch.setattr(store_compaction, "LIST_ATTEMPTS", 3)
    with pytest.raises(ObjectStoreError, match="compactions changed its objects during 3 lists"):
        live_files(to)


def test_object_that_another_program_changes_stops_the_compaction(written, tmp_path, s3, monkeypatch):
    to = "s3://lake/changed"
    run(options(written, tmp_path, to, batch_rows=1000))
    monkeypatch.setattr(ObjectStore, "download", lambda self, name, path: path.write_bytes(b"?"))
    with pytest.raises(TargetError, match="another program has changed it"):
        compacted(tmp_path, to)
    assert len(names(to)) == 4


@pytest.mark.slow
def test_command_that_is_killed_at_each_request(written, tmp_path, s3):
    """`kill -9` of the process, before or after the store has the request."""
    root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    kills = 0
    for number in range(1, 30, 3):
        to, check = f"s3://lake/command/{number}", str(tmp_path / f"check{number}")
        run(replace(options(written, tmp_path, to, batch_rows=1000), checkpoint=check))
        command = [sys.executable, "-P", "-m", "amqpd.cli", "compact_export", "--to", to, "--checkpoint", check]
        fault = "kill after" if number % 2 else "kill"
        s3.reset(lambda count, number=number, fault=fault: fault if count == number else "")
        s3.victim = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, err = s3.victim.communicate(timeout=600)
        assert s3.victim.returncode in (0, -signal.SIGKILL), err
        s3.reset()
        assert live_offsets(to) == list(range(1000, 5000))
        if s3.victim.returncode == 0:
            break
        kills += 1
        done = subprocess.run([*command, "--formatter", "json"], env=environment, capture_output=True, check=True)
        assert json.loads(done.stdout)["waiting"] == 0
        assert read(to, names(to)) == list(range(1000, 5000))
    assert 2 <= kills < 9


def test_merge_of_a_group_needs_room_for_one_group(written, tmp_path, s3, monkeypatch):
    """Groups are downloaded one after the other."""
    to = "s3://lake/room"
    run(options(written, tmp_path, to, batch_rows=250, partition_by=("routing_key",)))
    found = []

    def merge_and_count(sources, target):
        found.append(len(list(target.parent.iterdir())))
        return merge(sources, target)

    monkeypatch.setattr(store_compaction, "merge", merge_and_count)
    compacted(tmp_path, to)
    assert found == [16, 16]


def test_example_of_the_documentation_reads_the_live_objects(written, tmp_path, s3, capsys, monkeypatch):
    run(options(written, tmp_path, "s3://lake/orders", batch_rows=1000))
    store = ObjectStore("s3://lake/orders")
    (name, *_) = names("s3://lake/orders")
    data, _ = store.read(name)
    compacted(tmp_path, "s3://lake/orders")
    upload(store, name, data)  # not live any more
    (block,) = re.findall(r"```python\n(import pyarrow.dataset\n.*?)```", MANUAL.read_text(), re.DOTALL)
    where = {"endpoint_override": s3.url.removeprefix("http://"), "scheme": "http", "region": "us-east-1"}
    monkeypatch.setattr(fs, "S3FileSystem", partial(fs.S3FileSystem, **where))
    exec(compile(block, str(MANUAL), "exec"), {})
    assert capsys.readouterr().out == "4000\n"


def test_objects_that_a_killed_run_has_not_deleted_stay_hidden(written, tmp_path, s3, monkeypatch):
    """A group may have more objects than names of deleted ones are kept."""
    to = "s3://lake/many"
    run(options(written, tmp_path, to, batch_rows=500))
    monkeypatch.setattr(store_compaction, "HIDDEN_MAX", 3)

    def killed(store, found):
        if found:
            raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "delete", killed)
        with pytest.raises(SystemExit):
            compacted(tmp_path, to)
        assert live_offsets(to) == list(range(1000, 5000))
        with pytest.raises(SystemExit):
            compacted(tmp_path, to)
        assert live_offsets(to) == list(range(1000, 5000))
    compacted(tmp_path, to)
    assert read(to, names(to)) == live_offsets(to) == list(range(1000, 5000))


def test_damaged_manifest_is_an_error(written, tmp_path, s3):
    to = "s3://lake/damaged"
    run(options(written, tmp_path, to, batch_rows=500))
    compacted(tmp_path, to)
    store = ObjectStore(to)
    ((name, _),) = store.sizes(store_compaction.FOLDER)
    upload(store, name, b'{"number": 3}')
    for call in (lambda: live_files(to), lambda: compacted(tmp_path, to)):
        with pytest.raises(ObjectStoreError, match="a manifest in _compaction/ is damaged"):
            call()
