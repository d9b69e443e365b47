"""Payload columns: schemas, inference, bodies that fit and bodies that do not."""

from __future__ import annotations

import io
import json
import os
import random
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import amqpd
from amqpd.cli.main import run
from amqpd.protocol import properties as p
from amqpd.storage.export import import_files
from amqpd.storage.export.file_writer import json_values
from amqpd.storage.export.payload import BadSchema, PayloadParser, infer, json_schema, schema_of_text
from amqpd.storage.filesystem import FileSystem

SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "description": "its name"},
        "price": {"type": "integer"},
        "share": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "paid": {"type": "boolean"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}},
    },
}
KIND = schema_of_text(json.dumps(SCHEMA))


def parse(*bodies):
    found = PayloadParser(KIND).parse(pa.array(bodies, pa.binary()))
    found.payload.validate(full=True)
    assert found.payload.type == KIND and len(found.payload) == len(found.error) == len(bodies)
    return found.payload.to_pylist(), found.error.to_pylist()


def test_schema_is_read_and_written():
    assert KIND.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema_of_text(json.dumps(json_schema(KIND))) == KIND


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object with a type"),
        ('{"type": "string"}', "expected type object"),
        ('{"type": "object"}', "an object needs properties"),
        (
            '{"type": "object", "properties": {"a": {"type": "null"}}}',
            "the schema, a: the type 'null' is not supported",
        ),
        ('{"type": "object", "properties": {"a": {"type": "array"}}}', "a, items: expected an object with a type"),
        ('{"type": "object", "properties": {"a": {"type": "string", "enum": []}}}', "'enum' is not supported"),
        ('{"type": "object", "properties": {"a": {"type": "string", "format": "date"}}}', "expected date-time"),
        ('{"type": "object", "required": [], "properties": {}}', "'required' is not supported"),
    ],
)
def test_schema_that_is_not_supported_is_an_error(schema, words):
    with pytest.raises(BadSchema, match=words):
        schema_of_text(schema)


def test_bodies_that_fit_become_structs():
    rows, errors = parse(
        b'{"customer":"a\\n","price":1,"share":1,"at":"2026-01-31T13:00:00.5+01:00","items":[{"id":1,"x":2}],"more":[]}',
        b' {\n"price": null,\n"paid": true}\n ',
        b"{}",
        b"null",
    )
    assert errors == [None] * 4
    nothing = dict.fromkeys(SCHEMA["properties"])
    when = datetime(2026, 1, 31, 12, 0, 0, 500000, UTC)
    first = {"customer": "a\n", "price": 1, "share": 1.0, "at": when, "items": [{"id": 1}]}
    assert rows == [{**nothing, **first}, {**nothing, "paid": True}, nothing, None]
    assert parse() == ([], [])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "Invalid value"),
        (b"5", "The body changed from object to number"),
        (b"[{}]", "The body changed from object to array"),
        (b"\xff", "UTF8"),
        (b'{"customer":"\xff"}', "UTF8"),
        (b'{"price":1.5}', "int64"),
        (b'{"price":"1"}', "Field(/price) changed from number to string"),
        (b'{"items":[{"id":"a"}]}', "Field(/items/[]/id) changed"),
        (b'{"at":"yesterday"}', "timestamp"),
        (b'{"price":1,"price":2}', "twice"),
        (b'{"price":1}{"price":2}', "Missing a comma"),
        (b'{"price":1}}\n{"n":1,"p":{}', ""),
        (b'{"price":1},"p":{}', ""),
        (b'{"price":1},"x":2', "The body changed from object to string"),
        (b'{"price":1},{"price":2}', "not one JSON value"),
        (b'{"price":1}],"x":[1', "not one JSON value"),
        (b'{"price":1}]}\n{"p":[{"price":2}', "not one JSON value"),
        (b'{"price":', ""),
        (b'{"a":{"b":1}', ""),
        (b"\xef\xbb\xbf{}", "Invalid value"),
        (b"{} x", "Missing a comma"),
        (b"[" * 100_000, ""),
    ],
)
def test_body_that_does_not_fit_has_a_reason_and_harms_no_other(body, words):
    good = [b'{"price":%d}' % number for number in range(20)]
    for place in (0, 7, 19):
        rows, errors = parse(*good[:place], body, *good[place:])
        assert rows[place] is None and words in errors[place], errors[place]
        assert "/p" not in errors[place].replace("/price", "") and len(errors[place]) <= 200
        assert [row["price"] for row in rows if row is not None] == list(range(20))
        assert errors.count(None) == 20


