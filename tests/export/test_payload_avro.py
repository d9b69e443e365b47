"""Avro bodies as columns: types, damaged bodies, schemas that change, a schema registry."""

from __future__ import annotations

import io
import json
import random
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import amqpd
from amqpd.cli.main import run
from amqpd.storage.export import engine, payload, schema_registry
from amqpd.storage.export.payload import BadSchema, PayloadFormat, PayloadOptions
from amqpd.storage.export.schema_registry import RegistryError, UnknownSchema, registry_of, with_password
from amqpd.storage.filesystem import FileSystem

fastavro = pytest.importorskip("fastavro")
from amqpd.storage.export import payload_avro  # noqa: E402 - imports fastavro
from amqpd.storage.export.payload_avro import AvroParser, arrow_column, avro_format, parsed_schema  # noqa: E402

pytestmark = pytest.mark.external  # packages of the extra `all-tests`


def record(*fields, name="shop.Order", **more):
    return {
        "type": "record",
        "name": name,
        "fields": [{**(extra[0] if extra else {}), "name": key, "type": kind} for key, kind, *extra in fields],
        **more,
    }


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


ITEM = record(("sku", "string"), ("count", "int"), name="Item")
ALL = record(
    ("nothing", "null"),
    ("flag", "boolean"),
    ("small", "int"),
    ("large", "long"),
    ("single", "float"),
    ("double", "double"),
    ("text", "string"),
    ("raw", "bytes"),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}),
    ("mark", {"type": "fixed", "name": "Mark", "size": 2}),
    ("item", ["null", ITEM]),
    ("items", {"type": "array", "items": "Item"}),
    ("prices", {"type": "map", "values": ["null", "double"]}),
    ("price", logical("bytes", "decimal", precision=9, scale=2)),
    ("day", logical("int", "date")),
    ("clock", logical("int", "time-millis")),
    ("clock_us", logical("long", "time-micros")),
    ("at", logical("long", "timestamp-millis")),
    ("at_us", ["null", logical("long", "timestamp-micros")]),
    ("at_ns", logical("long", "timestamp-nanos")),
    ("local", logical("long", "local-timestamp-micros")),
    ("id", logical("string", "uuid")),
    ("either", ["null", "string", "int", "long", "Item", "Kind", logical("int", "date")]),
    ("empty", record(name="Empty")),
)
VALUE = {
    "nothing": None,
    "flag": True,
    "small": -(1 << 31),
    "large": 1 << 62,
    "single": 0.5,
    "double": 0.1,
    "text": "\u00fc",
    "raw": b"\xff\0",
    "kind": "OLD",
    "mark": b"ab",
    "item": {"sku": "a", "count": 1},
    "items": [{"sku": "b", "count": 2}, {"sku": "", "count": 0}],
    "prices": {"eur": 1.5, "usd": None},
    "price": Decimal("-1234567.89"),
    "day": date(2026, 1, 31),
    "clock": time(1, 2, 3, 4000),
    "clock_us": time(1, 2, 3, 4),
    "at": datetime(2026, 1, 31, 12, 0, 0, 5000, UTC),
    "at_us": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    "at_ns": 1_000_001_999,
    "local": datetime(2026, 1, 31, 12, 0, 0, 7, UTC).replace(tzinfo=None),
    "id": UUID(int=5),
    "either": None,
    "empty": {},
}


def encoded(schema, value):
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return buffer.getvalue()


def framed(number, body):
    return b"\0" + number.to_bytes(4, "big") + body


def parse(schema, *bodies, registry=None):
    found = AvroParser(json.dumps(schema), registry).parse(pa.array(bodies, pa.binary()))
    found.payload.validate(full=True)
    assert found.payload.type == avro_format(json.dumps(schema)).kind
    assert len(found.payload) == len(found.error) == len(bodies)
    return found.payload.to_pylist(), found.error.to_pylist()


