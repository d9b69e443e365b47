"""Compaction of Delta and Iceberg tables: few files, equal rows, kills at each step, commits of others in between."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from amqpd.cli.main import run as run_command
from amqpd.storage.export import iceberg_compaction
from amqpd.storage.export.checkpoint import ExportCheckpoint
from amqpd.storage.export.compaction_job import compact
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.file_compaction import CompactionOptions, Watch, merge
from amqpd.storage.export.iceberg import TableFiles
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.targets import TargetError

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`

LATER = datetime(2200, 1, 1, tzinfo=UTC)
WATCH = Watch(lambda report: None, lambda: False)
BY = {"delta": ("date", "routing_key"), "iceberg": ("hour", "routing_key")}


def options(lake, tmp_path, kind, **given):
    defaults = {"to": str(tmp_path / "lake"), "checkpoint": str(tmp_path / "check"), "format": kind}
    table = {"table": "shop.orders"} if kind == "iceberg" else {}
    return ExportOptions({"path": lake.data_dir}, "/", "tasks", **(defaults | table | given))


def run(wanted):
    return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()


def compacted(tmp_path, to=None, **given):
    wanted = CompactionOptions(to or str(tmp_path / "lake"), tmp_path / "check", **{"now": LATER, **given})
    return compact(wanted, WATCH)


def iceberg_table(catalog_db):
    from pyiceberg.catalog.sql import SqlCatalog

    given = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]} if "AWS_ENDPOINT_URL" in os.environ else {}
    catalog = SqlCatalog("amqpd", uri=f"sqlite:///{catalog_db}", **given)
    try:
        return catalog.load_table("shop.orders")
    finally:
        catalog.close()


def rows_and_files(tmp_path, kind):
    """Return the table's rows in the order of their offsets, and the paths of its files."""
    if kind == "delta":
        table = deltalake.DeltaTable(str(tmp_path / "lake"))
        return table.to_pyarrow_table().sort_by("offset"), table.file_uris()
    table = iceberg_table(tmp_path / "lake" / "catalog.db")
    return table.scan().to_arrow().sort_by("offset"), [each.file.file_path for each in table.scan().plan_files()]


def offsets(tmp_path, kind):
    return rows_and_files(tmp_path, kind)[0]["offset"].to_pylist()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_table_has_the_same_rows_in_few_files(written, tmp_path, kind):
    wanted = options(written, tmp_path, kind, batch_rows=500, partition_by=BY[kind])
    run(wanted)
    rows, files = rows_and_files(tmp_path, kind)
    report = compacted(tmp_path)
    after, left = rows_and_files(tmp_path, kind)
    assert after.equals(rows) and rows.num_rows == 4000
    assert len(files) >= 16 and len(left) <= 4
    assert (report.merged, report.written, report.waiting) == (len(files), len(left), 0)
    assert report.bytes_after < report.bytes_before
    assert compacted(tmp_path).merged == 0
    assert run(wanted).rows == 0  # the checkpoint still belongs to the table
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(replace(wanted, checkpoint=str(tmp_path / "other")))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_partition_of_the_present_is_left_alone(written, tmp_path, kind):
    run(options(written, tmp_path, kind, batch_rows=1000, partition_by=("date",)))
    (day,) = {each.as_py() for each in rows_and_files(tmp_path, kind)[0]["timestamp"].cast("date32").unique()}
    now = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    assert compacted(tmp_path, now=now).merged == 0
    assert compacted(tmp_path).merged == 4


def test_new_checkpoint_is_refused_after_the_delta_table_lost_the_exports_files(written, tmp_path):
    wanted = options(written, tmp_path, "delta", batch_rows=1000)
    run(replace(wanted, to_offset=3000))
    table = deltalake.DeltaTable(str(tmp_path / "lake"))
    table.optimize.compact()
    assert table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert not list((tmp_path / "lake").glob("tasks-*"))
    with pytest.raises(TargetError, match="the Delta table has batches of an export with another checkpoint"):
        run(replace(wanted, checkpoint=str(tmp_path / "other")))
    run(replace(wanted, queue=None, checkpoint=str(tmp_path / "all")))  # another name is no copy
    assert run(wanted).rows == 2000
    assert Counter(offsets(tmp_path, "delta")) == dict.fromkeys(range(1000, 5000), 2)


