"""Export to an Iceberg table: rows, partitions, added columns, kills, conflicts, other catalogs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from amqpd.cli.main import run as run_command
from amqpd.protocol import properties as p
from amqpd.storage.export.checkpoint import ExportCheckpoint
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.iceberg import Iceberg
from amqpd.storage.export.job import BadExport, ExportJob, ExportOptions
from amqpd.storage.export.targets import TargetError
from amqpd.storage.filesystem import FileSystem

pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`


def options(lake, tmp_path, **given):
    defaults = {"to": str(tmp_path / "lake"), "table": "amqp.messages", "checkpoint": str(tmp_path / "check")}
    return ExportOptions({"path": lake.data_dir}, "/", "tasks", format="iceberg", **(defaults | given))


def run(wanted):
    return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()


def opened(tmp_path, name="amqp.messages"):
    from pyiceberg.catalog.sql import SqlCatalog

    if not (tmp_path / "lake" / "catalog.db").exists():
        return None
    catalog = SqlCatalog("amqpd", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
    try:
        return catalog.load_table(name) if catalog.table_exists(name) else None
    finally:
        catalog.close()


def offsets(table):
    if table is None:
        return []
    return sorted(table.scan(selected_fields=("offset",)).to_arrow().column("offset").to_pylist())


def test_rows_are_read_by_pyiceberg_and_duckdb(written, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    total = run(options(written, tmp_path, batch_rows=1500))
    assert (total.rows, total.bytes, total.batches, total.lag) == (4000, 800_000, 4, 0)
    table = opened(tmp_path)
    assert offsets(table) == list(range(1000, 5000))
    (row,) = table.scan("offset = 1234").to_arrow().to_pylist()
    assert row["value"] == b"01234" + b"." * 195
    assert (row["vhost"], row["queue"], row["exchange"], row["routing_key"]) == ("/", "tasks", "orders", "us")
    messages = table.scan().to_arrow()
    found = duckdb.sql('SELECT routing_key, count(*), max("offset") FROM messages GROUP BY 1 ORDER BY 1').fetchall()
    assert found == [("eu", 2000, 4999), ("us", 2000, 4998)] and messages.num_rows == 4000
    batches = [each.summary.additional_properties for each in table.snapshots()]
    assert [each["amqpd.batch"] for each in batches] == ["1", "2", "3", "4"]
    assert json.loads(batches[-1]["amqpd.position"])["//tasks"]["offset"] == 5000
    assert {Path(each.file.file_path.removeprefix("file://")).parent for each in table.scan().plan_files()} == {
        tmp_path / "lake" / "amqp" / "messages" / "data"
    }


@pytest.mark.parametrize(
    ("by", "transforms", "count"),
    [
        (("date",), ["day(timestamp)"], 2),
        (("date", "hour"), ["hour(timestamp)"], 30),
        (("hour",), ["hour(timestamp)"], 30),
        (("queue", "routing_key"), ["identity(queue)", "identity(routing_key)"], 3),
    ],
)
def test_partitions_are_transforms_that_readers_prune_by(make_lake, tmp_path, by, transforms, count):
    from amqpd.storage.log.record import RecordRoute

    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    for number in range(60):
        lake.append(b"%d" % number, route=RecordRoute(b"", (b"", b"a/b", b"c")[number % 3]))
        lake.turn()
        lake.clock.now_ms += 1_800_000
    run(options(lake, tmp_path, partition_by=by))
    table = opened(tmp_path)
    schema = table.schema()
    assert [
        f"{each.transform}({schema.find_column_name(each.source_id)})" for each in table.spec().fields
    ] == transforms
    assert offsets(table) == list(range(60))
    partitions = table.inspect.partitions().num_rows
    assert count <= partitions <= count + 1  # the clock may begin in the middle of an hour or a day
    if "routing_key" in by:
        assert [len(offsets_of(table, f"routing_key = '{key}'")) for key in ("", "a/b", "c")] == [20, 20, 20]
        assert len(list(table.scan("routing_key = 'a/b'").plan_files())) == 1


def offsets_of(table, condition):
    return table.scan(condition, selected_fields=("offset",)).to_arrow().column("offset").to_pylist()


def test_later_run_adds_columns(make_lake, tmp_path):
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    with_headers = p.encode_properties(p.Properties(headers={"a": 1}, delivery_mode=2, type="order"))
    for columns in (("offset", "timestamp"), ("offset", "timestamp", "headers", "properties"), ("offset", "queue")):
        lake.append(b"x", b"y", properties=with_headers)
        lake.turn()
        assert (
            run(options(lake, tmp_path, columns=columns, partition_by=("date",) if len(columns) > 9 else ())).rows == 2
        )
    table = opened(tmp_path)
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["offset"])
    assert [set(row) for row in rows] == [{"offset", "timestamp", "headers", "properties", "queue"}] * 6
    assert [row["headers"] for row in rows] == [None, None, [("a", "1")], [("a", "1")], None, None]
    assert rows[3]["properties"]["type"] == "order" and rows[5]["queue"] == "tasks"
    assert [row["timestamp"] is None for row in rows] == [False] * 4 + [True] * 2


def test_other_partitions_and_checkpoints_are_refused(written, tmp_path):
    wanted = options(written, tmp_path)
    run(replace(wanted, to_offset=2000))
    with pytest.raises(TargetError, match="batches of an export with another checkpoint"):
        run(replace(wanted, checkpoint=str(tmp_path / "other")))
    with pytest.raises(TargetError, match=r"partitioned by \(nothing\), and the export by day\(timestamp\)"):
        run(replace(wanted, checkpoint=str(tmp_path / "third"), partition_by=("date",), queue=None))
    with pytest.raises(BadExport, match="needs the column timestamp"):
        run(options(written, tmp_path, partition_by=("hour",), columns=("offset",)))
    with pytest.raises(TargetError, match=r"expected NAMESPACE\.TABLE"):
        run(options(written, tmp_path, table="messages", to=str(tmp_path / "l2"), checkpoint=str(tmp_path / "c2")))
    assert run(wanted).rows == 3000


@pytest.mark.slow
def test_kill_at_each_step_of_a_batch_loses_and_repeats_nothing(written, tmp_path, kill_steps):
    """Steps are those of the checkpoint, the requests to the catalog, and the files that pyiceberg writes. Each run is
    killed after one step more than the run before.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFile

    kill_steps.wrap(SqlCatalog, "create_table", "create_namespace_if_not_exists", "load_table", "commit_table")
    kill_steps.wrap(PyArrowFile, "create")
    wanted = options(written, tmp_path, batch_rows=100, columns=("offset",), start="1000")
    for number in range(1, 80):
        batches = []
        job = ExportJob(wanted, PyarrowEngine(), batches.append, lambda batches=batches: len(batches) >= 2)
        kill_steps.run(number, True, job.run)
        seen = offsets(opened(tmp_path))
        assert max(Counter(seen).values(), default=0) <= 1
        if len(batches) >= 2:
            break
    print(f"{kill_steps.count} kills")
    assert kill_steps.count >= 20
    run(wanted)
    assert offsets(opened(tmp_path)) == list(range(1000, 5000))
    assert not (tmp_path / "check" / "staging").exists()