def test_each_type_has_its_column():
    item = pa.struct([("sku", pa.string()), ("count", pa.int32())])
    assert arrow_column(parsed_schema(json.dumps(ALL))).kind == pa.struct(
        [
            ("flag", pa.bool_()),
            ("small", pa.int32()),
            ("large", pa.int64()),
            ("single", pa.float32()),
            ("double", pa.float64()),
            ("text", pa.string()),
            ("raw", pa.binary()),
            ("kind", pa.string()),
            ("mark", pa.binary()),
            ("item", item),
            ("items", pa.list_(item)),
            ("prices", pa.map_(pa.string(), pa.float64())),
            ("price", pa.decimal128(9, 2)),
            ("day", pa.date32()),
            ("clock", pa.time32("ms")),
            ("clock_us", pa.time64("us")),
            ("at", pa.timestamp("ms", tz="UTC")),
            ("at_us", pa.timestamp("us", tz="UTC")),
            ("at_ns", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("id", pa.string()),
            (
                "either",
                pa.struct(
                    [
                        ("string", pa.string()),
                        ("long", pa.int64()),
                        ("Item", item),
                        ("Kind", pa.string()),
                        ("date", pa.date32()),
                    ]
                ),
            ),
            ("empty", pa.bool_()),
        ]
    )


def test_values_are_those_that_were_written():
    ((found,), errors) = parse(ALL, encoded(ALL, VALUE))
    assert errors == [None]
    wanted = {**VALUE, "at_ns": datetime(1970, 1, 1, 0, 0, 1, 1, UTC), "id": str(VALUE["id"]), "empty": True}
    wanted["prices"] = list(VALUE["prices"].items())
    del wanted["nothing"]
    assert found == wanted


@pytest.mark.parametrize(
    ("value", "field", "wanted"),
    [
        ("x", "string", "x"),
        (5, "long", 5),
        (1 << 40, "long", 1 << 40),
        (("shop.Item", {"sku": "a", "count": 1}), "Item", {"sku": "a", "count": 1}),
        (("shop.Kind", "NEW"), "Kind", "NEW"),
        (date(2026, 1, 1), "date", date(2026, 1, 1)),
    ],
)
def test_union_has_a_field_for_each_type(value, field, wanted):
    rows, errors = parse(ALL, encoded(ALL, {**VALUE, "either": value}), encoded(ALL, VALUE))
    assert errors == [None, None]
    assert rows[0]["either"] == {**dict.fromkeys(["string", "long", "Item", "Kind", "date"]), field: wanted}
    assert rows[1]["either"] is None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "is not JSON"),
        ('"string"', "expected a record"),
        ("5", "is not Avro's"),
        (record(("a", "Missing")), "is not Avro's: UnknownType"),
        (record(("a", {"type": "array"})), "is not Avro's: KeyError"),
        (record(), "expected a record with fields that are not null"),
        (record(("a", "null")), "expected a record with fields that are not null"),
        (record(("a", ["null", "shop.Order"])), "shop.Order contains itself"),
        (record(("a", {"type": "map", "values": {"type": "array", "items": "Order"}})), "shop.Order contains itself"),
        (record(("a", {"type": "array", "items": "null"})), "an array whose items are empty"),
        (record(("a", {"type": "array", "items": record(name="E")})), "an array whose items are empty"),
        (record(("a", ["string", logical("string", "decimal"), "string"])), "a union of string and string"),
        (record(("a", logical("bytes", "decimal", precision=77))), "a decimal of 77 digits"),
        (record(("a", ["int", "null"], {"default": "x"})), "is not Avro's: .* Default value <x>"),
    ],
)
def test_schema_that_no_column_can_have_is_an_error(schema, words):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(BadSchema, match=words):
        AvroParser(avro_format(text).text, None)


def test_damaged_bodies_have_a_reason_and_harm_no_other():
    """A body that is cut off anywhere, or has bytes behind it, does not fit."""
    good = encoded(ALL, VALUE)
    bodies = [good[:size] for size in range(len(good))] + [good + b"x", b"", b"\xff" * 40, b'{"a": 1}']
    rows, errors = parse(ALL, good, *bodies, good)
    assert errors[0] is errors[-1] is None
    assert rows[0] == rows[-1] is not None
    assert all(errors[1:-1]) and rows[1:-1] == [None] * len(bodies)
    assert errors[len(good) + 1] == "the body is no such record: ValueError: 1 bytes are behind it"
    assert all(len(error) <= 200 for error in errors[1:-1])


def test_values_that_no_arrow_type_has_do_not_fit():
    schema = record(("price", logical("bytes", "decimal", precision=3, scale=1)), ("n", "int"))
    wide = record(("price", "bytes"), ("n", "long"))
    good = encoded(wide, {"price": b"\x05", "n": 1})
    bodies = [
        encoded(wide, {"price": b"\x7f\xff\xff", "n": 1}),
        encoded(wide, {"price": b"\x01", "n": 1 << 40}),
    ]
    rows, errors = parse(schema, good, bodies[0], good, bodies[1])
    assert [error is None for error in errors] == [True, False, True, False]
    assert "precision" in errors[1] and "too large" in errors[3]
    assert [row and row["price"] for row in rows] == [Decimal("0.5"), None, Decimal("0.5"), None]