@pytest.mark.parametrize("is_committed", [True, False])
def test_vacuum_after_a_kill_loses_and_repeats_nothing(written, tmp_path, monkeypatch, kill_steps, is_committed):
    wanted = options(written, tmp_path, "delta", batch_rows=1000)
    run(replace(wanted, to_offset=3000))
    with monkeypatch.context() as patched:
        table = deltalake.DeltaTable
        owner, name = (ExportCheckpoint, "commit") if is_committed else (table, "create_write_transaction")
        patched.setattr(owner, name, lambda *arguments, **named: (_ for _ in ()).throw(kill_steps.Killed()))
        with pytest.raises(kill_steps.Killed):
            run(wanted)
    assert compacted(tmp_path).merged >= 2
    deltalake.DeltaTable(str(tmp_path / "lake")).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not list((tmp_path / "lake").glob("tasks-*"))
    assert run(wanted).rows == 2000
    assert offsets(tmp_path, "delta") == list(range(1000, 5000))


def test_old_files_of_a_delta_table_are_removed_after_its_retention(written, tmp_path):
    run(options(written, tmp_path, "delta", batch_rows=1000))
    table = deltalake.DeltaTable(str(tmp_path / "lake"))
    table.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    report = compacted(tmp_path)
    assert report.removed == report.merged == 4
    assert len(list((tmp_path / "lake").glob("*.parquet"))) == 1
    assert offsets(tmp_path, "delta") == list(range(1000, 5000))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_kill_at_each_step_shows_each_row_once(written, tmp_path, kill_steps, kind):
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFile

    wanted = options(written, tmp_path, kind, batch_rows=500, partition_by=("routing_key",))
    run(replace(wanted, to_offset=3000))
    for name in ("lake", "check"):
        shutil.copytree(tmp_path / name, tmp_path / "data" / name)
    kill_steps.wrap(SqlCatalog, "load_table", "commit_table")
    kill_steps.wrap(PyArrowFile, "create")
    kill_steps.wrap(TableFiles, "publish")
    kill_steps.wrap(iceberg_compaction, "merge")
    kill_steps.wrap(deltalake.DeltaTable, "vacuum")
    kill_steps.wrap(deltalake.table.TableOptimizer, "compact")
    kill_steps.wrap(shutil, "rmtree")
    counts = Counter()
    for number in range(1, 200):
        for name in ("lake", "check"):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(tmp_path / "data" / name, tmp_path / name)
        done = []
        kill_steps.run(number, True, lambda done=done: done.append(compacted(tmp_path)))
        rows, files = rows_and_files(tmp_path, kind)
        counts[len(files)] += 1
        assert rows["offset"].to_pylist() == list(range(1000, 3000))
        end = 3200 if number % 3 == 0 else 3000
        run(replace(wanted, to_offset=end))
        compacted(tmp_path)
        rows, files = rows_and_files(tmp_path, kind)
        assert rows["offset"].to_pylist() == list(range(1000, end)) and len(files) <= 4
        if kind == "iceberg":
            assert not (tmp_path / "check" / "compaction" / "iceberg").exists()
            known = iceberg_table(tmp_path / "lake" / "catalog.db").inspect.all_files()["file_path"].to_pylist()
            assert {each.removeprefix("file://") for each in known} == {
                str(each) for each in (tmp_path / "lake").rglob("data/**/*.parquet")
            }
        if done:
            break
    print(f"{kill_steps.count} kills, {dict(counts)}")
    assert done and kill_steps.count >= (20 if kind == "iceberg" else 3) and len(counts) >= 2


