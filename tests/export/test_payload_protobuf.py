"""Protobuf bodies as columns: types, damaged bodies, schemas that change, a schema registry."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import amqpd
from amqpd.cli.main import run as run_command
from amqpd.storage.export.payload import BadSchema
from amqpd.storage.export.schema_registry import UnknownSchema, registry_of
from amqpd.storage.filesystem import FileSystem

pytest.importorskip("google.protobuf.message_factory")
if find_spec("grpc_tools") is None:
    pytest.skip("no grpcio-tools", allow_module_level=True)
from google.protobuf import message_factory

from amqpd.storage.export import payload_protobuf
from amqpd.storage.export.payload_protobuf import (
    ProtobufParser,
    message_type,
    protobuf_format,
    schema_text,
)

pytestmark = pytest.mark.external  # packages of the extra `all-tests`

SHOP = """\
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "common/item.proto";
enum Kind { NEW = 0; OLD = 1; }
message Order {
  double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6; sint64 s64 = 7;
  fixed32 x32 = 8; sfixed64 x64 = 9; bool b = 10; string s = 11; bytes raw = 12; Kind kind = 13;
  optional int32 maybe = 14;
  oneof choice { string left = 15; Item right = 16; }
  repeated Item items = 17; repeated int32 numbers = 18; repeated Kind kinds = 19;
  map<string, double> prices = 20; map<int32, Item> by_id = 21;
  google.protobuf.Timestamp at = 22; google.protobuf.StringValue note = 23; google.protobuf.Struct extra = 24;
  Empty nothing = 25;
  message Empty {}
}
message Invoice { int32 id = 1; }
"""
ITEM = """\
syntax = "proto2";
package shop;
message Item { required string sku = 1; optional int32 count = 2; optional Size size = 3; enum Size { S = 1; L = 2; } }
"""
ITEM_KIND = pa.struct([("sku", pa.string()), ("count", pa.int32()), ("size", pa.string())])


@pytest.fixture(scope="module")
def protos(tmp_path_factory):
    root = tmp_path_factory.mktemp("protos")
    (root / "common").mkdir()
    (root / "shop.proto").write_text(SHOP)
    (root / "common" / "item.proto").write_text(ITEM)
    return root


@pytest.fixture(scope="module")
def text(protos):
    return schema_text(str(protos / "shop.proto"), "shop.Order")


@pytest.fixture(scope="module")
def order(text):
    return message_factory.GetMessageClass(message_type(text))


def full(order):
    found = order(
        d=0.1, f=0.5, i32=-(1 << 31), i64=-(1 << 63), u32=(1 << 32) - 1, u64=(1 << 64) - 1, s64=-1, x32=1, x64=-2,
        b=True, s="\u00fc", raw=b"\xff", kind=1, maybe=0, numbers=[1, 2], kinds=[0, 1, 7], prices={"eur": 1.5},
    )  # fmt: skip
    found.right.sku = "r"
    found.items.add(sku="a", count=1, size=2)
    found.items.add(sku="")
    found.by_id[5].sku = "b"
    found.at.seconds, found.at.nanos = -1, 1999
    found.note.value = ""
    found.extra["k"] = [1, None, "x"]
    found.nothing.SetInParent()
    return found


def parse(text, *bodies, registry=None):
    found = ProtobufParser(text, registry).parse(pa.array(bodies, pa.binary()))
    found.payload.validate(full=True)
    assert found.payload.type == protobuf_format(text).kind
    assert len(found.payload) == len(found.error) == len(bodies)
    return found.payload.to_pylist(), found.error.to_pylist()


def framed(number, path, body):
    """path: numbers as they are written, in zigzag encoding."""
    return b"\0" + number.to_bytes(4, "big") + path + body


def test_each_type_has_its_column(text):
    assert protobuf_format(text).kind == pa.struct(
        [
            ("d", pa.float64()), ("f", pa.float32()), ("i32", pa.int32()), ("i64", pa.int64()), ("u32", pa.uint32()),
            ("u64", pa.uint64()), ("s64", pa.int64()), ("x32", pa.uint32()), ("x64", pa.int64()), ("b", pa.bool_()),
            ("s", pa.string()), ("raw", pa.binary()), ("kind", pa.string()), ("maybe", pa.int32()),
            ("left", pa.string()), ("right", ITEM_KIND), ("items", pa.list_(ITEM_KIND)),
            ("numbers", pa.list_(pa.int32())), ("kinds", pa.list_(pa.string())),
            ("prices", pa.map_(pa.string(), pa.float64())), ("by_id", pa.map_(pa.int32(), ITEM_KIND)),
            ("at", pa.timestamp("us", tz="UTC")), ("note", pa.string()), ("extra", pa.string()),
            ("nothing", pa.bool_()),
        ]
    )  # fmt: skip


def test_values_are_those_that_were_written(text, order):
    item = {"sku": "a", "count": 1, "size": "L"}
    wanted = {
        "d": 0.1, "f": 0.5, "i32": -(1 << 31), "i64": -(1 << 63), "u32": (1 << 32) - 1, "u64": (1 << 64) - 1, "s64": -1,
        "x32": 1, "x64": -2, "b": True, "s": "\u00fc", "raw": b"\xff", "kind": "OLD", "maybe": 0, "left": None,
        "right": {"sku": "r", "count": None, "size": None}, "items": [item, {"sku": "", "count": None, "size": None}],
        "numbers": [1, 2], "kinds": ["NEW", "OLD", "7"], "prices": [("eur", 1.5)],
        "by_id": [(5, {"sku": "b", "count": None, "size": None})],
        "at": datetime(1969, 12, 31, 23, 59, 59, 1, UTC), "note": "", "extra": '{"k": [1.0, null, "x"]}',
        "nothing": True,
    }  # fmt: skip
    nothing = {
        **dict.fromkeys(wanted, 0), "b": False, "s": "", "raw": b"", "kind": "NEW", "maybe": None, "left": None,
        "right": None, "items": [], "numbers": [], "kinds": [], "prices": [], "by_id": [], "at": None, "note": None,
        "extra": None, "nothing": None,
    }  # fmt: skip
    rows, errors = parse(text, full(order).SerializeToString(), b"", order(left="").SerializeToString())
    assert errors == [None] * 3
    assert rows == [wanted, nothing, {**nothing, "left": ""}]
    assert parse(text) == ([], [])


def test_bodies_that_do_not_fit_have_a_reason_and_harm_no_other(text, order):
    good = full(order).SerializeToString()
    bodies = {
        b"\xff": "Error parsing",
        good[:-1]: "Error parsing",
        b"\x5a\x01\xff": "Error parsing",
        b"\x0a\x01a": "field 1 (shop.Order.d) has another type",
        b"\x8a\x01\x02\x10\x01": "lacks a required field",
        b"\x8a\x01\x05\x0a\x01a\x18\x09": "field 3 (shop.Item.size) has another type or a value that its enum lacks",
        b"\x8a\x01\x03\x0a\x01\xff": "utf8",
        b"\xb2\x01\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f": "Error parsing",
        b"\xb2\x01\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f": "too large",
    }
    rows, errors = parse(text, good, *bodies, good)
    assert errors[0] is errors[-1] is None and rows[0] == rows[-1] is not None
    assert rows[1:-1] == [None] * len(bodies)
    for error, words in zip(errors[1:-1], bodies.values(), strict=True):
        assert words.lower() in error.lower() and len(error) <= 200, (error, words)


def test_fields_that_the_schema_lacks_are_left_out(text, order):
    rows, errors = parse(text, b"\xc0\x3e\x01" + order(s="a").SerializeToString())
    assert errors == [None] and rows[0]["s"] == "a"


def test_random_bytes_never_raise(text, order):
    seed = random.Random(5)
    good = full(order).SerializeToString()
    bodies = []
    for _ in range(1000):
        body = bytearray(good)
        for _ in range(seed.randrange(1, 4)):
            body[seed.randrange(len(body))] = seed.randrange(256)
        bodies.append(bytes(body[: seed.randrange(len(body) + 1)] if seed.randrange(2) else body))
    rows, errors = parse(text, *bodies)
    assert [row is None for row in rows] == [error is not None for error in errors]
    assert 50 < errors.count(None) < 950


def test_descriptor_set_is_a_schema_too(protos, text, tmp_path):
    for more in (["--include_imports"], []):
        output = tmp_path / "shop.desc"
        files = ["shop.proto", "common/item.proto"]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--descriptor_set_out={output}", *more]
        subprocess.run([*command, *reversed(files)], check=True)
        found = schema_text(str(output), "shop.Order")
        assert protobuf_format(found).kind == protobuf_format(text).kind


@pytest.mark.parametrize(
    ("content", "message", "words"),
    [
        ("nonsense", "", "schema.proto:1:1: Expected top-level statement"),
        ('syntax = "proto3"; import "x.proto";', "", "x.proto: File not found"),
        ('syntax = "proto3";', "", "--payload-message is needed: schema.proto has the messages .none."),
        ('syntax = "proto3"; message A {} message B {}', "", "has the messages A, B"),
        ('syntax = "proto3"; message A { message C {} } message B {}', "X", "no message 'X'; there are A, A.C, B"),
        ('syntax = "proto3"; message A { repeated A a = 1; }', "", "the message A contains itself"),
        ('syntax = "proto3"; message A {}', "", "the message A has no fields"),
    ],
)
def test_schema_that_no_column_can_have_is_an_error(tmp_path, content, message, words):
    path = tmp_path / "schema.proto"
    path.write_text(content)
    with pytest.raises(BadSchema, match=words):
        protobuf_format(schema_text(str(path), message))


def test_files_of_google_are_those_of_the_package(tmp_path):
    path = tmp_path / "schema.proto"
    path.write_text('syntax = "proto3"; import "google/protobuf/api.proto"; message A { google.protobuf.Api a = 1; }')
    text = schema_text(str(path), "")
    assert b"google/protobuf/any.proto" not in b64decode(json.loads(text)["files"])
    assert protobuf_format(text).kind.field("a").type.field("name").type == pa.string()
    files = json.loads(text)["files"]
    text = text.replace(files, b64encode(b64decode(files).replace(b"/api.", b"/apo.")).decode())
    with pytest.raises(BadSchema, match="the package protobuf has no google/protobuf/apo.proto"):
        protobuf_format(text)


def test_file_that_is_no_schema_is_an_error(protos, tmp_path):
    path = tmp_path / "x.desc"
    path.write_bytes(b"\xff")
    with pytest.raises(BadSchema, match="expected a .proto file or a FileDescriptorSet"):
        schema_text(str(path), "")
    path.write_bytes(b"")
    with pytest.raises(BadSchema, match="the FileDescriptorSet is empty"):
        schema_text(str(path), "")
    with pytest.raises(FileNotFoundError):
        schema_text(str(tmp_path / "x.proto"), "")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--descriptor_set_out={path}", "shop.proto"]
    subprocess.run(command, check=True)
    with pytest.raises(BadSchema, match="is not complete .protoc --include_imports."):
        protobuf_format(schema_text(str(path), "shop.Order"))


# -- a registry


def test_bodies_of_the_registry_have_the_message_of_their_numbers(registry, text, order):
    registry.add_subject("item", 1, ITEM, "PROTOBUF")
    uses = [("common/item.proto", "item", 1)]
    registry.add(1, SHOP, "PROTOBUF", uses)
    newer = SHOP.replace("Empty nothing = 25;", "Empty nothing = 25; string later = 30;")
    registry.add(2, newer.replace("int32 i32 = 3", "bool i32 = 3"), "PROTOBUF", uses)
    registry.add(3, SHOP.replace("int32 i32 = 3", "int64 i32 = 3"), "PROTOBUF", uses)
    registry.add(4, 'syntax = "proto3"; message A {', "PROTOBUF")
    registry.add(5, {"type": "string"})
    registry.add(6, SHOP, "PROTOBUF", [("../../x.proto", "item", 1), *uses])
    registry.add(7, SHOP.replace("repeated int32 numbers", "int32 numbers"), "PROTOBUF", uses)
    body = order(s="a").SerializeToString()
    rows, errors = parse(
        text,
        framed(1, b"\0", body),
        framed(1, b"\2\0", body),  # the list [0], written out
        framed(2, b"\0", b"\x18\x01" + body),
        framed(7, b"\0", b"\x90\x01\x05" + body),
        framed(1, b"\2\2", b"\x08\x01"),  # [1]: Invoice
        framed(1, b"\4\0\4", b""),  # [0, 2]: Order.Empty, behind the entries of two maps
        framed(1, b"\2\x7f", body),
        framed(1, b"\2\x10", body),
        framed(3, b"\0", body),
        framed(4, b"\0", body),
        framed(5, b"\0", body),
        framed(6, b"\0", body),
        framed(9, b"\0", body),
        framed(1, b"", b""),
        b"",
        registry=registry_of(registry.url),
    )
    assert errors[:4] == [None] * 4 and [row["s"] for row in rows[:4]] == ["a"] * 4
    assert rows[2]["i32"] == 1 and rows[3]["numbers"] == [5]
    assert rows[4:] == [None] * 11
    assert errors[4:6] == [
        "the body is a shop.Invoice, not a shop.Order",
        "the body is a shop.Order.Empty, not a shop.Order",
    ]
    assert errors[6] == "the body has no message numbers behind the schema's id"
    assert errors[7] == "schema 1 has no message [8]"
    assert errors[8] == "schema 3: field 3 (shop.Order.i32) has another type there"
    assert "schema-4.proto:1" in errors[9]
    assert errors[10] == "schema 5 is AVRO, not PROTOBUF"
    assert errors[11] == "schema 6 refers to '../../x.proto', which is no relative path"
    assert errors[12] == "the schema registry has no schema 9"
    assert errors[13] == "the body has no message numbers behind the schema's id"
    assert errors[14] == "the body does not begin with byte 0 and a schema's id"
    assert sum(path == "/schemas/ids/1" for path in registry.requests) == 1


def test_names_of_references_are_paths_below_a_directory(registry, text, order):
    """A registry must not write elsewhere, nor end the export: a producer may have registered the schema."""
    registry.add_subject("item", 1, ITEM, "PROTOBUF")
    registry.add_subject("surrogate", 1, "\ud800", "PROTOBUF")
    names = ["/x", "", ".", "a//b", "a\0b", "\ud800", "x" * 256, "x/" * 600 + "y"]
    for number, name in enumerate(names):
        registry.add(number, SHOP, "PROTOBUF", [(name, "item", 1)])
    registry.add(20, SHOP, "PROTOBUF", [("a", "item", 1), ("a/b", "item", 1)])
    registry.add(21, SHOP, "PROTOBUF", [("a/b", "item", 1), ("a", "item", 1)])
    registry.add(22, SHOP, "PROTOBUF", [("a", "surrogate", 1)])
    registry.add(23, "\ud800", "PROTOBUF")
    numbers = [*range(len(names)), 20, 21, 22, 23]
    rows, errors = parse(text, *(framed(each, b"\0", b"") for each in numbers), registry=registry_of(registry.url))
    assert rows == [None] * len(numbers)
    assert all(f"schema {number} refers to '" in errors[number] for number in range(len(names))), errors
    assert errors[0] == "schema 0 refers to '/x', which is no relative path"
    assert errors[-4] == "schema 20 refers to 'a/b', and to a file above it"
    assert errors[-3] == "schema 21 refers to 'a', and to a file above it"
    assert all("surrogates not allowed" in each for each in errors[-2:]), errors


def test_schema_is_compiled_once_for_any_number_of_message_numbers(registry, text, order, monkeypatch):
    registry.add_subject("item", 1, ITEM, "PROTOBUF")
    registry.add(1, SHOP, "PROTOBUF", [("common/item.proto", "item", 1)])
    monkeypatch.setattr(payload_protobuf, "_HEADERS_MAX", 10)
    calls = []
    real = payload_protobuf._compiled
    monkeypatch.setattr(payload_protobuf, "_compiled", lambda root, name: calls.append(name) or real(root, name))
    parser = ProtobufParser(text, registry_of(registry.url))
    bodies = [framed(1, b"\2" + bytes([2 * number]), b"") for number in range(50)]
    errors = parser.parse(pa.array(bodies, pa.binary())).error.to_pylist()
    assert errors[0] is None and errors[-1] == "schema 1 has no message [49]"
    assert (len(calls), len(parser._headers)) == (1, 10)


def test_message_numbers_are_zigzag_varints():
    assert payload_protobuf._message_path(framed(1, b"\x06\x02\x80\x02\x00", b"x")) == ((1, 128, 0), 10)
    for bad in (b"\x01", b"\x80", b"\x04\x02", b"\xff" * 200):
        with pytest.raises(UnknownSchema):
            payload_protobuf._message_path(framed(1, bad, b""))


def test_schema_is_that_of_the_sample(registry):
    registry.add(1, 'syntax = "proto3"; message A { int32 x = 1; } message B { int32 y = 1; }', "PROTOBUF")
    registry.add(4, 'syntax = "proto3"; message A { int32 x = 1; int32 z = 2; }', "PROTOBUF")
    bodies = [framed(1, b"\2\2", b""), framed(4, b"\0", b""), framed(1, b"\0", b""), framed(1, b"\0", b""), b"x"]
    client = registry_of(registry.url)
    found = payload_protobuf.infer_schema(bodies, client, "")
    assert protobuf_format(found).kind == pa.struct([("x", pa.int32()), ("z", pa.int32())])
    found = payload_protobuf.infer_schema(bodies, client, "B")
    assert protobuf_format(found).message == "B"
    for message, words in (("", "a message of Protobuf"), ("C", "the message C")):
        with pytest.raises(BadSchema, match=f"no body of the sample has the id of {words} in the registry"):
            payload_protobuf.infer_schema(bodies if message else [b"x"], client, message)


# -- exports, queries


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    code = run_command(list(arguments), out, err, io.StringIO(), {})
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_table_has_each_type(make_lake, tmp_path, protos, text, order, kind):
    """Numbers without a sign are larger types in a table, with equal values."""
    lake = make_lake(64 * 1024, FileSystem(), str(tmp_path / "orders"))
    bodies = [full(order).SerializeToString(), b"", b"\xff"]
    lake.append(*bodies)
    lake.turn()
    given = ("--payload", "protobuf", "--payload-schema", str(protos / "shop.proto"), "--payload-message", "shop.Order")
    where = ("--data-dir", lake.data_dir, "export", "--queue", "tasks", "--to", str(tmp_path / "lake"))
    code, _, err = call(*where, "--format", kind, *given)
    assert code == 0 and "1 messages do not fit the payload" in err, err
    if kind == "delta":
        deltalake = pytest.importorskip("deltalake")
        found = deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()
    else:
        sql = pytest.importorskip("pyiceberg.catalog.sql")
        catalog = sql.SqlCatalog("amqpd", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
        found = catalog.load_table("amqp.messages").scan().to_arrow()
        catalog.close()
    wanted, _ = parse(text, *bodies[:2])
    assert found.sort_by("offset").column("payload").to_pylist() == wanted


def test_export_read_and_sql(make_lake, tmp_path, protos, text, order):
    pytest.importorskip("duckdb")
    lake = make_lake(64 * 1024, FileSystem(), str(tmp_path / "orders"))
    orders = [order(i32=n, s=f"c{n % 3}", numbers=[n]) for n in range(100)]
    lake.append(*[each.SerializeToString() if each.i32 % 4 else b"\xff" for each in orders])
    lake.settled()
    given = ("--payload", "protobuf", "--payload-schema", str(protos / "shop.proto"), "--payload-message", "shop.Order")
    where = ("--data-dir", lake.data_dir)
    to = str(tmp_path / "lake")
    code, out, err = call("--formatter", "json", *where, "export", "--queue", "tasks", "--to", to, *given)
    assert code == 0, err
    assert (json.loads(out)["records"], json.loads(out)["rejected"]) == (75, 25)
    found = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "lake").glob("*.parquet")])
    assert found.schema.field("payload").type == protobuf_format(text).kind
    assert sorted(row["i32"] for row in found["payload"].to_pylist()) == [n for n in range(100) if n % 4]
    # The next run knows the message from the checkpoint, and refuses another one.
    assert call(*where, "export", "--queue", "tasks", "--to", to, *given)[0] == 0
    code, _, err = call(*where, "export", "--queue", "tasks", "--to", to, *given[:-1], "shop.Invoice")
    assert (code, "--payload-schema is not that of the checkpoint" in err) == (64, True)
    wanted = "SELECT payload.s AS s, sum(payload.i32) AS n FROM tasks WHERE payload_error IS NULL"
    statement = f"{wanted} GROUP BY 1 ORDER BY 1"
    lines = [f"c{rest}\t{sum(n for n in range(100) if n % 4 and n % 3 == rest)}" for rest in range(3)]
    assert call(*where, "sql", *given, statement)[1].splitlines() == ["s\tn", *lines]
    reader = amqpd.read(
        lake.data_dir, "tasks", payload="protobuf", payload_schema=protos / "shop.proto", payload_message="shop.Order"
    )
    assert reader.read_all()["payload"][1].as_py()["numbers"] == [1]


def test_registry_with_a_chosen_message(make_lake, tmp_path, registry):
    registry.add(1, 'syntax = "proto3"; message A { int32 x = 1; } message B { int32 y = 1; }', "PROTOBUF")
    lake = make_lake(64 * 1024, FileSystem(), str(tmp_path / "orders"))
    lake.append(*[framed(1, b"\0" if n % 4 else b"\2\2", b"\x08" + bytes([n])) for n in range(100)])
    lake.settled()
    where = ("--formatter", "json", "--data-dir", lake.data_dir)
    run = (*where, "export", "--queue", "tasks", "--to", str(tmp_path / "lake"))
    given = ("--payload", "protobuf", "--schema-registry", registry.url, "--payload-message")
    code, out, err = call(*run, *given, "B")
    assert (code, json.loads(out)["records"], json.loads(out)["rejected"]) == (0, 25, 75), err
    rejected = (tmp_path / "lake" / "_rejected").iterdir()
    lines = [json.loads(line) for path in rejected for line in path.read_text().splitlines()]
    assert {line["reason"] for line in lines} == {"the body is a A, not a B"}
    code, _, err = call(*run, *given, "A")
    assert (code, "--payload-message is not that of the checkpoint" in err) == (64, True)


@pytest.mark.parametrize(("missing", "package"), [("google.protobuf", "protobuf"), ("grpc_tools", "grpcio-tools")])
def test_missing_package_names_what_to_install(tmp_path, monkeypatch, missing, package):
    from amqpd.cli import export

    monkeypatch.setattr(export, "find_spec", lambda name: None if name == missing else object())
    given = ("--queue", "q", "--to", str(tmp_path / "lake"), "--payload", "protobuf", "--payload-schema", "x.proto")
    code, _, err = call("export", *given)
    assert code == 69 and f"needs the package {package}" in err, err