def test_random_bytes_never_raise():
    seed = random.Random(11)
    good = encoded(ALL, VALUE)
    bodies = []
    for _ in range(2000):
        body = bytearray(good)
        for _ in range(seed.randrange(1, 4)):
            body[seed.randrange(len(body))] = seed.randrange(256)
        bodies.append(bytes(body[: seed.randrange(len(body) + 1)] if seed.randrange(2) else body))
    rows, errors = parse(ALL, *bodies)
    assert [row is None for row in rows] == [error is not None for error in errors]
    assert 100 < errors.count(None) < 1900


# -- a registry

OLD = record(("id", "long"), ("name", "string"), ("gone", "string"))
NEW = record(
    ("id", "long"),
    ("customer", "string", {"aliases": ["name"], "default": "?"}),
    ("tags", {"type": "array", "items": "string"}, {"default": ["none"]}),
    ("price", ["null", logical("bytes", "decimal", precision=5, scale=2)], {"default": None}),
    ("day", logical("int", "date"), {"default": 1}),
    ("raw", "bytes", {"default": "\u00ff"}),
    ("deep", record(("u", ["string", "null"]), ("m", {"type": "map", "values": "int"}), name="Deep"),
     {"default": {"u": "x", "m": {"a": 1}}}),
)  # fmt: skip


def test_bodies_of_older_and_newer_schemas_become_the_fixed_one(registry):
    registry.add(1, OLD)
    registry.add(2, NEW)
    newer = record(*[(f["name"], f["type"], f) for f in NEW["fields"]], ("later", "int"))
    registry.add(3, newer)
    registry.add(4, record(("id", "string")))
    registry.add(5, record(("id", "long"), name="shop.Invoice"))
    registry.add(6, 'syntax = "proto3";', "PROTOBUF")
    registry.add(7, '"string"')
    registry.add(8, record(("id", "long"), ("self", ["null", "shop.Order"])))
    full = {"id": 3, "customer": "c", "tags": [], "price": Decimal("1.50"), "day": date(2026, 1, 1), "raw": b""}
    full["deep"] = {"u": None, "m": {}}
    bodies = [
        framed(1, encoded(OLD, {"id": 1, "name": "a", "gone": "b"})),
        framed(2, encoded(NEW, full)),
        framed(3, encoded(newer, {**full, "later": 1})),
        framed(4, encoded(record(("id", "string")), {"id": "x"})),
        framed(5, b"\x02"),
        framed(6, b"\x02"),
        framed(7, b"\x02a"),
        framed(8, b"\x02\0"),
        framed(9, b"\x02"),
        b"\x01\0\0\0\x01\x02",
        b"\0\0",
        framed(1, encoded(OLD, {"id": 1, "name": "a", "gone": "b"})),
    ]
    rows, errors = parse(NEW, *bodies, registry=registry_of(registry.url))
    assert rows[0] == rows[11] == {
        "id": 1, "customer": "a", "tags": ["none"], "price": None, "day": date(1970, 1, 2), "raw": b"\xff",
        "deep": {"u": "x", "m": [("a", 1)]},
    }  # fmt: skip
    assert rows[1] == rows[2] == {**full, "deep": {"u": None, "m": []}}
    assert errors[:3] == [None] * 3 and errors[11] is None
    assert "does not fit: Schema mismatch: string is not long" in errors[3]
    assert "does not fit" in errors[4]
    assert errors[5] == "schema 6: it is PROTOBUF, not AVRO"
    assert "expected a record" in errors[6]
    assert errors[7].startswith("schema 8: the type shop.Order contains itself")
    assert errors[8] == "the schema registry has no schema 9"
    assert errors[9] == errors[10] == "the body does not begin with byte 0 and a schema's id"
    assert len(registry.requests) == len(set(registry.requests)) == 9  # each schema once


def test_units_of_the_writer_are_converted(registry):
    """A timestamp that the writer had in milliseconds is one in microseconds."""
    schemas = [
        record(("at", logical("long", kind)), ("d", logical("bytes", "decimal", precision=9, scale=scale)))
        for kind, scale in (("timestamp-millis", 1), ("timestamp-micros", 3))
    ]
    registry.add(1, schemas[0])
    value = {"at": VALUE["at"], "d": Decimal("1.5")}
    rows, errors = parse(schemas[1], framed(1, encoded(schemas[0], value)), registry=registry_of(registry.url))
    assert (rows, errors) == ([{"at": VALUE["at"], "d": Decimal("1.500")}], [None])


