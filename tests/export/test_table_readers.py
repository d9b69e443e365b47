"""Tables that exports have written, read by Spark and by DuckDB's own readers of Iceberg and Delta.

`make table-readers` puts the readers into .venv/table-readers. Each runs in a process with its own packages.
TEST_REQUIRE_TABLE_READERS makes a missing reader a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amqpd.protocol import properties as p
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.payload import PayloadOptions
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.record import RecordRoute

pytestmark = [pytest.mark.external, pytest.mark.slow]

DUCKDB = """
import importlib.util, json, sys
from pathlib import Path
import duckdb

connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute("SET TimeZone = 'UTC'")
for name in ("avro", "iceberg", "delta"):
    package = Path(importlib.util.find_spec("duckdb_extension_" + name).origin).parent
    (extension,) = package.rglob("*.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
scans = {"iceberg": "iceberg_scan('%s')" % sys.argv[1], "delta": "delta_scan('%s')" % sys.argv[2]}
found = {}
for name, scan in scans.items():
    columns = '"offset", epoch_ms(timestamp), hex(value), routing_key, queue, headers[\\'a\\'], properties.type'
    payload = "payload.n, payload.items[1].sku, payload.deep.x"
    rows = connection.execute(f"SELECT {columns}, {payload} FROM {scan} ORDER BY 1").fetchall()
    part = connection.execute(f"SELECT count(*) FROM {scan} WHERE routing_key = 'a/b'").fetchone()[0]
    found[name] = [rows, part]
print(json.dumps(found, default=str))
"""

SPARK = """
import json, sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.databricks.delta.snapshotPartitions", "1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.jars", sys.argv[3])
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
found = {}
for name, path in (("iceberg", sys.argv[1]), ("delta", sys.argv[2])):
    table = spark.read.format(name).load(path)
    rows = table.selectExpr(
        "offset", "unix_millis(timestamp)", "hex(value)", "routing_key", "queue", "headers['a']", "properties.type",
        "payload.n", "payload.items[0].sku", "payload.deep.x"
    ).orderBy("offset").collect()
    found[name] = [[list(row) for row in rows], table.where("routing_key = 'a/b'").count()]
print(json.dumps(found))
"""


def need(reader):
    """Return the folder of the readers. Skip the test if it does not have this one."""
    for place in (os.environ.get("TEST_TABLE_READERS"), Path(sys.prefix).parent / ".venv" / "table-readers"):
        if place and (Path(place) / reader).is_dir():
            return Path(place)
    if os.environ.get("TEST_REQUIRE_TABLE_READERS"):
        pytest.fail(f"no {reader}: make table-readers")
    pytest.skip(f"no {reader}: make table-readers")


def read(reader, program, *arguments):
    place = need(reader)
    environment = {**os.environ, "PYTHONPATH": str(place / reader), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)
    command = [sys.executable, "-P", "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tables(make_lake, tmp_path_factory):
    """Return Iceberg's metadata file, Delta's directory, and the rows: two runs, the second with more columns and with
    more fields of the payload. Every tenth message does not fit.
    """
    pytest.importorskip("pyiceberg")
    pytest.importorskip("deltalake")
    directory = tmp_path_factory.mktemp("tables")
    lake = make_lake(1 << 20, FileSystem(), str(directory / "data"))
    with_headers = p.encode_properties(p.Properties(headers={"a": 1}, delivery_mode=2, type="order"))
    for number in range(60):
        route = RecordRoute(b"orders", (b"a/b", b"us", "ä".encode())[number % 3])
        body = b'{"n": %d, "items": [{"sku": "\xc3\xa4"}], "deep": {"x": true}}' if number % 10 < 9 else b"\xff%d"
        lake.append(body % number, properties=with_headers, route=route)
        lake.turn()
        lake.clock.now_ms += 3_600_000
    expected = [
        [row["offset"], round(row["timestamp"].timestamp() * 1000), row["value"].hex().upper(), row["routing_key"]]
        + (["tasks", "1", "order"] if row["offset"] >= 40 else [None] * 3)
        + [row["offset"], *(["ä", True] if row["offset"] >= 40 else [None] * 2)]
        for row in lake.rows()
        if row["offset"] % 10 < 9
    ]
    base = ("offset", "timestamp", "value", "routing_key")
    fields: dict[str, object] = {"n": {"type": "integer"}}
    more: dict[str, object] = {
        "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "deep": {"type": "object", "properties": {"x": {"type": "boolean"}}},
    }
    runs = ((base, fields, 40), ((*base, "queue", "headers", "properties"), fields | more, None))
    for kind in ("iceberg", "delta"):
        for columns, properties, stop in runs:
            payload = PayloadOptions("json", json.dumps({"type": "object", "properties": properties}))
            wanted = ExportOptions(
                {"path": lake.data_dir}, "/", "tasks", str(directory / kind), str(directory / f"{kind}.done"), kind,
                to_offset=stop, partition_by=("date", "routing_key"), columns=columns, table="shop.orders",
                batch_rows=15, payload=payload,
            )  # fmt: skip
            ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()
    metadata = max((directory / "iceberg" / "shop" / "orders" / "metadata").glob("*.metadata.json"))
    return [str(metadata), str(directory / "delta")], expected


def test_duckdb_reads_the_rows_and_the_partitions(tables):
    paths, expected = tables
    found = read("duckdb", DUCKDB, *paths)
    assert found["iceberg"] == [expected, 18]
    assert found["delta"] == [expected, 18]


def test_spark_reads_the_rows_and_the_partitions(tables):
    paths, expected = tables
    jars = ",".join(str(each) for each in (need("jars") / "jars").glob("*.jar"))
    found = read("spark", SPARK, *paths, jars)
    assert found["iceberg"] == [expected, 18]
    assert found["delta"] == [expected, 18]