def test_repeated_batch_is_known_after_its_snapshot_expired(written, tmp_path, monkeypatch, kill_steps):
    wanted = options(written, tmp_path, batch_rows=2000)
    with monkeypatch.context() as patched:
        patched.setattr(ExportCheckpoint, "commit", lambda self: (_ for _ in ()).throw(kill_steps.Killed()))
        with pytest.raises(kill_steps.Killed):
            run(wanted)
    table = opened(tmp_path)
    other = table.scan().to_arrow()
    table.overwrite(other)  # another writer; then the batch's snapshot expires
    (first, *_) = table.snapshots()
    table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    assert first.snapshot_id not in [each.snapshot_id for each in opened(tmp_path).snapshots()]
    total = run(wanted)
    assert (total.rows, total.bytes) == (4000, 800_000)
    assert offsets(opened(tmp_path)) == list(range(1000, 5000))


def test_commit_of_another_writer_in_between_is_repeated(written, tmp_path, monkeypatch):
    from pyiceberg.catalog.sql import SqlCatalog

    run(options(written, tmp_path, to_offset=2000))
    real, others = SqlCatalog.commit_table, []

    def commit_table(self, table, requirements, updates):
        if not others:
            others.append(1)
            opened(tmp_path).append(opened(tmp_path).scan(limit=1).to_arrow())
        return real(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    run(options(written, tmp_path))
    found = Counter(offsets(opened(tmp_path)))
    assert sorted(found) == list(range(1000, 5000)) and found.total() == 4001


def test_late_commit_of_a_killed_run_is_not_repeated(written, tmp_path, monkeypatch):
    """The late commit arrives after the next run has read the table, and before that run commits."""
    from pyiceberg.catalog.sql import SqlCatalog

    run(options(written, tmp_path, to_offset=2000))
    publish, commit, calls, late = Iceberg._publish, SqlCatalog.commit_table, [], []

    def commit_table(self, table, requirements, updates):
        if not late:
            late.append(calls[-1])
            publish(*late[0])
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(Iceberg, "_publish", lambda *call: calls.append(call) or publish(*call))
    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    run(options(written, tmp_path, batch_rows=1000))
    assert late and offsets(opened(tmp_path)) == list(range(1000, 5000))
    assert "commit.retry.num-retries" not in opened(tmp_path).properties


def test_commands_for_a_directory_and_for_a_catalog_of_the_configuration(written, tmp_path, monkeypatch):
    """A second catalog, as an operator configures one."""
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__WAREHOUSE", f"file://{tmp_path}/warehouse")
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())
    commands = (
        (("--to", str(tmp_path / "lake"), "--format", "iceberg"), 0, "Exported 4,000 records"),
        (("--to", str(tmp_path / "lake"), "--format", "iceberg", "--table", "t"), 64, "expected NAMESPACE.TABLE"),
        (("--to", "iceberg://shop/orders.tasks"), 64, "--checkpoint is needed"),
        (("--to", "iceberg://shop/orders.tasks", "--checkpoint", str(tmp_path / "c")), 0, "Exported 4,000 records"),
        (("--to", "iceberg://shop/orders.tasks", "--checkpoint", str(tmp_path / "c")), 0, "Exported 0 records"),
        (
            ("--to", "iceberg://shop/orders", "--checkpoint", str(tmp_path / "c")),
            64,
            "iceberg://CATALOG/NAMESPACE.TABLE",
        ),
        (("--to", "iceberg://none/o.t", "--checkpoint", str(tmp_path / "d")), 69, "Iceberg, iceberg://none/o.t: "),
    )
    for arguments, code, words in commands:
        out = io.StringIO()
        where = ("--data-dir", written.data_dir, "--queue", "tasks")
        assert run_command(["export", *where, *arguments], out, out, io.StringIO(), {}) == code, out.getvalue()
        assert words in out.getvalue() and "Traceback" not in out.getvalue()
    shop = catalog.load_catalog("shop")
    assert offsets(shop.load_table("orders.tasks")) == list(range(1000, 5000))
    shop.close()