def test_schema_is_that_of_the_sample_with_its_references(registry):
    registry.add_subject("item", 2, record(("sku", "string"), ("kind", "shop.Kind"), name="shop.Item"), references=[
        ("shop.Kind", "kind", 1)
    ])  # fmt: skip
    registry.add_subject("kind", 1, {"type": "enum", "name": "shop.Kind", "symbols": ["NEW"]})
    uses = [("shop.Item", "item", 2)]
    registry.add(1, record(("item", "Item")), references=uses)
    registry.add(3, record(("item", "Item"), ("more", ["null", "shop.Item"])), references=uses)
    registry.add(7, record(("x", "int"), name="shop.Rare"))
    registry.add(8, '"string"')
    body = b"\x02a\0"
    bodies = [framed(7, b"\x02"), *[framed(n, body) for n in (1, 3, 1, 8, 9)], b"x"]
    text = payload_avro.infer_schema(bodies, registry_of(registry.url))
    found = parsed_schema(text)
    assert [field["name"] for field in found["fields"]] == ["item", "more"]
    item = {"sku": "a", "kind": "NEW"}
    rows, errors = parse(json.loads(text), framed(1, body), registry=registry_of(registry.url))
    assert errors == ["the body's schema does not fit: No default value for field more in shop.Order"]
    rows, errors = parse(json.loads(text), framed(3, body + b"\0"), registry=registry_of(registry.url))
    assert (rows, errors) == ([{"item": item, "more": None}], [None])
    with pytest.raises(BadSchema, match="no body of the sample has the id of a record of Avro"):
        payload_avro.infer_schema([b"", framed(8, b"")], registry_of(registry.url))


# -- exports, queries


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    code = run(list(arguments), out, err, io.StringIO(), {})
    return code, out.getvalue(), err.getvalue()


def exported(lake, tmp_path, *arguments):
    code, out, err = call(
        "--formatter", "json", "--data-dir", lake.data_dir, "export", "--queue", "tasks",
        "--to", str(tmp_path / "lake"), *arguments,
    )  # fmt: skip
    return code, json.loads(out) if out else None, err


