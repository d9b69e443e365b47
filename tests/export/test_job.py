"""The export job in this process: formats and their readers, batches, reruns, and kills between steps."""

from __future__ import annotations

import csv
import errno
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow.dataset as ds
import pytest
from sqlalchemy import create_engine, text

from amqpd.protocol import properties as p
from amqpd.storage.export.checkpoint import CheckpointError, ExportCheckpoint, move
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import BadExport, ExportJob, ExportOptions
from amqpd.storage.export.options import NoSuchQueue
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.export.shared_job import SharedExportJob
from amqpd.storage.export.targets import LocalFiles, TargetError, file_label
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.record import RecordRoute


def options(lake, tmp_path, **given):
    given = {"to": str(tmp_path / "lake"), "checkpoint": str(tmp_path / "check"), **given}
    return ExportOptions(source={"path": lake.data_dir}, vhost="/", queue="tasks", **given)


def run(wanted, engine=None, stopped=lambda: False, job=ExportJob):
    reports = []
    total = job(wanted, engine or PyarrowEngine(), reports.append, stopped).run()
    return total, reports


def parquet_offsets(directory):
    """Return the offsets as pyarrow reads them."""
    if not any(Path(directory).rglob("*.parquet")):
        return []
    table = ds.dataset(str(directory), format="parquet", partitioning="hive").to_table(columns=["offset"])
    return sorted(table.column("offset").to_pylist())


