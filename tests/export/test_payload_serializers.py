"""Bodies of Confluent's own serializers for Avro and Protobuf, whose schemas are in a registry."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from amqpd.storage.export.payload import PayloadOptions
from amqpd.storage.export.payload_schema import format_of
from amqpd.storage.export.schema_registry import schema_id

confluent = pytest.importorskip("confluent_kafka.schema_registry", exc_type=ImportError)
serialization = pytest.importorskip("confluent_kafka.serialization", exc_type=ImportError)
avro = pytest.importorskip("confluent_kafka.schema_registry.avro", exc_type=ImportError)
protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf", exc_type=ImportError)
pytest.importorskip("fastavro")
pytest.importorskip("grpc_tools")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
PROTO = """\
syntax = "proto3";
package shop;
message First { message Inner { string text = 1; } int32 number = 1; }
message Second { map<string, int32> counts = 1; message Inner { message Deep { int64 n = 1; } repeated Deep all = 1; } }
"""


@pytest.fixture
def client():
    """Confluent's registry in this process, which keeps what serializers register."""
    return confluent.SchemaRegistryClient.new_client({"url": "mock://"})


def context(name):
    return serialization.SerializationContext(name, serialization.MessageField.VALUE)


def parse(payload, registry, body):
    found = format_of(PayloadOptions(payload, registry=registry.url), [body]).parser().parse(pa.array([body]))
    assert found.error.to_pylist() == [None]
    return found.payload.to_pylist()[0]


def test_avro(client, registry):
    value = {"id": 1 << 40, "price": Decimal("-1.25"), "at": datetime(2026, 1, 31, 12, 0, 0, 7, UTC)}
    body = avro.AvroSerializer(client, json.dumps(ORDER))(value, context("orders"))
    registry.add(schema_id(body), json.loads(client.get_schema(schema_id(body)).schema_str))
    assert parse("avro", registry, body) == value


def test_protobuf_messages_at_each_place_of_a_file(client, registry, tmp_path, monkeypatch):
    (tmp_path / "serializer_orders.proto").write_text(PROTO)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"--python_out={tmp_path}"]
    subprocess.run([*command, "serializer_orders.proto"], check=True)
    monkeypatch.syspath_prepend(tmp_path)
    orders = importlib.import_module("serializer_orders_pb2")
    deep = orders.Second.Inner.Deep(n=-1)
    for message, wanted in (
        (orders.First(number=5), {"number": 5}),
        (orders.First.Inner(text="a"), {"text": "a"}),
        (orders.Second(counts={"a": 1}), {"counts": [("a", 1)]}),
        (orders.Second.Inner(all=[deep]), {"all": [{"n": -1}]}),
        (deep, {"n": -1}),
    ):
        make = protobuf.ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
        body = make(message, context(type(message).__name__))
        registry.add(schema_id(body), PROTO, "PROTOBUF")
        assert parse("protobuf", registry, body) == wanted