def make(make_lake, tmp_path, bodies):
    lake = make_lake(64 * 1024, FileSystem(), str(tmp_path / "orders"))
    lake.append(*bodies)
    lake.settled()
    return lake


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_export_with_a_schema_file(make_lake, tmp_path, kind):
    duckdb = pytest.importorskip("duckdb")
    lake = make(make_lake, tmp_path, [encoded(ALL, {**VALUE, "small": n}) if n % 5 else b"bad" for n in range(100)])
    schema = tmp_path / "all.avsc"
    schema.write_text(json.dumps(ALL))
    arguments = ("--payload", "avro", "--payload-schema", str(schema), "--format", kind)
    code, summary, err = exported(lake, tmp_path, *arguments)
    assert (code, summary["records"], summary["rejected"]) == (0, 80, 20), err
    if kind == "parquet":
        found = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "lake").glob("*.parquet")])
        assert found.schema.field("payload").type == avro_format(json.dumps(ALL)).kind
    files = f"'{tmp_path}/lake/*.{kind}'"
    reader = "read_json(" if kind == "json" else f"read_{kind}("
    payload = "payload::JSON" if kind == "csv" else "to_json(payload)"
    rows = duckdb.sql(f'SELECT {payload}::VARCHAR FROM {reader}{files}) ORDER BY "offset"').fetchall()
    row = json.loads(rows[0][0])
    assert (row["small"], row["text"], row["kind"], row["item"]) == (1, "\u00fc", "OLD", {"sku": "a", "count": 1})
    assert row["day"] == "2026-01-31" and row["prices"] == {"eur": 1.5, "usd": None}
    assert float(row["price"]) == -1234567.89
    if kind != "parquet":
        assert (row["raw"], row["clock_us"], row["local"]) == ("/wA=", "01:02:03.000004", "2026-01-31T12:00:00.000")
    rejected = (tmp_path / "lake" / "_rejected").iterdir()
    lines = [json.loads(each) for path in rejected for each in path.read_text().splitlines()]
    assert {line["value"] for line in lines} == {"bad"} and len(lines) == 20


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_table_has_each_type(make_lake, tmp_path, kind):
    bodies = [encoded(ALL, {**VALUE, "small": n, "either": either}) for n, either in enumerate((None, "x", 5))]
    lake = make(make_lake, tmp_path, [*bodies, b"bad"])
    schema = tmp_path / "all.avsc"
    schema.write_text(json.dumps(ALL))
    arguments = ("--payload", "avro", "--payload-schema", str(schema), "--format", kind)
    code, summary, err = exported(lake, tmp_path, *arguments)
    assert (code, summary["records"], summary["rejected"]) == (0, 3, 1), err
    if kind == "delta":
        deltalake = pytest.importorskip("deltalake")
        found = deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()
    else:
        sql = pytest.importorskip("pyiceberg.catalog.sql")
        catalog = sql.SqlCatalog("amqpd", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
        found = catalog.load_table("amqp.messages").scan().to_arrow()
        catalog.close()
    wanted, _ = parse(ALL, *bodies)
    if kind == "delta":
        wanted = [{**row, "clock": "01:02:03.004", "clock_us": "01:02:03.000004"} for row in wanted]
    assert found.sort_by("offset").column("payload").to_pylist() == wanted


def test_registry_fixes_the_schema_in_the_checkpoint(make_lake, tmp_path, registry):
    first, second = record(("id", "long")), record(("id", "long"), ("more", "int", {"default": 7}))
    registry.add(1, first)
    lake = make(make_lake, tmp_path, [framed(1, encoded(first, {"id": n})) for n in range(10)])
    arguments = ("--payload", "avro", "--schema-registry", registry.url)
    code, summary, err = exported(lake, tmp_path, *arguments)
    assert (code, summary["records"]) == (0, 10), err
    registry.add(2, second)
    lake.append(*[framed(2, encoded(second, {"id": n, "more": 1})) for n in range(10, 20)])
    lake.settled()
    code, summary, err = exported(lake, tmp_path, *arguments)
    assert (code, summary["records"], summary["rejected"]) == (0, 10, 0), err
    found = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "lake").glob("*.parquet")])
    assert sorted(row["id"] for row in found["payload"].to_pylist()) == list(range(20))
    assert found.schema.field("payload").type == pa.struct([("id", pa.int64())])
    code, _, err = exported(lake, tmp_path, "--payload", "avro", "--payload-schema", "x.avsc")
    assert (code, "--payload-schema x.avsc: " in err) == (64, True)
    given = tmp_path / "first.avsc"
    given.write_text(json.dumps(first))
    code, _, err = exported(lake, tmp_path, "--payload", "avro", "--payload-schema", str(given))
    assert (code, "an export with --schema-registry 'URL', not (none)" in err) == (64, True), err
    # The schema of the file is compared, not its spaces.
    assert exported(lake, tmp_path, *arguments, "--payload-schema", str(given))[0] == 0
    given.write_text(json.dumps(second))
    code, _, err = exported(lake, tmp_path, *arguments, "--payload-schema", str(given))
    assert (code, "--payload-schema is not that of the checkpoint" in err) == (64, True)


@pytest.mark.parametrize("answers", [[503] * 6, [0] * 6, [401], [500] * 6])
def test_registry_that_is_away_ends_the_export_and_nothing_is_lost(make_lake, tmp_path, registry, answers):
    schema = record(("id", "long"))
    registry.add(1, schema)
    registry.add(2, schema)
    bodies = [framed(1 + (n >= 50), encoded(schema, {"id": n})) for n in range(100)]
    lake = make(make_lake, tmp_path, bodies)
    arguments = ("--payload", "avro", "--schema-registry", registry.url, "--batch", "40")
    registry.answers = [200, *answers]
    code, _, err = exported(lake, tmp_path, *arguments)
    assert code == 69 and f"the schema registry http://127.0.0.1:{registry.server.server_port}: " in err, err
    assert "secret" not in err
    registry.answers = []
    registry_of.cache_clear()
    code, _, err = exported(lake, tmp_path, *arguments)
    assert code == 0, err
    tables = [pq.read_table(path) for path in (tmp_path / "lake").glob("*.parquet")]
    found = [row["id"] for table in tables for row in table["payload"].to_pylist()]
    assert sorted(found) == list(range(100))