def test_parquet_is_read_by_pyarrow_and_duckdb(written, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    total, reports = run(options(written, tmp_path, partition_by=("date",), batch_rows=1500))
    assert (total.rows, total.bytes, total.lag) == (4000, 4000 * 200, 0)
    assert [report.rows for report in reports] == [500, 1500, 1500, 500]  # the first 1000 offsets are acked
    assert [report.lag for report in reports] == [3500, 2000, 500, 0]
    wanted = list(range(1000, 5000))
    directory = tmp_path / "lake"
    assert parquet_offsets(directory) == wanted
    found = duckdb.sql(f"SELECT \"offset\", date FROM '{directory}/**/*.parquet' ORDER BY 1").fetchall()
    assert [row[0] for row in found] == wanted
    table = ds.dataset(str(directory), format="parquet", partitioning="hive").to_table(
        filter=ds.field("offset") == 1234
    )
    (row,) = table.to_pylist()
    assert row["value"] == b"01234" + b"." * 195
    assert (row["vhost"], row["queue"], row["exchange"], row["routing_key"]) == ("/", "tasks", "orders", "us")
    assert row["date"] == str(row["timestamp"].date())
    names = sorted(path.name for path in directory.rglob("*") if path.is_file())
    assert all(name.startswith("tasks-0000000000000000") for name in names)
    assert not any(name.startswith((".", "_")) for name in names)


def test_rerun_continues_at_the_checkpoint(written, tmp_path):
    wanted = options(written, tmp_path, batch_rows=1000)
    first, _ = run(options(written, tmp_path, batch_rows=1000, to_offset=2500))
    assert (first.rows, parquet_offsets(tmp_path / "lake")) == (1500, list(range(1000, 2500)))
    assert run(wanted)[0].rows == 2500
    assert run(wanted)[0].rows == 0
    written.append(b"new")
    written.turn()
    assert run(wanted)[0].rows == 1
    assert parquet_offsets(tmp_path / "lake") == list(range(1000, 5001))


def test_files_are_partitioned_by_date_and_hour(make_lake, tmp_path):
    """Messages over 30 hours in one part."""
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    for number in range(60):
        lake.append(b"%d" % number)
        lake.turn()
        lake.clock.now_ms += 1_800_000
    run(options(lake, tmp_path, partition_by=("date", "hour"), columns=("offset", "value")))
    table = ds.dataset(str(tmp_path / "lake"), format="parquet", partitioning="hive").to_table()
    assert sorted(table.column("offset").to_pylist()) == list(range(60))
    found = {row["offset"]: (str(row["date"]), row["hour"]) for row in table.to_pylist()}
    whole = lake.rows(columns="offset,timestamp")
    assert found == {row["offset"]: (f"{row['timestamp']:%Y-%m-%d}", row["timestamp"].hour) for row in whole}
    assert len(set(found.values())) == 30 or len(set(found.values())) == 31


def test_same_hour_of_two_days_shares_a_directory(make_lake, tmp_path):
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    for number in range(4):
        lake.append(b"%d" % number)
        lake.turn()
        lake.clock.now_ms += 12 * 3_600_000
    run(options(lake, tmp_path, partition_by=("hour",)))
    assert len(list((tmp_path / "lake").iterdir())) == 2
    assert parquet_offsets(tmp_path / "lake") == [0, 1, 2, 3]


def test_columns_start_and_partition_by_are_applied(written, tmp_path):
    wanted = options(written, tmp_path, start="3000", columns=("offset", "routing_key"), partition_by=("routing_key",))
    assert run(wanted)[0].rows == 2000
    assert parquet_offsets(tmp_path / "lake") == list(range(3000, 5000))
    assert {path.name for path in (tmp_path / "lake").iterdir()} == {"routing_key=eu", "routing_key=us"}


def test_every_routing_key_has_a_directory(make_lake, tmp_path):
    """One message with a long key, or with a byte that no path may have, must not end all later exports."""
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    keys = ["a\0b", "k" * 243, "k" * 244, "k" * 255, "k" * 254 + "l", "/" * 100, "\u65e5" * 85, "", ".."]
    for key in keys:
        lake.append(key.encode(), route=RecordRoute(b"", key.encode()))
    lake.turn()
    run(options(lake, tmp_path, partition_by=("routing_key",)))
    names = sorted(path.name for path in (tmp_path / "lake").iterdir())
    assert len(names) == len(keys) and all(len(name.encode()) <= 255 for name in names)
    assert {"routing_key=a%00b", "routing_key=" + "k" * 243, "routing_key=.."} <= set(names)
    cut = [name.rpartition("...") for name in names if len(name) > 20 and "..." in name]
    assert sorted(len(end) for _, _, end in cut) == [16] * 5
    assert f"routing_key={'%2F' * 74}" in {begin for begin, _, _ in cut}
    assert parquet_offsets(tmp_path / "lake") == list(range(len(keys)))


@pytest.mark.parametrize("to", ["lake", "sqlite"])
def test_batches_without_rows_still_advance_the_checkpoint(written, tmp_path, to):
    """All records except one are acked."""
    target = {"to": f"sqlite:///{tmp_path / 'x.db'}"} if to == "sqlite" else {}
    written.store.ack_range(1001, 2999)
    written.settled()
    wanted = options(written, tmp_path, batch_rows=1000, to_offset=3000, **target)
    total, reports = run(wanted)
    assert (total.rows, total.batches, [report.rows for report in reports]) == (1, 3, [0, 1, 0])
    assert parquet_offsets(tmp_path / "lake") == ([] if to == "sqlite" else [1000])


def test_json_has_base64_for_binary_values(lake_with_odd_values, tmp_path):
    lake, values = lake_with_odd_values
    run(options(lake, tmp_path, format="json", columns=("offset", "value", "headers")))
    lines = [line for path in (tmp_path / "lake").glob("*.json") for line in path.read_text().splitlines()]
    rows = {row["offset"]: row for row in map(json.loads, lines)}
    assert rows[0] == {"offset": 0, "value": values[0].decode(), "headers": {"a": "1"}}
    assert rows[1] == {"offset": 1, "value_base64": "/wA="}
    assert rows[2]["value"] == ""


def test_csv_quotes_text_and_has_base64_for_binary_values(lake_with_odd_values, tmp_path):
    lake, values = lake_with_odd_values
    run(options(lake, tmp_path, format="csv", columns=("offset", "value", "headers")))
    (path,) = (tmp_path / "lake").glob("*.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["value"] for row in rows] == [values[0].decode(), "", ""]
    assert [row["value_base64"] for row in rows] == ["", "/wA=", ""]
    assert rows[0]["headers"] == '{"a":"1"}'


@pytest.fixture
def lake_with_odd_values(make_lake, tmp_path):
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    values = ['quotes " and, commas,\nlines \\ ä'.encode(), b"\xff\x00", b""]
    with_headers = p.encode_properties(p.Properties(headers={"a": 1}, delivery_mode=2))
    lake.append(values[0], properties=with_headers)
    lake.append(*values[1:])
    lake.turn()
    return lake, values


def test_database_gets_each_row_once_after_a_kill(written, tmp_path):
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    wanted = options(written, tmp_path, to=url, batch_rows=1500, table="tasks")
    ledger_commit = ExportCheckpoint.commit

    def killed(self):
        raise Killed

    ExportCheckpoint.commit = killed  # the database has the batch, but the checkpoint does not
    try:
        with pytest.raises(Killed):
            run(wanted)
    finally:
        ExportCheckpoint.commit = ledger_commit
    ledger = ExportCheckpoint(tmp_path / "check", wanted.identity())
    assert (ledger.state.batch, ledger.state.next.batch) == (0, 1)
    ledger.close()
    total, _ = run(wanted)
    assert (total.rows, total.bytes) == (4000, 800_000)
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text('SELECT "offset", value, timestamp FROM tasks ORDER BY 1')).fetchall()
        batches = connection.execute(text("SELECT batch, row_count FROM tasks_batches ORDER BY 1")).fetchall()
    engine.dispose()
    assert [row[0] for row in found] == list(range(1000, 5000))
    assert found[0][1] == b"01000" + b"." * 195
    assert [tuple(row) for row in batches] == [(1, 500), (2, 1500), (3, 1500), (4, 500)]


def test_delta_gets_each_row_once_after_a_kill(written, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    wanted = options(written, tmp_path, format="delta", batch_rows=2000, partition_by=("date",))
    ledger_commit = ExportCheckpoint.commit
    ExportCheckpoint.commit = lambda self: (_ for _ in ()).throw(Killed())
    try:
        with pytest.raises(Killed):
            run(wanted)
    finally:
        ExportCheckpoint.commit = ledger_commit
    run(wanted)
    table = deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()
    assert sorted(table.column("offset").to_pylist()) == list(range(1000, 5000))


class Killed(BaseException):
    """A simulated kill: it passes every `except Exception`."""


class Steps:
    """Raises Killed before or after the n-th file operation of the checkpoint."""

    def __init__(self, monkeypatch):
        self.left = None
        for thing, name in ((os, "fsync"), (Path, "replace"), (Path, "mkdir")):
            monkeypatch.setattr(thing, name, self._wrap(getattr(thing, name)))

    def _wrap(self, real):
        def step(*arguments, **named):
            if self.left is not None:
                self.left -= 1
                if self.left == 0:
                    raise Killed
                if self.left == 1 and real.__name__ == "replace":
                    real(*arguments, **named)  # killed right after it
                    self.left = 0
                    raise Killed
            return real(*arguments, **named)

        return step


def test_kill_at_any_step_of_a_batch_loses_and_repeats_nothing(written, tmp_path, monkeypatch):
    """Each run is killed one step later than the run before, in its current batch."""
    wanted = options(written, tmp_path, batch_rows=100, columns=("offset",), partition_by=("hour",))
    steps = Steps(monkeypatch)
    kills = 0
    for number in range(2, 60):
        steps.left = number
        batches = []
        try:
            run_one_batch = ExportJob(
                wanted, PyarrowEngine(), batches.append, lambda batches=batches: len(batches) >= 1
            )
            run_one_batch.run()
        except Killed:
            kills += 1
        finally:
            steps.left = None
        seen = parquet_offsets(tmp_path / "lake")  # every file is complete
        assert max(Counter(seen).values(), default=0) <= 1
        if batches and steps.left is None and kills and number > 35:
            break
    assert kills >= 15
    run(wanted)
    assert parquet_offsets(tmp_path / "lake") == list(range(1000, 5000))
    assert not (tmp_path / "check" / "staging").exists()


def test_failed_start_does_not_bind_the_checkpoint(written, tmp_path):
    wrong = replace(options(written, tmp_path), queue="nosuch")
    with pytest.raises(NoSuchQueue):
        run(wrong)
    assert not (tmp_path / "check").exists() and not (tmp_path / "lake").exists()
    assert run(options(written, tmp_path, to_offset=1100))[0].rows == 100
    (tmp_path / "file").touch()
    with pytest.raises(TargetError, match="--to .*file: File exists"):
        run(replace(options(written, tmp_path), to=str(tmp_path / "file"), checkpoint=str(tmp_path / "other")))


def test_queue_declared_again_replaces_no_file(written, tmp_path):
    wanted = options(written, tmp_path, fail_on_data_loss=False)
    run(wanted)
    state = tmp_path / "check" / "state.json"
    queue_id = json.loads(state.read_text())["position"]["//tasks"]["id"]
    state.write_text(state.read_text().replace(queue_id, "deleted"))
    assert run(wanted)[0].rows == 4000
    assert parquet_offsets(tmp_path / "lake") == sorted([*range(1000, 5000)] * 2)


def test_log_that_ends_before_the_checkpoint_is_an_error(written, tmp_path, caplog):
    """A broker's directory was replaced by a backup. Its next messages have offsets of exported ones."""
    run(options(written, tmp_path))
    state = tmp_path / "check" / "state.json"
    state.write_text(state.read_text().replace('"offset": 5000', '"offset": 5001'))
    with pytest.raises(DataLoss, match="the log of queue 'tasks' ends at 5000, before offset 5001"):
        run(options(written, tmp_path))
    for body in (b"skipped", b"new"):
        written.append(body)
    written.turn()
    assert run(options(written, tmp_path, fail_on_data_loss=False))[0].rows == 1
    state.write_text(state.read_text().replace('"offset": 5002', '"offset": 6000'))
    caplog.clear()
    run(options(written, tmp_path, fail_on_data_loss=False))
    lost = "lost: the log of queue 'tasks' ends at 5002, before offset 6000"
    assert caplog.messages == [lost], "once for each run, also with --follow"


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_of_two_exports_that_begin_together_one_is_refused(written, tmp_path, format):
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}.get(format, "pyarrow"))
    wanted = options(written, tmp_path, format=format, table="amqp.messages")

    class LateEngine(PyarrowEngine):
        def write_files(self, rows, layout):
            run(wanted)
            return super().write_files(rows, layout)

    late = replace(wanted, checkpoint=str(tmp_path / "late"))
    for engine in (LateEngine(), None):  # the rerun fails too
        with pytest.raises(TargetError, match="of an export with another checkpoint"):
            run(late, engine)
    assert len(list((tmp_path / "lake").rglob("tasks-*.parquet"))) == 1


