"""The column `payload` in Iceberg and Delta tables: rows, rejected messages, types, added fields, kills."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest

from amqpd.cli.main import run as run_command
from amqpd.storage.export import import_files
from amqpd.storage.export.checkpoint import ExportCheckpoint
from amqpd.storage.export.compaction_job import compact
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.file_compaction import CompactionOptions, Watch
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.payload import (
    BadSchema,
    ParsedPayloads,
    PayloadFormat,
    PayloadOptions,
    PayloadParser,
    TableParser,
    schema_of_text,
)
from amqpd.storage.export.payload_schema import DELTA_TIME, ICEBERG_TIME, has_fields_of, table_payload
from amqpd.storage.export.targets import TargetError
from amqpd.storage.filesystem import FileSystem

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`

KINDS = ("iceberg", "delta")
BAD = 7
"""Every so many messages, one does not fit."""
ITEM = {"type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}}
FIRST = {
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "price": {"type": "integer"},
        "items": {"type": "array", "items": ITEM},
        "at.time": {"type": "string", "format": "date-time"},
    },
}
SECOND = {
    "type": "object",
    "properties": {
        "price": {"type": "integer"},
        "more": {"type": "object", "properties": {"x": {"type": "boolean"}}},
        "customer": {"type": "string"},
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": {**ITEM["properties"], "note": {"type": "string"}}},
        },
        "at.time": {"type": "string", "format": "date-time"},
    },
}


def body(number):
    return {
        "customer": f"c{number % 3}",
        "price": number,
        "items": [{"sku": "a", "count": number, "note": "n"}, None],
        "at.time": f"2026-01-31T12:00:{number % 60:02d}Z",
        "more": {"x": True},
    }


def fill(lake, first, stop):
    for number in range(first, stop):
        is_bad = number % BAD == BAD - 1
        lake.append(b'{"price": "\xff%d"}' % number if is_bad else json.dumps(body(number)).encode())
        if number % 50 == 49:
            lake.turn()
            lake.clock.now_ms += 600_000
    lake.turn()


@pytest.fixture
def orders(make_lake, tmp_path):
    lake = make_lake(64 * 1024, FileSystem(), str(tmp_path / "orders"))
    fill(lake, 0, 300)
    return lake


def good(stop, first=0):
    return [number for number in range(first, stop) if number % BAD != BAD - 1]


def bad(stop, first=0):
    return [number for number in range(first, stop) if number % BAD == BAD - 1]


def options(lake, tmp_path, kind, schema=FIRST, **given):
    table = {"table": "shop.orders"} if kind == "iceberg" else {}
    defaults = {"to": str(tmp_path / "lake"), "checkpoint": str(tmp_path / "check"), "format": kind}
    payload = PayloadOptions("json", json.dumps(schema) if schema else "")
    given = {"queue": "tasks", "payload": payload, **defaults, **table, **given}
    return ExportOptions({"path": lake.data_dir}, "/", **given)


def run(wanted):
    return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()


def rows_of(tmp_path, kind):
    """Return the table's rows in the order of their offsets."""
    if kind == "delta":
        if not deltalake.DeltaTable.is_deltatable(str(tmp_path / "lake")):
            return []
        return deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().sort_by("offset").to_pylist()
    from pyiceberg.catalog.sql import SqlCatalog

    if not (tmp_path / "lake" / "catalog.db").exists():
        return []
    catalog = SqlCatalog("amqpd", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
    try:
        if not catalog.table_exists("shop.orders"):
            return []
        return catalog.load_table("shop.orders").scan().to_arrow().sort_by("offset").to_pylist()
    finally:
        catalog.close()


def place(tmp_path, kind):
    return tmp_path / "lake" / "shop" / "orders" if kind == "iceberg" else tmp_path / "lake"


def rejected(tmp_path, kind):
    lines = [line for path in place(tmp_path, kind).glob("_rejected/*.jsonl") for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: row["offset"])


def expected(number):
    found = body(number)
    items = [{key: item[key] for key in ("sku", "count")} if item else None for item in found["items"]]
    when = datetime(2026, 1, 31, 12, 0, number % 60, tzinfo=UTC)
    return {"customer": found["customer"], "price": number, "items": items, "at.time": when}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partition", [(), ("date",), ("hour", "routing_key")])
def test_table_has_a_struct_and_rejected_messages_are_beside_it(orders, tmp_path, kind, partition):
    total = run(options(orders, tmp_path, kind, batch_rows=90, partition_by=partition))
    assert (total.rows, total.rejected, total.batches) == (len(good(300)), len(bad(300)), 4)
    assert total.root == str(place(tmp_path, kind))
    rows = rows_of(tmp_path, kind)
    assert [row["offset"] for row in rows] == good(300)
    assert [row["payload"] for row in rows] == [expected(number) for number in good(300)]
    assert [json.loads(row["value"]) for row in rows] == [body(number) for number in good(300)]
    lines = rejected(tmp_path, kind)
    assert [line["offset"] for line in lines] == bad(300)
    assert all(line["reason"] and line["value_base64"] for line in lines)
    for path in place(tmp_path, kind).glob("_rejected/*.jsonl"):
        import_files.read_rows(path, "", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_later_schema_adds_fields_and_may_not_take_any_away(orders, tmp_path, kind):
    run(options(orders, tmp_path, kind, to_offset=150))
    fixed = (tmp_path / "check" / "payload-schema.json").read_text()
    total = run(options(orders, tmp_path, kind, SECOND, to_offset=250))
    assert (total.rows, total.rejected) == (len(good(250, 150)), len(bad(250, 150)))
    assert (tmp_path / "check" / "payload-schema.json").read_text() != fixed
    assert run(options(orders, tmp_path, kind, None, batch_rows=20)).rows == len(good(300, 250))
    rows = rows_of(tmp_path, kind)
    assert [row["offset"] for row in rows] == good(300)
    for row in rows:
        number, payload = row["offset"], row["payload"]
        is_new = number >= 150
        assert payload["more"] == ({"x": True} if is_new else None)
        assert payload["price"] == number and payload["customer"] == f"c{number % 3}"
        item = {"sku": "a", "count": number, "note": "n" if is_new else None}
        assert payload["items"] == [item, None]
    with pytest.raises(Exception, match="--payload-schema is not that of the checkpoint, with all of its fields"):
        run(options(orders, tmp_path, kind, FIRST))
    changed = {"type": "object", "properties": {**SECOND["properties"], "price": {"type": "string"}}}
    with pytest.raises(Exception, match="--payload-schema is not that of the checkpoint"):
        run(options(orders, tmp_path, kind, changed))


@pytest.mark.parametrize("kind", KINDS)
def test_payload_of_another_type_in_the_table_is_refused(orders, tmp_path, kind):
    run(options(orders, tmp_path, kind, to_offset=150))
    changed = {"type": "object", "properties": {"customer": {"type": "integer"}}}
    fill(orders, 300, 310)
    orders.append(b'{"customer": 7}')
    orders.turn()
    other = options(orders, tmp_path, kind, changed, checkpoint=str(tmp_path / "other"), queue=None)
    with pytest.raises(TargetError, match=r"customer|Cannot merge types string and long"):
        run(other)
    assert [row["offset"] for row in rows_of(tmp_path, kind)] == good(150)
    assert run(options(orders, tmp_path, kind)).lag == 0


@pytest.mark.parametrize("kind", KINDS)
def test_batch_of_rejected_messages_only(orders, tmp_path, kind, monkeypatch, kill_steps):
    """The first batch has no file for the table. After a kill it is not repeated, and a new checkpoint is refused."""
    none_fits = {"type": "object", "properties": {"price": {"type": "boolean"}}}
    wanted = options(orders, tmp_path, kind, none_fits)
    with monkeypatch.context() as patched:
        patched.setattr(ExportCheckpoint, "commit", lambda self: (_ for _ in ()).throw(kill_steps.Killed()))
        with pytest.raises(kill_steps.Killed):
            run(wanted)
    total = run(wanted)
    assert (total.rows, total.rejected, total.lag) == (0, 300, 0)
    assert rows_of(tmp_path, kind) == []
    assert [line["offset"] for line in rejected(tmp_path, kind)] == list(range(300))
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(options(orders, tmp_path, kind, none_fits, checkpoint=str(tmp_path / "other")))
    orders.append(b'{"price": true}')
    orders.turn()
    assert run(wanted).rows == 1
    assert [row["payload"] for row in rows_of(tmp_path, kind)] == [{"price": True}]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kill_at_each_step_of_a_batch_loses_and_repeats_nothing(orders, tmp_path, kind, kill_steps):
    """Each run is killed after one step more than the run before. The schema grows once."""
    if kind == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.io.pyarrow import PyArrowFile

        kill_steps.wrap(SqlCatalog, "create_table", "create_namespace_if_not_exists", "load_table", "commit_table")
        kill_steps.wrap(PyArrowFile, "create")
    else:
        kill_steps.wrap(deltalake.DeltaTable, "create", "create_write_transaction")
        kill_steps.wrap(deltalake.table.TableAlterer, "add_columns")
    stop = 300
    for number in range(1, 80):
        batches = []
        schema = FIRST if kill_steps.count < 15 else SECOND
        wanted = options(orders, tmp_path, kind, schema, batch_rows=10)
        job = ExportJob(wanted, PyarrowEngine(), batches.append, lambda batches=batches: bool(batches))
        kill_steps.run(number, True, job.run)
        fill(orders, stop, stop + 10)
        stop += 10
        if number % 8 == 0:  # reading a table of many files takes longer than an export
            seen = [row["offset"] for row in (*rows_of(tmp_path, kind), *rejected(tmp_path, kind))]
            assert max(Counter(seen).values(), default=0) <= 1
        if batches:
            break
    print(f"{kill_steps.count} kills")
    assert batches and kill_steps.count >= 20
    total = run(replace(wanted, batch_rows=None))  # one batch: a commit takes longer for each file that is there
    assert [row["offset"] for row in rows_of(tmp_path, kind)] == good(stop)
    assert [row["offset"] for row in rejected(tmp_path, kind)] == bad(stop)
    ledger = ExportCheckpoint(tmp_path / "check", wanted.identity())
    assert (ledger.state.rows, ledger.state.batch) == (len(good(stop)), total.batch)
    ledger.close()


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_and_vacuum_keep_payloads_and_rejected_messages(orders, tmp_path, kind):
    run(options(orders, tmp_path, kind, batch_rows=30, to_offset=150))
    run(options(orders, tmp_path, kind, SECOND, batch_rows=30))
    before = rows_of(tmp_path, kind), rejected(tmp_path, kind)
    wanted = CompactionOptions(str(tmp_path / "lake"), tmp_path / "check", now=datetime(2200, 1, 1, tzinfo=UTC))
    report = compact(wanted, Watch(lambda report: None, lambda: False))
    assert report.merged >= 8 and report.written <= 2
    if kind == "delta":
        table = deltalake.DeltaTable(str(tmp_path / "lake"))
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert (rows_of(tmp_path, kind), rejected(tmp_path, kind)) == before


@pytest.mark.parametrize("kind", KINDS)
def test_command_says_where_the_rejected_messages_are(orders, tmp_path, kind):
    out, err = io.StringIO(), io.StringIO()
    where = ("--data-dir", orders.data_dir, "export", "--queue", "tasks", "--to", str(tmp_path / "lake"))
    table = ("--table", "shop.orders") if kind == "iceberg" else ()
    command = [*where, "--format", kind, *table, "--payload", "json"]
    assert run_command(command, out, err, io.StringIO(), {}) == 0, err.getvalue()
    assert f"{len(bad(300))} messages do not fit the payload: they are in {place(tmp_path, kind)}/_rejected" in (
        err.getvalue()
    )
    assert rows_of(tmp_path, kind)[0]["payload"]["customer"] == "c0"


def test_tables_in_an_object_store(orders, tmp_path, s3, monkeypatch):
    """The table's location there has the rejected messages, too."""
    to = "s3://lake/iceberg"
    total = run(options(orders, tmp_path, "iceberg", to=to, batch_rows=100))
    assert (total.rows, total.rejected, total.root) == (len(good(300)), len(bad(300)), f"{to}/shop/orders")
    import obstore

    store = obstore.store.from_url(to, client_options={"allow_http": True})
    names = [each["path"] for chunk in obstore.list(store, "shop/orders/_rejected") for each in chunk]
    lines = [line for name in names for line in bytes(obstore.get(store, name).bytes()).splitlines()]
    assert sorted(json.loads(line)["offset"] for line in lines) == bad(300)


def test_types_that_tables_lack_are_converted():
    kind = pa.struct(
        [
            ("small", pa.uint32()), ("large", pa.uint64()), ("digits", pa.decimal256(50, 2)),
            ("clock", pa.time32("ms")), ("clock_us", pa.time64("us")),
            ("when", pa.timestamp("ms", tz="UTC")), ("local", pa.timestamp("ms")),
            ("many", pa.list_(pa.struct([("n", pa.uint64())]))), ("map", pa.map_(pa.string(), pa.uint32())),
        ]
    )  # fmt: skip
    value = {
        "small": 2**32 - 1, "large": 2**64 - 1, "digits": Decimal("1" * 48 + ".25"), "clock": time(1, 2, 3, 4000),
        "clock_us": time(1, 2, 3, 4), "when": datetime(2026, 1, 31, tzinfo=UTC),
        "local": datetime(2026, 1, 31),  # noqa: DTZ001 - a local time
        "many": [{"n": 2**64 - 1}, None], "map": [("a", 2**32 - 1)],
    }  # fmt: skip

    class Fixed:
        def parse(self, bodies):
            return ParsedPayloads(pa.array([value, None], kind), pa.nulls(2, pa.string()))

    for clock, times in ((ICEBERG_TIME, (value["clock"], value["clock_us"])), (DELTA_TIME, None)):
        made = table_payload(PayloadFormat(PayloadParser, "", kind), clock)
        found = TableParser(Fixed(), made.kind).parse(pa.array([b"", b""])).payload
        found.validate(full=True)
        row, nothing = found.to_pylist()
        assert nothing is None
        assert (row["clock"], row["clock_us"]) == (times or ("01:02:03.004", "01:02:03.000004"))
        assert row["digits"] == "1" * 48 + ".25"
        same = [name for name in value if name not in ("clock", "clock_us", "digits")]
        assert {name: row[name] for name in same} == {name: value[name] for name in same}
        assert (made.kind.field("large").type, made.kind.field("when").type) == (
            pa.decimal128(20, 0),
            pa.timestamp("us", tz="UTC"),
        )


def test_value_that_a_table_cannot_have_does_not_fit():
    """Avro's rules make a time in milliseconds of any `long`; a table's times have microseconds."""
    kind = pa.struct([("when", pa.timestamp("ms"))])
    values = [{"when": 1}, {"when": 2**62}, None, {"when": -1}, {"when": -(2**62)}]

    class Fixed:
        def parse(self, bodies):
            errors = pa.array([None, None, "it does not fit", None, None], pa.string())
            return ParsedPayloads(pa.array(values, kind), errors)

    made = table_payload(PayloadFormat(PayloadParser, "", kind), ICEBERG_TIME)
    found = TableParser(Fixed(), made.kind).parse(pa.array([b""] * 5))
    microseconds = found.payload.field("when").cast(pa.int64()).to_pylist()
    assert (microseconds[0], microseconds[3]) == (1000, -1000) and found.payload.type == made.kind
    errors = found.error.to_pylist()
    assert (errors[0], errors[2], errors[3]) == (None, "it does not fit", None)
    assert all("out of bounds timestamp" in errors[row] for row in (1, 4))


def test_fields_that_differ_only_in_case_are_refused(orders, tmp_path):
    twice = {"type": "object", "properties": {"Price": {"type": "integer"}, "price": {"type": "integer"}}}
    with pytest.raises(BadSchema, match=r"payload: a table cannot have both fields 'Price' and 'price'"):
        run(options(orders, tmp_path, "delta", twice))
    assert run(options(orders, tmp_path, "delta")).lag == 0


def test_fields_of_older_schemas():
    old = schema_of_text(json.dumps(FIRST))
    new = schema_of_text(json.dumps(SECOND))
    assert has_fields_of(new, old) and has_fields_of(old, old) and not has_fields_of(old, new)
    assert not has_fields_of(pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]))
    assert has_fields_of(
        pa.map_(pa.string(), pa.struct([("a", pa.int32()), ("b", pa.int32())])),
        pa.map_(pa.string(), pa.struct([("a", pa.int32())])),
    )