def test_registry_that_refuses_a_worker_process_ends_the_export(make_lake, tmp_path, registry, monkeypatch):
    """Worker processes have their own client, and send its error to the driver."""
    monkeypatch.setattr(engine, "PART_BYTES", 4096)
    monkeypatch.setattr(engine, "TASK_BYTES_MIN", 4096)
    schema = record(("id", "long"))
    registry.add(1, schema)
    lake = make(make_lake, tmp_path, [framed(1, encoded(schema, {"id": n})) for n in range(2000)])
    given = tmp_path / "given.avsc"
    given.write_text(json.dumps(schema))
    arguments = ("--payload", "avro", "--payload-schema", str(given), "--schema-registry", registry.url)
    registry.answers = [403] * 10
    code, _, err = exported(lake, tmp_path, *arguments)
    assert (code, "it answers 403 to /schemas/ids/1" in err) == (69, True), err
    registry.answers = []
    code, summary, err = exported(lake, tmp_path, *arguments)
    assert (code, summary["records"], summary["rejected"]) == (0, 2000, 0), err
    assert len(list((tmp_path / "lake").glob("*.parquet"))) > 1


@pytest.mark.parametrize("way", ["file", "variable"])
def test_password_of_the_registry_is_in_no_command_line_file_or_message(
    make_lake, tmp_path, registry, monkeypatch, way
):
    """Worker processes need it, too. The command lines are those at the time of each request."""
    monkeypatch.setattr(engine, "PART_BYTES", 4096)
    monkeypatch.setattr(engine, "TASK_BYTES_MIN", 4096)
    secret, seen = "secret word", []
    real = registry._answer

    def answer(path, login):
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                seen.append(each.read_bytes())
        return real(path, login)

    monkeypatch.setattr(registry, "_answer", answer)
    schema = record(("id", "long"))
    registry.add(1, schema)
    lake = make(make_lake, tmp_path, [framed(1, encoded(schema, {"id": n})) for n in range(2000)])
    file = tmp_path / "password"
    file.write_text(f"{secret}\nthe second line is a comment\n")
    url = f"http://user@127.0.0.1:{registry.server.server_port}"
    where = ("--data-dir", lake.data_dir, "export", "--queue", "tasks", "--to", str(tmp_path / "lake"))
    given = [*where, "--payload", "avro", "--schema-registry", url]
    out, environment = io.StringIO(), {"AMQPCTL_SCHEMA_REGISTRY_PASSWORD": secret}
    if way == "file":
        given += ["--schema-registry-password-file", str(file)]
        environment = {"AMQPCTL_SCHEMA_REGISTRY_PASSWORD": "another"}
    assert run(given, out, out, io.StringIO(), environment) == 0, out.getvalue()
    assert len(list((tmp_path / "lake").glob("*.parquet"))) > 1  # by worker processes
    registry.answers = [401]
    registry_of.cache_clear()
    lake.append(framed(2, b"\2"))
    lake.turn()
    assert run(given, out, out, io.StringIO(), environment) == 69
    file.unlink()
    hidden = [secret.encode(), quote(secret).encode()]
    files = [each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()]
    for each in (*seen, *files, out.getvalue().encode()):
        assert not any(word in each for word in hidden)
    assert seen and any(b"pytest" in each for each in seen)


def test_password_of_the_registry_that_cannot_be_used(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "good").write_text("secret")
    for url, name, words in (
        ("http://user@h", "missing", "No such file"),
        ("http://user@h", "empty", "its first line is empty"),
        ("http://h:8081", "good", "needs a user in the URL: http://USER@HOST:8081, not http://h:8081"),
        ("user@h:8081", "good", "needs a user in the URL"),
        ("http://user:other@h", "good", "the URL has a password, too"),
    ):
        path = tmp_path / name
        given = ("--payload", "avro", "--schema-registry", url, "--schema-registry-password-file", str(path))
        code, _, err = call("export", "--data-dir", "/none", "--queue", "q", "--to", str(tmp_path / "lake"), *given)
        assert (code, f"--schema-registry-password-file {path}: " in err, words in err) == (64, True, True), err
        assert "secret" not in err and ":other" not in err
    given = ("--payload", "avro", "--schema-registry", "http://user:secret@127.0.0.1:9")
    _, _, err = call("export", "--data-dir", "/none", "--queue", "q", "--to", str(tmp_path / "lake"), *given)
    assert "other users of this machine see the password in --schema-registry" in err and "secret" not in err
    assert with_password("http://a%40b@h:8081/x", "p@:/ ") == "http://a%40b:p%40%3A%2F%20@h:8081/x"