@pytest.mark.parametrize("job", [ExportJob, SharedExportJob])
@pytest.mark.parametrize("links", [1, 2])
def test_of_two_exports_whose_first_files_appear_together_one_is_refused(written, tmp_path, monkeypatch, job, links):
    """With two links the answer of the first one was lost, as over NFS."""
    wanted = options(written, tmp_path)
    late = replace(wanted, checkpoint=str(tmp_path / "late"))
    publish, link = LocalFiles.publish, os.link

    def publish_late(self, moves):
        monkeypatch.setattr(LocalFiles, "publish", publish)
        with pytest.raises(TargetError, match="an export with another checkpoint writes its first files"):
            run(late, job=job)
        publish(self, moves)

    monkeypatch.setattr(os, "link", lambda *paths: [link(*paths) for _ in range(links)])
    monkeypatch.setattr(LocalFiles, "publish", publish_late)
    assert run(wanted, job=job)[0].rows == 4000
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(late, job=job)
    assert len(list((tmp_path / "lake").iterdir())) == 1


def test_first_files_of_a_killed_export_are_completed_by_its_rerun(written, tmp_path, monkeypatch):
    wanted = options(written, tmp_path)
    late = replace(wanted, checkpoint=str(tmp_path / "late"))
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "publish", Mock(side_effect=Killed))
        patched.setattr(Path, "unlink", lambda path, missing_ok: None)
        with pytest.raises(Killed):
            run(wanted)
    assert (tmp_path / "lake" / ".tasks.parquet.first").exists()
    with pytest.raises(TargetError, match="run that one again, or delete .*/lake/.tasks.parquet.first"):
        run(late)
    assert run(wanted)[0].rows == 4000
    assert len(list((tmp_path / "lake").glob("*.first"))) == 0


