"""The two engines of an export compared: equal rows, files that either continues, and conditions, which need Spark."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from amqpd.protocol import properties as p
from amqpd.storage.export.checkpoint import CheckpointError, ExportCheckpoint
from amqpd.storage.export.columns import COLUMNS
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.spark.engine import SETTINGS, SparkEngine

pytestmark = pytest.mark.external

ALL = tuple(COLUMNS)


@pytest.fixture(scope="module")
def odd(make_lake, tmp_path_factory):
    """A log with every property, headers of many types, and texts that need quotes or are not UTF-8."""
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path_factory.mktemp("odd") / "data"))
    headers = {"a": 1, "b": None, "c": [True, {"x": 1.5}], "d": 'ä "quoted", text\n', "e": b"\xff", "f": {}}
    every = p.Properties(
        "text/plain", "utf-8", headers, 2, 9, "correlated", "reply", "60000", "id-1", 1_700_000_000, "kind",
        "guest", "app",
    )  # fmt: skip
    bodies = [b"plain", b"", 'quotes " and, commas,\nlines \\ ä\x01\x7f'.encode(), b"\xff\x00", b"1" * 3000]
    routes = [b"eu", b"", b"a/b=c d%", "ü".encode(), b"\xff"]
    for number in range(60):
        properties = (every, p.Properties(delivery_mode=2), p.Properties(headers={}, delivery_mode=2))[number % 3]
        route = RecordRoute(b"orders", routes[number % 5])
        lake.append(bodies[number // 3 % 5], route=route, properties=p.encode_properties(properties))
        lake.turn()
        lake.clock.now_ms += 1_234_567
    return lake


def export(lake, directory, engine, **given):
    given = {"to": str(directory / "lake"), "checkpoint": str(directory / "check"), "columns": ALL, **given}
    wanted = ExportOptions(source={"path": lake.data_dir}, vhost="/", queue="tasks", **given)
    total = ExportJob(wanted, engine, lambda report: None, lambda: False).run()
    return total


def by_spark(spark, directory):
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    return SparkEngine(directory / "spark.log", session=spark)


def read(directory: Path, kind: str):
    """Return the rows by offset, as a reader of that format gets them, with the file's directory."""
    found = {}
    for path in sorted((directory / "lake").rglob(f"*.{kind}")):
        if kind == "parquet":
            rows = pq.read_table(path, partitioning=None).to_pylist()
        elif kind == "json":
            rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        else:
            with path.open(newline="", encoding="utf-8") as file:
                rows = [
                    {name: json.loads(v) if name in ("headers", "properties") and v else v for name, v in row.items()}
                    for row in csv.DictReader(file)
                ]
        for row in rows:
            assert int(row["offset"]) not in found
            found[int(row["offset"])] = (str(path.parent.relative_to(directory)), row)
    return found


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.parametrize("where", ["", "true"])
def test_files_of_both_engines_have_equal_rows(spark, odd, tmp_path, kind, where):
    """With a condition Spark's own writers write them, without it the tasks do."""
    by = ("routing_key", "date", "hour") if where else ()
    for name in ("pyarrow", "spark"):
        (tmp_path / name).mkdir()
    totals = [
        export(odd, tmp_path / "pyarrow", PyarrowEngine(), format=kind, partition_by=by),
        export(odd, tmp_path / "spark", by_spark(spark, tmp_path), format=kind, partition_by=by, where=where),
    ]
    assert (totals[0].rows, totals[0].bytes) == (totals[1].rows, totals[1].bytes)
    first, second = read(tmp_path / "pyarrow", kind), read(tmp_path / "spark", kind)
    assert sorted(first) == list(range(60))
    for offset in first:
        assert first[offset] == second[offset]
    if kind == "parquet":
        schemas = [
            pq.read_schema(next((tmp_path / name / "lake").rglob("*.parquet"))).remove_metadata()
            for name in ("pyarrow", "spark")
        ]
        assert [(f.name, str(f.type).replace(" not null", "")) for f in schemas[0]] == [
            (f.name, str(f.type).replace(" not null", "")) for f in schemas[1]
        ]