def test_requests_are_repeated_and_a_wrong_url_is_an_error(registry):
    registry.add(1, record(("id", "long")))
    client = registry_of(registry.url)
    registry.answers = [500, 0, 429]
    assert client.schema(1).kind == "AVRO"
    assert registry.requests == ["/schemas/ids/1"] * 4
    with pytest.raises(RegistryError, match="it answers 404"):
        registry_of(registry.url + "/elsewhere").schema(1)
    with pytest.raises(RegistryError, match="it answers 401"):
        registry_of(registry.url.replace("secret", "other")).schema(1)
    for url in (
        "ftp://x",
        "http://",
        "localhost:8081",
        "http://u:secret@h/?x=1",
        "u:secret@h:8081",
        "http://u:secret/word@h:8081",
        "http://u:secret#word@h:8081",
    ):
        with pytest.raises(ValueError, match="expected http://HOST:PORT") as caught:
            registry_of(url)
        assert "secret" not in str(caught.value)
    for made in (PayloadOptions("avro", "", "", registry.url), PayloadFormat(AvroParser, "", None, registry.url)):
        assert "secret" not in repr(made)
    assert registry_of("http://[::1]/ccompat")._address == ("::1", 80)


def test_wrong_host_or_reference_is_no_error_of_the_body(registry):
    """Else the export would reject good messages."""
    registry.add(1, record(("id", "long")))
    registry.schemas[1]["references"] = [{"name": "x"}]
    for url in (registry.url, registry.url + "/\u00fc", "http://" + "x" * 64 + ".invalid"):
        with pytest.raises(RegistryError):
            parse(record(("id", "long")), framed(1, b"\2"), registry=registry_of(url))