def test_table_in_an_object_store(written, tmp_path, s3):
    to = "s3://lake/iceberg"
    total = run(options(written, tmp_path, to=to, batch_rows=1500, partition_by=("date",)))
    assert (total.rows, total.batches) == (4000, 4)
    from pyiceberg.catalog.sql import SqlCatalog

    where = {"s3.endpoint": s3.url, "s3.region": "us-east-1"}
    catalog = SqlCatalog("amqpd", uri=f"sqlite:///{tmp_path / 'check' / 'catalog.db'}", **where)
    table = catalog.load_table("amqp.messages")
    catalog.close()
    assert table.location() == "s3://lake/iceberg/amqp/messages"
    assert offsets(table) == list(range(1000, 5000))


@pytest.mark.ci_long
def test_kill_of_the_driver_at_each_request_to_the_store_loses_and_repeats_nothing(written, tmp_path, s3):
    """`kill -9` at each request that changes the store: before the store has it and, each second time, after it."""
    root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    kills = 0
    for number in range(1, 60):
        check = tmp_path / str(number)
        command = [
            sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", written.data_dir, "--formatter", "json", "export",
            "--queue", "tasks", "--to", f"s3://lake/killed/{number}", "--format", "iceberg", "--checkpoint", str(check),
            "--batch", "4000", "--from", "1000",
        ]  # fmt: skip
        fault = "kill" if number % 2 else "kill after"
        s3.reset(lambda count, number=number, fault=fault: fault if count == number else "")
        s3.victim = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, err = s3.victim.communicate(timeout=600)
        assert s3.victim.returncode in (0, -signal.SIGKILL), err
        s3.reset()
        if s3.victim.returncode == 0:
            break
        kills += 1
        assert len(stored_offsets(check, s3)) in (0, 4000)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["waiting"] == 0
        assert stored_offsets(check, s3) == list(range(1000, 5000))
    print(f"{kills} kills")
    assert kills >= 5


def stored_offsets(check, s3):
    from pyiceberg.catalog.sql import SqlCatalog

    if not (check / "catalog.db").exists():
        return []
    catalog = SqlCatalog(
        "amqpd", uri=f"sqlite:///{check / 'catalog.db'}", **{"s3.endpoint": s3.url, "s3.region": "us-east-1"}
    )
    try:
        return offsets(catalog.load_table("amqp.messages") if catalog.table_exists("amqp.messages") else None)
    finally:
        catalog.close()


def test_missing_bucket_ends_the_export_before_it_reads(written, tmp_path, s3, monkeypatch):
    wanted = options(written, tmp_path, to="s3://missing/iceberg")
    engine = PyarrowEngine()
    monkeypatch.setattr(engine, "write_files", lambda *arguments: pytest.fail("the export has read messages"))
    with pytest.raises(TargetError, match=r"Iceberg, s3://missing/iceberg: .*bucket"):
        ExportJob(wanted, engine, lambda report: None, lambda: False).run()