@pytest.mark.parametrize("job", [ExportJob, SharedExportJob])
def test_another_export_is_seen_after_batches_without_rows(written, tmp_path, job):
    wanted = options(written, tmp_path)
    total = run(replace(wanted, to_offset=500), job=job)[0]  # these messages are acked
    assert (total.batches, total.rows) == (1, 0)
    assert run(replace(wanted, checkpoint=str(tmp_path / "late")))[0].rows == 4000
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(wanted, job=job)


def test_directory_without_hard_links_is_a_target(written, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "Operation not permitted")))
    assert run(options(written, tmp_path))[0].rows == 4000


def test_checkpoint_of_another_export_is_refused(written, tmp_path):
    run(options(written, tmp_path, to_offset=1100))
    with pytest.raises(CheckpointError, match="--where"):
        run(options(written, tmp_path, where="true"))
    for _ in range(2):  # the second attempt fails too
        with pytest.raises(TargetError, match="with another checkpoint"):
            run(options(written, tmp_path, checkpoint=str(tmp_path / "other")))
    wanted = options(written, tmp_path)
    ledger = ExportCheckpoint(tmp_path / "check", wanted.identity())
    with pytest.raises(CheckpointError, match="another export uses the checkpoint"):
        run(wanted)
    ledger.close()
    (tmp_path / "check" / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        run(wanted)


def test_impossible_exports_are_refused(written, tmp_path):
    with pytest.raises(NoSuchQueue, match="no durable queue 'none'"):
        run(ExportOptions({"path": written.data_dir}, "/", "none", str(tmp_path / "l"), str(tmp_path / "c")))
    for wrong, words in (
        ({"partition_by": ("year",)}, "--partition-by year"),
        ({"partition_by": ("value",)}, "it is a binary"),
        ({"partition_by": ("date", "date")}, "--partition-by date,date: a name is there twice"),
        ({"columns": ("value", "offset", "value")}, "--columns value,offset,value: a name is there twice"),
        ({"partition_by": ("date",), "to": "sqlite://"}, "no directories"),
        ({"partition_by": ("queue",), "columns": ("queue",)}, "no column would be left"),
    ):
        with pytest.raises(BadExport, match=words):
            run(options(written, tmp_path, **wrong))


def test_records_removed_before_their_export_are_a_data_loss(written, tmp_path):
    run(options(written, tmp_path, to_offset=1100))
    for path in sorted(Path(written.place).glob("*.log"))[:2]:
        path.unlink()
    with pytest.raises(DataLoss, match="offsets 1100 to"):
        run(options(written, tmp_path))
    total, _ = run(options(written, tmp_path, fail_on_data_loss=False))
    assert 0 < total.rows < 3900


def test_move_between_file_systems_copies(tmp_path, monkeypatch):
    staged, final = tmp_path / "staged", tmp_path / "lake" / "a" / "final"
    staged.write_bytes(b"x" * 100)
    real = Path.replace

    def replace(self, target):
        if self == staged and staged.exists():
            raise OSError(18, "Invalid cross-device link")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    move([[str(staged), str(final)]])
    assert final.read_bytes() == b"x" * 100
    assert not staged.exists()
    move([[str(staged), str(final)]])  # again, like after a kill
    with pytest.raises(CheckpointError, match="does not exist"):
        move([[str(staged), str(tmp_path / "never")]])


def test_file_label_is_a_safe_short_name():
    assert file_label("orders") == "orders"
    assert file_label("a/b c") == "a%2Fb%20c"
    assert file_label("_hidden") == "%5Fhidden"
    assert file_label("...") == "%2E.."
    labels = [file_label(name) for name in ("orders", ".orders", "_orders", "..orders", "%2Eorders")]
    assert len(set(labels)) == len(labels) and not any(each.startswith((".", "_")) for each in labels)
    assert file_label("ä") == "%C3%A4"
    long = [file_label("/" * 200 + end) for end in "ab"]
    assert [len(each) for each in long] == [120, 120]
    assert long[0] != long[1]