def test_unknown_id_is_asked_for_again_after_a_minute(registry, monkeypatch):
    """A producer may use an id before every node of the registry knows it."""
    now = [1000.0]
    monkeypatch.setattr(schema_registry.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(schema_registry, "UNKNOWN_MAX", 3)
    client = registry_of(registry.url)

    def ask(number):
        with pytest.raises(UnknownSchema, match=f"no schema {number}"):
            client.schema(number)

    ask(1)
    ask(1)
    assert registry.requests == ["/schemas/ids/1"]
    registry.add(1, record(("id", "long")))
    ask(1)
    now[0] += 60
    assert client.schema(1).kind == "AVRO"
    for number in range(2, 100):
        ask(number)
    assert len(client._unknown) == 3


def test_answer_without_end_is_an_error(registry, monkeypatch):
    monkeypatch.setattr(schema_registry, "ANSWER_BYTES_MAX", 100)
    registry.add(1, record(("id", "long"), doc="x" * 100))
    with pytest.raises(RegistryError, match="its answer to /schemas/ids/1 has over"):
        registry_of(registry.url).schema(1)


def test_decimals_without_end_and_fixed_types_without_bytes_are_refused(registry):
    """The time to read a decimal grows with the square of its size."""
    price = record(("price", logical("bytes", "decimal", precision=9, scale=2)))
    raw = record(("price", "bytes"))
    registry.add(1, price)
    for schema, made in ((price, lambda body: body), (price, lambda body: framed(1, body))):
        client = registry_of(registry.url) if made(b"") else None
        bodies = [made(encoded(raw, {"price": each})) for each in (b"\1\0", b"\0" * 40 + b"\1", b"\1" * 2000)]
        rows, errors = parse(schema, *bodies, registry=client)
        assert [row and row["price"] for row in rows] == [Decimal("2.56"), Decimal("0.01"), None]
        assert errors[:2] == [None, None] and "a decimal has 2000 bytes, at most 1024 are read" in errors[2]
    fixed = {"type": "fixed", "name": "F", "size": 40, "logicalType": "decimal", "precision": 60}
    rows, errors = parse(record(("price", ["null", fixed])), b"\2" + b"\0" * 39 + b"\7")
    assert (rows, errors) == ([{"price": Decimal(7)}], [None])
    empty = {"type": "fixed", "name": "F", "size": 0}
    with pytest.raises(BadSchema, match="a fixed type without bytes is not supported"):
        avro_format(json.dumps(record(("a", {"type": "array", "items": empty}))))


def test_bodies_become_objects_a_few_at_a_time(monkeypatch):
    """A body of null items has an object of 200 bytes for each of its bytes."""
    schema = record(("items", {"type": "array", "items": record(("x", ["null", "int"]), name="Item")}))
    bodies = [encoded(schema, {"items": [{"x": None}] * 50}), b"", encoded(schema, {"items": [{"x": 1}]})] * 3
    expected = parse(schema, *bodies)
    found = []
    real = AvroParser._parse
    monkeypatch.setattr(payload, "SLICE_BYTES", 50)
    monkeypatch.setattr(AvroParser, "_parse", lambda parser, each: found.append(len(each)) or real(parser, each))
    assert parse(schema, *bodies) == expected
    assert found == [1, 3, 3, 2]


@pytest.mark.parametrize("depth", [500, 2000, 20000])
def test_schema_that_is_nested_too_deeply_is_an_error(registry, depth):
    nested = '{"type": "array", "items": ' * depth + '"int"' + "}" * depth
    text = f'{{"type": "record", "name": "R", "fields": [{{"name": "a", "type": {nested}}}]}}'
    registry.add(1, text)
    _, errors = parse(record(("id", "long"), name="R"), framed(1, b"\0"), registry=registry_of(registry.url))
    assert len(errors) == 1 and "no such record" not in errors[0]
    for call in (
        lambda: avro_format(text),
        lambda: payload_avro.infer_schema([framed(1, b"\0")], registry_of(registry.url)),
    ):
        # Between these depths some of the steps reach Python's limit, and others do not.
        with pytest.raises(BadSchema) if depth > 1000 else suppress(BadSchema):
            call()


def test_schema_that_is_refused_again_and_again_needs_no_memory(registry):
    registry.add(1, record(("next", ["null", "shop.Order"])))
    parser = AvroParser(json.dumps(record(("id", "long"))), registry_of(registry.url))
    for _ in range(3):
        with pytest.raises(BadSchema, match="contains itself") as caught:
            parser._value(framed(1, b"\2"))
    assert len(caught.traceback) == 3


def test_read_and_sql_have_the_same_columns(make_lake, tmp_path, registry):
    pytest.importorskip("duckdb")
    schema = record(("id", "long"), ("day", logical("int", "date")))
    registry.add(1, schema)
    good = [framed(1, encoded(schema, {"id": n, "day": date(2026, 1, 1 + n)})) for n in range(10)]
    lake = make(make_lake, tmp_path, [*good, b"bad"])
    reader = amqpd.read(lake.data_dir, "tasks", columns=["offset"], payload="avro", schema_registry=registry.url)
    rows = reader.read_all().to_pylist()
    assert rows[3] == {"offset": 3, "payload": {"id": 3, "day": date(2026, 1, 4)}, "payload_error": None}
    assert rows[10]["payload"] is None and "byte 0" in rows[10]["payload_error"]
    given = tmp_path / "given.avsc"
    given.write_text(json.dumps(record(("day", logical("int", "date")))))
    found = amqpd.read(lake.data_dir, "tasks", payload="avro", payload_schema=given, schema_registry=registry.url)
    assert found.read_all()["payload"][3].as_py() == {"day": date(2026, 1, 4)}
    url, password = f"http://user@127.0.0.1:{registry.server.server_port}", tmp_path / "password"
    password.write_text("secret word")
    login = ("--schema-registry", url, "--schema-registry-password-file", str(password))
    ask = ("--data-dir", lake.data_dir, "sql", "--payload", "avro", *login)
    statement = "SELECT sum(payload.id) AS ids, max(payload.day) AS day FROM tasks"
    assert call(*ask, statement) == (0, "ids\tday\n45\t2026-01-10\n", "")
    registry_of.cache_clear()
    registry.answers = [503] * 6
    code, _, err = call(*ask, statement)
    assert (code, "the schema registry http://127.0.0.1" in err) == (69, True)
    with pytest.raises(ValueError, match="avro needs a schema or a schema registry"):
        amqpd.read(lake.data_dir, "tasks", payload="avro")


def test_missing_package_names_what_to_install(make_lake, tmp_path, monkeypatch):
    from amqpd.cli import export

    lake = make(make_lake, tmp_path, [b"x"])
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "fastavro" else object())
    for command in (("export", "--queue", "tasks", "--to", str(tmp_path / "lake")), ("sql", "SELECT 1 FROM tasks")):
        code, _, err = call("--data-dir", lake.data_dir, *command, "--payload", "avro", "--payload-schema", "x.avsc")
        assert code == 69 and "needs the package fastavro" in err and "fastavro>=" in err, err