def test_files_of_a_killed_run_wait_for_its_commit_in_a_catalog_server(written, tmp_path, monkeypatch, kill_steps):
    """The commit may still arrive, so the files are deleted by a later run only."""
    for name, value in (
        ("TYPE", "sql"),
        ("URI", f"sqlite:///{tmp_path}/shop.db"),
        ("WAREHOUSE", f"file://{tmp_path}/w"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__SHOP__{name}", value)
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())
    to = "iceberg://shop/shop.orders"
    run(options(written, tmp_path, "iceberg", to=to, batch_rows=1000))
    with monkeypatch.context() as patched:
        patched.setattr(
            iceberg_compaction.IcebergCompaction,
            "_overwrite",
            lambda *given: (_ for _ in ()).throw(kill_steps.Killed()),
        )
        with pytest.raises(kill_steps.Killed):
            compacted(tmp_path, to)
    (killed,) = (tmp_path / "w").rglob("*-merged-*")
    assert compacted(tmp_path, to).merged == 4
    assert compacted(tmp_path, to).merged == 0
    assert killed.exists() and len(list((tmp_path / "w").rglob("*-merged-*"))) == 2
    monkeypatch.setattr(iceberg_compaction, "LATE_S", 0.0)
    compacted(tmp_path, to)
    assert not killed.exists() and len(list((tmp_path / "w").rglob("*-merged-*"))) == 1
    assert not (tmp_path / "check" / "compaction" / "iceberg").exists()


def test_commit_of_an_export_in_between_is_kept(written, tmp_path, monkeypatch):
    wanted = options(written, tmp_path, "iceberg", batch_rows=500)
    run(replace(wanted, to_offset=3000))
    real, others = iceberg_compaction.IcebergCompaction._overwrite, []

    def overwrite(self, table, done):
        if len(others) < 2:
            others.append(1)
            run(replace(wanted, to_offset=3000 + 500 * len(others)))
        real(self, table, done)

    monkeypatch.setattr(iceberg_compaction.IcebergCompaction, "_overwrite", overwrite)
    assert compacted(tmp_path).merged >= 4
    assert len(others) == 2
    run(wanted)
    assert offsets(tmp_path, "iceberg") == list(range(1000, 5000))


def test_files_that_another_writer_changed_stay(written, tmp_path, monkeypatch):
    wanted = options(written, tmp_path, "iceberg", batch_rows=500)
    run(wanted)

    def merge_and_delete(sources, target):
        size = merge(sources, target)
        iceberg_table(tmp_path / "lake" / "catalog.db").delete("offset < 1700")
        return size

    monkeypatch.setattr(iceberg_compaction, "merge", merge_and_delete)
    with pytest.raises(TargetError, match="another writer has changed"):
        compacted(tmp_path)
    monkeypatch.undo()
    assert offsets(tmp_path, "iceberg") == list(range(1700, 5000))
    assert not list((tmp_path / "lake").rglob("*-merged-*"))
    compacted(tmp_path)  # pyiceberg's own file has field ids, and is left alone
    rows, files = rows_and_files(tmp_path, "iceberg")
    assert rows["offset"].to_pylist() == list(range(1700, 5000)) and len(files) == 2


def test_columns_that_were_added_later_are_null_in_merged_files(written, tmp_path):
    for columns, to_offset in ((("offset", "queue"), 3000), (("offset", "queue", "value"), None)):
        run(options(written, tmp_path, "iceberg", batch_rows=500, columns=columns, to_offset=to_offset))
    before, _ = rows_and_files(tmp_path, "iceberg")
    assert compacted(tmp_path).written == 2
    after, files = rows_and_files(tmp_path, "iceberg")
    assert after.equals(before) and after["value"].null_count == 2000 and len(files) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_in_an_object_store(written, tmp_path, s3, monkeypatch, kind):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.direct_url)
    to = f"s3://lake/compacted/{kind}"
    run(options(written, tmp_path, kind, to=to, batch_rows=500))
    report = compacted(tmp_path, to)
    assert report.merged >= 8 and report.written == 1
    if kind == "iceberg":
        found = iceberg_table(tmp_path / "check" / "catalog.db").scan().to_arrow()
    else:
        found = deltalake.DeltaTable(to, storage_options={"allow_http": "true"}).to_pyarrow_table()
    assert sorted(found["offset"].to_pylist()) == list(range(1000, 5000))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_command(written, tmp_path, kind):
    to = str(tmp_path / "lake")
    run(options(written, tmp_path, kind, batch_rows=1000, checkpoint=f"{to}.checkpoint"))
    out = io.StringIO()
    assert run_command(["compact_export", "--to", to, "--formatter", "json", "-q"], out, out, io.StringIO(), {}) == 0
    found = json.loads(out.getvalue())
    assert (found["merged"], found["written"], found["to"]) == (4, 1, to)
    assert offsets(tmp_path, kind) == list(range(1000, 5000))
    shutil.rmtree(Path(to))
    assert run_command(["compact_export", "--to", to], out, out, io.StringIO(), {}) == 69