def test_numbers_that_json_lacks_are_missing_in_json():
    parser = PayloadParser(schema_of_text('{"type":"object","properties":{"a":{"type":"number"}}}'))
    found = parser.parse(pa.array([b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1.5}'])).payload
    assert json_values(found) == ["{}", "{}", '{"a":1.5}']


def test_mixed_bodies_are_those_of_a_naive_parser():
    seed = random.Random(7)
    choices = [
        lambda: {"price": seed.randrange(9)},
        lambda: {"price": "x"},
        lambda: {"customer": seed.choice(["a", "\u00fc", "", None])},
        lambda: {"items": seed.choice([[], [{"id": 1}, None], [{}], [1]])},
        list,
        lambda: {"share": seed.choice([1, 1.5, True])},
    ]
    values = [seed.choice(choices)() for _ in range(500)]
    rows, errors = parse(*(json.dumps(value).encode() for value in values))

    def fits(value):
        if not isinstance(value, dict):
            return False
        items = value.get("items", [])
        return (
            not isinstance(value.get("price"), str)
            and not isinstance(value.get("share"), bool)
            and all(item is None or isinstance(item, dict) for item in items)
        )

    assert [error is None for error in errors] == [fits(value) for value in values]
    for row, value in zip(rows, values, strict=True):
        if fits(value):
            assert {name: each for name, each in row.items() if name in value and name != "items"} == {
                name: each for name, each in value.items() if name != "items"
            }


def test_schema_is_inferred_from_most_bodies():
    bodies = [
        {"a": 1, "b": "x", "at": "2026-01-31T12:00:00Z", "nothing": None, "empty": [], "deep": {"x": [{"y": True}]}},
        {"a": 2.5, "b": "y", "e": {}},
        {"a": 3, "b": 7},
        {"big": 2**70},
        [1],
    ]
    found = infer([b"no json", b"\xff", *(json.dumps(body).encode() for body in bodies)])
    assert json_schema(found)["properties"] == {
        "a": {"type": "number"},
        "b": {"type": "string"},
        "at": {"type": "string"},
        "deep": {
            "type": "object",
            "properties": {
                "x": {"type": "array", "items": {"type": "object", "properties": {"y": {"type": "boolean"}}}}
            },
        },
        "big": {"type": "number"},
    }
    with pytest.raises(BadSchema, match="no body of the sample is a JSON object with fields"):
        infer([b"5", b"{}", b"x"])


# -- exports, queries


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    code = run(list(arguments), out, err, io.StringIO(), {})
    return code, out.getvalue(), err.getvalue()


BAD = 7
"""Every so many messages, one does not fit."""


@pytest.fixture
def orders(tmp_path, make_lake):
    """A log on disk with 3000 messages."""
    lake = make_lake(64 * 1024, FileSystem(), str(tmp_path / "orders"))
    for number in range(3000):
        body = json.dumps({"customer": f"c{number % 3}", "price": number, "tags": ["a", None], "deep": {"x": True}})
        raw = p.encode_properties(p.Properties(delivery_mode=2, headers={"n": number}))
        bad = [b"no json", b"\xff", b'{"price": "high"}'][number % 3]
        lake.append(bad if number % BAD == BAD - 1 else body.encode(), properties=raw)
        if number % 500 == 499:
            lake.turn()
            lake.clock.now_ms += 3_600_000
    lake.settled()
    return lake


GOOD = [number for number in range(3000) if number % BAD != BAD - 1]
REJECTED = [number for number in range(3000) if number % BAD == BAD - 1]


def exported(orders, tmp_path, *arguments):
    to = str(tmp_path / "lake")
    code, out, err = call(
        "--formatter", "json", "--data-dir", orders.data_dir, "export", "--queue", "tasks", "--to", to, *arguments
    )
    return code, json.loads(out) if out else None, err


@pytest.mark.parametrize("depth", [50, 51, 400, 900])
def test_deep_bodies_do_not_end_the_inference(depth):
    """A producer may send any body: levels below the fiftieth get no column."""
    deep = b'{"n": ' * depth + b"1" + b"}" * depth
    kind = infer([deep, b'{"a": 1, "l": ' + b"[" * depth + b"1" + b"]" * depth + b"}"])
    found = {field.name for field in kind}
    assert found == ({"n", "a", "l"} if depth < 50 else {"n", "a"} if depth == 50 else {"a"})
    parsed = PayloadParser(kind).parse(pa.array([deep, b'{"a": 2}'], pa.binary()))
    assert parsed.payload.to_pylist()[1]["a"] == 2


def test_name_that_utf_8_lacks_does_not_end_the_inference():
    """A producer may send any body: half of a surrogate pair in a name gets no column."""
    odd = rb'{"\ud800": 1, "\ud83d\ude00": 2, "d": {"\udfffx": 1, "y": 2}, "only": {"\udc00": 3}}'
    kind = infer([odd, b'{"a": 1}'])
    assert [field.name for field in kind] == ["\U0001f600", "d", "a"]
    assert [field.name for field in kind.field("d").type] == ["y"]
    assert PayloadParser(kind).parse(pa.array([b'{"a": 2}'], pa.binary())).payload.to_pylist()[0]["a"] == 2


def test_schema_is_inferred_from_the_first_batch_that_has_messages(orders, tmp_path):
    """A nightly export of a queue whose first messages are all settled does not fail."""
    orders.store.ack_range(0, 1999)
    orders.settled()
    arguments = ("--payload", "json", "--batch", "1000", "--to-offset")
    code, summary, err = exported(orders, tmp_path, *arguments, "1000")
    assert (code, summary["records"]) == (0, 0), err
    code, summary, err = exported(orders, tmp_path, *arguments, "3000")
    assert (code, summary["records"]) == (0, sum(number >= 2000 for number in GOOD)), err


@pytest.mark.parametrize("kind", ["parquet", pytest.param("json", marks=pytest.mark.slow), "csv"])
@pytest.mark.parametrize("partition", [(), pytest.param(("--partition-by", "hour"), marks=pytest.mark.slow)])
def test_export_has_a_column_payload_and_files_of_rejected_messages(orders, tmp_path, kind, partition):
    duckdb = pytest.importorskip("duckdb")
    columns = ("--columns", "offset,routing_key")
    code, summary, err = exported(
        orders, tmp_path, "--payload", "json", "--format", kind, "--batch", "1000", *columns, *partition
    )
    assert (code, summary["records"], summary["rejected"]) == (0, len(GOOD), len(REJECTED)), err
    lines = [line for line in err.splitlines() if line.startswith("batch ")]
    first = sum(number < 1000 for number in REJECTED)
    assert len(lines) == 3 and lines[0].endswith(f" wait, {first} rejected"), lines
    assert f"{len(REJECTED)} messages do not fit the payload: they are in {tmp_path / 'lake'}/_rejected" in err
    files = f"'{tmp_path}/lake/**/*.{kind}'"
    payload = "payload::JSON" if kind == "csv" else "to_json(payload)"
    reader = "read_json(" if kind == "json" else f"read_{kind}("
    rows = duckdb.sql(f'SELECT "offset", {payload}::VARCHAR FROM {reader}{files}) ORDER BY 1').fetchall()
    assert [offset for offset, _ in rows] == GOOD
    wanted = [{"customer": f"c{n % 3}", "price": n, "tags": ["a", None], "deep": {"x": True}} for n in GOOD]
    assert [json.loads(text) for _, text in rows] == wanted
    rejected = [
        json.loads(line)
        for path in sorted((tmp_path / "lake" / "_rejected").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [row["offset"] for row in rejected] == REJECTED
    assert all(row["reason"] for row in rejected)
    found = [b64decode(row["value_base64"]) if "value_base64" in row else row["value"].encode() for row in rejected]
    assert found == [[b"no json", b"\xff", b'{"price": "high"}'][number % 3] for number in REJECTED]
    headers = [p.decode_properties(b64decode(row["raw_properties"])).headers for row in rejected]
    assert headers == [{"n": number} for number in REJECTED]
    # The rejected files can be imported.
    for path in (tmp_path / "lake" / "_rejected").glob("*.jsonl"):
        (rows, *_) = import_files.read_rows(path, "", 0)
        assert set(rows.columns) == {"value", "exchange", "routing_key", "raw_properties"}


@pytest.mark.slow
def test_inferred_schema_is_fixed_in_the_checkpoint(orders, tmp_path):
    assert exported(orders, tmp_path, "--payload", "json", "--to-offset", "1500")[0] == 0
    path = tmp_path / "lake.checkpoint" / "payload-schema.json"
    schema = path.read_text()
    assert json.loads(schema)["properties"]["price"] == {"type": "integer"}
    orders.append(b'{"customer": "c", "price": 1.5, "new": 1}')
    orders.turn()
    code, summary, _ = exported(orders, tmp_path, "--payload", "json")
    rest = [number for number in REJECTED if number >= 1500]
    assert (code, summary["rejected"]) == (0, len(rest) + 1)
    assert path.read_text() == schema
    code, _, err = exported(orders, tmp_path)
    assert (code, "belongs to an export with --payload 'json', not (none)" in err) == (64, True)
    (tmp_path / "other").write_text('{"type": "object", "properties": {"price": {"type": "number"}}}')
    code, _, err = exported(orders, tmp_path, "--payload", "json", "--payload-schema", str(tmp_path / "other"))
    assert (code, "--payload-schema is not that of the checkpoint" in err) == (64, True)
    other = ("--checkpoint", str(tmp_path / "c2"), "--to", str(tmp_path / "lake2"))
    given = ("--payload", "json", "--payload-schema", str(tmp_path / "other"))
    code, summary, _ = exported(orders, tmp_path, *given, *other)
    assert (code, summary["rejected"]) == (0, len(REJECTED))


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_at(step, monkeypatch, function):
    """Run a function up to its `step`-th sync or rename. Return whether it was ended there."""
    left = [step]

    def counted(real):
        def call_or_end(*arguments):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return real(*arguments)

        return call_or_end

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", counted(os.fsync))
        patched.setattr(Path, "replace", counted(Path.replace))
        try:
            function()
        except Killed:
            return True
    return False


@pytest.mark.slow
def test_each_message_is_in_one_file_after_a_kill_at_each_step(orders, tmp_path, monkeypatch):
    step = 0
    is_killed = True
    while is_killed:
        step += 1
        lake = tmp_path / f"lake{step}"
        arguments = ("--payload", "json", "--batch", "100", "--to-offset", "200", "--to", str(lake))
        is_killed = killed_at(step, monkeypatch, lambda: exported(orders, tmp_path, *arguments))  # noqa: B023
        code, _, err = exported(orders, tmp_path, *arguments)
        assert code == 0, err
        tables = [pq.read_table(path, partitioning=None) for path in lake.glob("*.parquet")]
        assert sorted(pa.concat_tables(tables)["offset"].to_pylist()) == [each for each in GOOD if each < 200]
        lines = [line for path in lake.rglob("*.jsonl") for line in path.read_text().splitlines()]
        assert sorted(json.loads(line)["offset"] for line in lines) == [each for each in REJECTED if each < 200]
    assert step > 10


@pytest.mark.slow
def test_rejected_files_of_another_checkpoint_are_seen(written, tmp_path):
    """An export of which no message fitted has only such files."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"price": {"type": "integer"}}}')
    given = ("--payload", "json", "--payload-schema", str(schema))
    code, summary, _ = exported(written, tmp_path, *given)
    assert (code, summary["records"], summary["rejected"]) == (0, 0, 4000)
    code, _, err = exported(written, tmp_path, *given, "--checkpoint", str(tmp_path / "other"))
    assert (code, "of an export with another checkpoint" in err) == (69, True), err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--payload", "xml"), "--payload xml: expected json, avro, protobuf"),
        (("--payload-schema", "x"), "--payload-schema needs --payload"),
        (("--schema-registry", "http://x"), "--schema-registry needs --payload"),
        (("--payload", "json", "--schema-registry", "http://x"), "--payload json: a schema registry needs the format"),
        (("--payload", "json", "--payload-message", "X"), "--payload json: the name of a message needs the format"),
        (("--payload", "json", "--payload-schema", "/none"), "--payload-schema /none: "),
        (("--payload", "json", "--payload-schema", "/dev/null"), "--payload-schema /dev/null: it is empty"),
        (("--payload", "json", "--engine", "spark"), "--payload: not with --engine spark, --where"),
        (("--payload", "json", "--to", "sqlite:///x", "--checkpoint", "c"), "--payload: not for databases: export to"),
        (("--payload", "json", "--schema-registry-password-file", "x"), "password-file needs --schema-registry"),
    ],
)
def test_wrong_payload_option_is_refused(orders, tmp_path, arguments, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = exported(orders, tmp_path, *arguments)
    assert (code, words in err) == (64, True), err
    assert not (tmp_path / "lake").exists()


def test_all_queues_of_a_vhost_need_a_schema(written, tmp_path):
    where = ("--data-dir", written.data_dir, "--vhost", "/", "--to", str(tmp_path / "lake"))
    code, _, err = call("export", *where, "--payload", "json")
    assert (code, "give --queue or a --payload-schema" in err) == (64, True), err


@pytest.mark.slow
def test_queue_without_json_needs_a_schema(written, tmp_path):
    code, _, err = exported(written, tmp_path, "--payload", "json")
    assert (code, "no body of the sample is a JSON object with fields: give a schema" in err) == (64, True)
    schema = tmp_path / "schema"
    schema.write_text(json.dumps(SCHEMA))
    code, summary, _ = exported(written, tmp_path, "--payload", "json", "--payload-schema", str(schema))
    assert (code, summary["records"], summary["rejected"]) == (0, 0, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("payload", ["json", {"type": "object", "properties": {"price": {"type": "integer"}}}])
def test_read_adds_the_payload_and_keeps_all_rows(orders, payload):
    reader = amqpd.read(orders.data_dir, "tasks", columns=["offset"], payload=payload)
    assert reader.schema.names == ["offset", "payload", "payload_error"]
    rows = reader.read_all().to_pylist()
    assert [row["offset"] for row in rows] == list(range(3000))
    assert [row["payload"]["price"] for row in rows if row["payload"] is not None] == GOOD
    assert [row["offset"] for row in rows if row["payload_error"] is not None] == REJECTED
    with pytest.raises(ValueError, match="the format 'xml' is not known, expected json, avro, protobuf"):
        amqpd.read(orders.data_dir, "tasks", payload="xml")


@pytest.mark.slow
def test_sql_has_the_columns_of_the_payload(orders, written, tmp_path):
    pytest.importorskip("duckdb")
    ask = ("--data-dir", orders.data_dir, "sql", "--payload", "json")
    statement = "SELECT payload.customer AS c, sum(payload.price) AS total FROM tasks GROUP BY 1 ORDER BY 1"
    lines = [f"c{rest}\t{sum(number for number in GOOD if number % 3 == rest)}" for rest in range(3)]
    assert call(*ask, statement)[1].splitlines() == ["c\ttotal", *lines, "\t"]
    bad = 'SELECT count(*) AS n, min("offset") AS first FROM tasks WHERE payload_error IS NOT NULL AND "offset" > 6'
    assert call(*ask, bad)[1] == f"n\tfirst\n{len(REJECTED) - 1}\t13\n"
    assert call(*ask, "SELECT count(*) AS n FROM tasks WHERE payload.price > 2990")[1] == "n\n8\n"
    schema = tmp_path / "schema"
    schema.write_text('{"type": "object", "properties": {"price": {"type": "number"}}}')
    found = call(*ask, "--payload-schema", str(schema), "SELECT max(payload.price) AS m FROM tasks")
    assert found == (0, "m\n2999.0\n", "")
    code, _, err = call(*ask, "--payload-schema", "/dev/null", "SELECT 1 FROM tasks")
    assert (code, "--payload-schema /dev/null: it is empty" in err) == (64, True)
    code, _, err = call("--data-dir", written.data_dir, "sql", "--payload", "json", "SELECT payload FROM tasks")
    assert (code, "tasks has no column payload: no body of the sample" in err) == (65, True)
