"""Export to a Delta table without Spark: rows, statistics, partitions, added columns, kills at each step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from amqpd.storage.export import delta
from amqpd.storage.export.checkpoint import ExportCheckpoint
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.targets import TargetError
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.record import RecordRoute

deltalake = pytest.importorskip("deltalake")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`


def options(lake, tmp_path, **given):
    defaults = {"to": str(tmp_path / "lake"), "checkpoint": str(tmp_path / "check")}
    return ExportOptions({"path": lake.data_dir}, "/", "tasks", format="delta", **(defaults | given))


def run(wanted):
    return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()


def opened(to):
    return deltalake.DeltaTable(str(to), storage_options={"allow_http": "true"})


def offsets(to):
    if not deltalake.DeltaTable.is_deltatable(str(to), {"allow_http": "true"}):
        return []
    return sorted(opened(to).to_pyarrow_table().column("offset").to_pylist())


def test_rows_are_read_by_deltalake_and_duckdb(written, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    total = run(options(written, tmp_path, batch_rows=1500, partition_by=("date", "routing_key")))
    assert (total.rows, total.bytes, total.batches) == (4000, 800_000, 4)
    assert offsets(tmp_path / "lake") == list(range(1000, 5000))
    messages = opened(tmp_path / "lake").to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql('SELECT routing_key, count(*), max("offset") FROM messages GROUP BY 1 ORDER BY 1').fetchall()
    assert found == [("eu", 2000, 4999), ("us", 2000, 4998)]
    (row,) = duckdb.sql('SELECT value, date, timestamp::DATE FROM messages WHERE "offset" = 1234').fetchall()
    assert row[0] == b"01234" + b"." * 195 and row[1] is not None


def test_statistics_are_those_of_the_rows(written, tmp_path):
    run(options(written, tmp_path, batch_rows=1500, columns=("offset", "timestamp", "value")))
    table = opened(tmp_path / "lake")
    rows = table.to_pyarrow_table().to_pylist()
    found = deltalake.DeltaTable(str(tmp_path / "lake")).get_add_actions(flatten=True)
    import pyarrow as pa

    files = pa.table(found).to_pylist()
    assert sorted((each["min.offset"], each["max.offset"], each["num_records"]) for each in files) == [
        (1000, 1499, 500), (1500, 2999, 1500), (3000, 4499, 1500), (4500, 4999, 500),
    ]  # fmt: skip
    for each in files:
        times = [row["timestamp"] for row in rows if each["min.offset"] <= row["offset"] <= each["max.offset"]]
        assert each["min.timestamp"] <= min(times) and max(times) <= each["max.timestamp"]
    assert table.count() == 4000


def test_partitions_of_odd_values_and_hours(make_lake, tmp_path):
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    keys = ["a/b", "a b=c", "ä%2F", "", "x"]
    for key in keys:
        lake.append(b"x", route=RecordRoute(b"orders", key.encode()))
        lake.turn()
        lake.clock.now_ms += 7_200_000
    run(options(lake, tmp_path, partition_by=("hour", "routing_key")))
    rows = opened(tmp_path / "lake").to_pyarrow_table().to_pylist()
    assert {row["offset"]: row["routing_key"] or "" for row in rows} == dict(enumerate(keys))
    assert all(row["hour"] == row["timestamp"].hour for row in rows)


def test_later_run_adds_columns(make_lake, tmp_path):
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    for columns in (("offset", "value"), ("offset", "value", "headers", "properties"), ("offset", "queue")):
        lake.append(b"x", b"y")
        lake.turn()
        assert run(options(lake, tmp_path, columns=columns)).rows == 2
    rows = sorted(opened(tmp_path / "lake").to_pyarrow_table().to_pylist(), key=lambda row: row["offset"])
    assert [set(row) for row in rows] == [{"offset", "value", "headers", "properties", "queue"}] * 6
    assert [row["value"] for row in rows] == [b"x", b"y", b"x", b"y", None, None]
    assert [row["queue"] for row in rows] == [None] * 4 + ["tasks"] * 2


def test_other_partitions_and_checkpoints_are_refused(written, tmp_path):
    wanted = options(written, tmp_path)
    run(replace(wanted, to_offset=2000))
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(replace(wanted, checkpoint=str(tmp_path / "other")))
    with pytest.raises(TargetError, match=r"partitioned by \(nothing\): give the same --partition-by"):
        run(replace(wanted, checkpoint=str(tmp_path / "third"), partition_by=("date",), queue=None))
    assert run(wanted).rows == 3000


@pytest.mark.slow
def test_kill_at_each_step_of_a_batch_loses_and_repeats_nothing(written, tmp_path, kill_steps):
    """Each run is killed after one step more than the run before: a step of the checkpoint or of the table."""
    kill_steps.wrap(deltalake.DeltaTable, "create", "create_write_transaction")
    kill_steps.wrap(deltalake.table.TableAlterer, "add_columns")
    for number in range(1, 80):
        batches = []
        columns = ("offset",) if kill_steps.count < 15 else ("offset", "queue")
        wanted = options(written, tmp_path, batch_rows=50, columns=columns, start="1000")
        job = ExportJob(wanted, PyarrowEngine(), batches.append, lambda batches=batches: len(batches) >= 2)
        kill_steps.run(number, True, job.run)
        seen = offsets(tmp_path / "lake")
        assert max(Counter(seen).values(), default=0) <= 1
        if len(batches) >= 2:
            break
    print(f"{kill_steps.count} kills")
    assert kill_steps.count >= 20
    total = run(wanted)
    assert offsets(tmp_path / "lake") == list(range(1000, 5000))
    assert not (tmp_path / "check" / "staging").exists()
    ledger = ExportCheckpoint(tmp_path / "check", wanted.identity())
    assert (ledger.state.rows, ledger.state.bytes, ledger.state.batch) == (4000, 0, total.batch)
    ledger.close()


def test_repeated_batch_is_counted_with_its_rows(written, tmp_path, monkeypatch, kill_steps):
    wanted = options(written, tmp_path, batch_rows=2000)
    with monkeypatch.context() as patched:
        patched.setattr(ExportCheckpoint, "commit", lambda self: (_ for _ in ()).throw(kill_steps.Killed()))
        with pytest.raises(kill_steps.Killed):
            run(wanted)
    total = run(wanted)
    assert (total.rows, total.bytes) == (4000, 800_000)
    assert offsets(tmp_path / "lake") == list(range(1000, 5000))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["500 after", "hang up", "hang up after"])
def test_table_in_an_object_store(written, tmp_path, s3, monkeypatch, fault):
    """The first attempt of every second request fails, before or after the store has done it."""
    to = f"s3://lake/delta/{fault.replace(' ', '-')}"
    s3.reset(lambda number: fault if number % 2 else "")
    root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [
        sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", written.data_dir, "--formatter", "json", "export",
        "--queue", "tasks", "--to", to, "--checkpoint", str(tmp_path / "check"), "--format", "delta", "--batch", "1500",
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    s3.reset()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 4000
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.direct_url)
    assert offsets(to) == list(range(1000, 5000))


def test_bounds_of_times_in_the_log_include_every_microsecond() -> None:
    from datetime import UTC, datetime

    time = datetime(2026, 1, 31, 23, 59, 59, 999_001, UTC)
    assert delta._bound(time, 0) == "2026-01-31T23:59:59.999Z"
    assert delta._bound(time, 999) == "2026-02-01T00:00:00.000Z"