def test_database_of_both_engines_has_equal_rows(spark, odd, tmp_path):
    tables = []
    for name, engine in (("pyarrow", PyarrowEngine()), ("spark", by_spark(spark, tmp_path))):
        directory = tmp_path / name
        directory.mkdir()
        export(odd, directory, engine, to=f"sqlite:///{directory}/lake.db")
        with sqlite3.connect(directory / "lake.db") as database:
            tables.append(database.execute('SELECT * FROM amqp_messages ORDER BY "offset"').fetchall())
    names = list(ALL)
    for first, second in zip(*tables, strict=True):
        for name, one, other in zip(names, first, second, strict=True):
            if name in ("headers", "properties") and one is not None:
                one, other = json.loads(one), json.loads(other)
            assert one == other, name
    assert len(tables[0]) == 60


def test_delta_table_is_continued_by_the_other_engine(spark, odd, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    given = {"format": "delta", "partition_by": ("date", "routing_key")}
    engines = [PyarrowEngine, lambda: by_spark(spark, tmp_path), PyarrowEngine]
    for stop, engine in zip((20, 40, None), engines, strict=True):
        export(odd, tmp_path, engine(), to_offset=stop, **given)
    found = deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().to_pylist()
    assert sorted(row["offset"] for row in found) == list(range(60))
    wanted = {row["offset"]: row for row in odd.rows()}
    for row in found:
        assert str(row.pop("date")) == f"{row['timestamp']:%Y-%m-%d}"
        row["routing_key"] = row["routing_key"] or ""  # Delta has no empty partition values
        assert {**row, "headers": None} == {**wanted[row["offset"]], "headers": None}
        assert dict(row["headers"] or ()) == dict(wanted[row["offset"]]["headers"] or ())


class Killed(BaseException):
    """A simulated kill: it passes every `except Exception`."""


@pytest.mark.parametrize("first", ["pyarrow", "spark"])
def test_other_engine_completes_a_staged_batch_and_continues(spark, odd, tmp_path, monkeypatch, first):
    engines = {"pyarrow": PyarrowEngine, "spark": lambda: by_spark(spark, tmp_path)}
    order = [engines[first], engines["spark" if first == "pyarrow" else "pyarrow"]]
    export(odd, tmp_path, order[0](), to_offset=10)

    def killed(self):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ExportCheckpoint, "commit", killed)
        with pytest.raises(Killed):
            export(odd, tmp_path, order[0](), to_offset=30)
    total = export(odd, tmp_path, order[1]())
    assert (total.rows, total.lag) == (60 - 10, 0)
    assert sorted(read(tmp_path, "parquet")) == list(range(60))
    export(odd, tmp_path, order[0]())
    found = ds.dataset(str(tmp_path / "lake"), format="parquet").to_table().sort_by("offset").to_pylist()
    assert found == odd.rows()


def test_condition_selects_rows_and_is_part_of_the_checkpoint(spark, written, tmp_path):
    given = {
        "start": "3000", "where": "routing_key = 'eu' AND headers IS NULL", "columns": ("offset", "routing_key"),
        "partition_by": ("routing_key",),
    }  # fmt: skip
    engine = by_spark(spark, tmp_path)
    with pytest.raises(Exception, match="routing_ky"):
        export(written, tmp_path, engine, **{**given, "where": "routing_ky = 'eu'"})
    assert export(written, tmp_path, engine, **given).rows == 1000
    assert sorted(read(tmp_path, "parquet")) == list(range(3001, 5000, 2))
    assert {path.name for path in (tmp_path / "lake").iterdir()} == {"routing_key=eu"}
    with pytest.raises(CheckpointError, match="--where"):
        export(written, tmp_path, PyarrowEngine(), **{**given, "where": ""})
    total = export(written, tmp_path, engine, **given, to_offset=4000)
    assert (total.rows, total.batches) == (0, 0)


def test_batches_that_a_condition_empties_advance_the_checkpoint(spark, written, tmp_path):
    total = export(
        written, tmp_path, by_spark(spark, tmp_path), where="offset >= 3000", batch_rows=1000, to_offset=3000
    )
    assert (total.rows, total.batches) == (0, 3)
    assert read(tmp_path, "parquet") == {}
