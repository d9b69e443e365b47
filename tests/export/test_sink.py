"""`df.write.format("amqp")` into a real broker: batches, streams, and the repeats of a retry."""

from __future__ import annotations

from datetime import UTC, datetime

import pika
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import StructType

from amqpd.protocol import properties as p
from amqpd.storage.export.message_rows import BadRow, MessageRows
from amqpd.storage.export.options import BadOption
from amqpd.storage.spark import sink

pytestmark = pytest.mark.external


@pytest.fixture
def channel(amqpd_vhost):
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_bind("q", "x", "#")
    yield channel
    connection.close()


def bodies(channel, count):
    """Return at most `count` messages of the queue, and the number of remaining messages."""
    found = []
    for _ in range(min(count, channel.queue_declare("q", passive=True).method.message_count)):
        method, properties, body = channel.basic_get("q", auto_ack=True)
        found.append((method.exchange, method.routing_key, properties, body))
    return found, channel.queue_declare("q", passive=True).method.message_count


@pytest.mark.parametrize("delivery", ["confirms", "transaction"])
def test_rows_become_messages_with_properties_and_headers(spark, amqpd_vhost, channel, delivery):
    rows = spark.range(0, 5000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", "'x' AS exchange", "concat('key.', id % 3) AS routing_key",
        "CAST(id AS STRING) AS message_id",
        "named_struct('content_type', 'text/plain', 'priority', 3, 'timestamp', timestamp_seconds(id)) AS properties",
        "map('number', id, 'twice', id * 2) AS headers",
    )  # fmt: skip
    writer = rows.write.format("amqp").option("url", amqpd_vhost.url).option("delivery", delivery)
    writer.option("window", 100).mode("append").save()
    found, left = bodies(channel, 5000)
    assert left == 0
    assert sorted(int(body) for *_, body in found) == list(range(5000))
    for exchange, key, properties, body in found[::100]:
        number = int(body)
        assert (exchange, key) == ("x", f"key.{number % 3}")
        assert properties.message_id == str(number)
        assert (properties.content_type, properties.priority, properties.delivery_mode) == ("text/plain", 3, 2)
        assert properties.timestamp == number
        assert properties.headers == {"number": number, "twice": number * 2}


@pytest.mark.parametrize("delivery", ["confirms", "transaction"])
def test_retry_repeats_messages_with_confirms_but_not_in_a_transaction(amqpd_vhost, channel, delivery):
    """A task fails in its middle and runs again. messageId=row gives both copies of a message the same id."""
    batches = [
        pa.RecordBatch.from_pylist([{"value": b"%d" % n, "routing_key": "q"} for n in range(start, start + 100)])
        for start in range(0, 1000, 100)
    ]

    def fails():
        yield from batches[:5]
        raise RuntimeError("on purpose")

    options = {"url": amqpd_vhost.url, "delivery": delivery, "messageId": "row", "window": "50"}
    writer = sink.batch_writer(options, StructType.fromDDL("value binary, routing_key string"), overwrite=False)
    with pytest.raises(RuntimeError, match="on purpose"):
        writer.write(fails())
    assert writer.write(iter(batches)).count == 1000
    found, left = bodies(channel, 1500)
    assert left == 0
    assert {int(body) for *_, body in found} == set(range(1000))
    if delivery == "transaction":
        assert len(found) == 1000
    else:
        assert len(found) > 1400
    ids = {(properties.message_id, body) for _, _, properties, body in found}
    assert len(ids) == len({message_id for message_id, _ in ids}) == 1000


def test_unroutable_row_fails_the_write(spark, amqpd_vhost, channel):
    rows = spark.range(1).selectExpr("'a' AS value")
    with pytest.raises(Exception, match="no queue gets the message to exchange '' with routing key 'nobody'"):
        rows.write.format("amqp").options(url=amqpd_vhost.url, routingKey="nobody").mode("append").save()


def test_stream_is_written_once(spark, amqpd_vhost, channel, tmp_path):
    source = tmp_path / "in"
    spark.range(300).selectExpr("CAST(id AS STRING) AS value").write.json(str(source))
    rows = spark.readStream.schema("value string").json(str(source))
    writer = rows.writeStream.format("amqp").option("url", amqpd_vhost.url).option("routingKey", "q")
    writer = writer.option("messageId", "content").option("checkpointLocation", str(tmp_path / "check"))
    for _ in range(2):  # the second run has no new rows
        writer.trigger(availableNow=True).start().awaitTermination()
    found, left = bodies(channel, 300)
    assert (left, sorted(int(body) for *_, body in found)) == (0, list(range(300)))
    assert all(len(properties.message_id) == 64 for _, _, properties, _ in found)


URL = {"url": "amqp://127.0.0.1"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "url is missing"),
        ({"url": "http://h"}, "expected amqp://"),
        ({**URL, "exchang": "x"}, "unknown option 'exchang'"),
        ({**URL, "delivery": "maybe"}, "confirms or transaction"),
        ({**URL, "window": "0"}, "window: expected a number above 0"),
        ({**URL, "window": "nan"}, "window: expected a number above 0"),
        ({**URL, "timeout": "nan"}, "timeout: expected a number above 0"),
        ({**URL, "messageId": "uuid"}, "keep or row or content"),
    ],
)
def test_invalid_options_are_refused(options, text):
    with pytest.raises(BadOption, match=text):
        sink.parse(options)


@pytest.mark.parametrize(
    ("ddl", "text"),
    [
        ("routing_key string", "column 'value' is missing"),
        ("value int", "column 'value' cannot be int"),
        ("value binary, key string", "unknown column 'key'"),
        ("value binary, properties struct<mesage_id:string>", "unknown property mesage_id"),
        ("value binary, headers string", "column 'headers' cannot be string"),
    ],
)
def test_invalid_schema_is_refused(ddl, text):
    with pytest.raises(BadOption, match=text):
        sink.check_schema(StructType.fromDDL(ddl))


def test_unsupported_write_modes_are_refused():
    schema = StructType.fromDDL("value binary")
    with pytest.raises(BadOption, match="cannot be overwritten"):
        sink.batch_writer(URL, schema, overwrite=True)
    with pytest.raises(BadOption, match="messageId=row"):
        sink.stream_writer({**URL, "messageId": "row"}, schema, overwrite=False)


def message_of_row(row, **options):
    messages = MessageRows(sink.parse({**URL, **options}), "task")
    ((exchange, key, properties, body),) = messages.of(pa.RecordBatch.from_pylist([row]))
    return exchange, key, p.decode_properties(properties), body


def test_raw_properties_are_sent_unchanged():
    raw = p.encode_properties(p.Properties(headers={"n": 2**40, "b": b"\xff"}, delivery_mode=2, app_id="a"))
    batch = pa.RecordBatch.from_pylist([{"value": b"", "raw_properties": raw}])
    (message,) = MessageRows(sink.parse(URL), "t").of(batch)
    assert message[2] == raw
    _, _, found, _ = message_of_row({"value": b"", "raw_properties": raw}, messageId="row")
    assert found == p.decode_properties(raw)._replace(message_id="task:0")


def test_message_id_is_kept_or_computed_from_the_content():
    row = {"value": b"v", "routing_key": "k"}
    assert message_of_row(row)[2].message_id is None
    assert message_of_row({**row, "message_id": "m"}, messageId="content")[2].message_id == "m"
    content = message_of_row(row, messageId="content")[2].message_id
    assert message_of_row(row, messageId="content")[2].message_id == content
    assert message_of_row({**row, "value": b"w"}, messageId="content")[2].message_id != content
    assert message_of_row({**row, "properties": {"app_id": "a"}}, messageId="content")[2].message_id != content


def test_defaults_for_missing_columns():
    assert message_of_row({"value": "ä"}) == ("", "", p.Properties(delivery_mode=2), "ä".encode())
    assert message_of_row({"value": b""}, persistent="false")[2] == p.Properties()
    when = datetime(2026, 1, 1, tzinfo=UTC)
    found = message_of_row({"value": b"", "properties": {"timestamp": when, "delivery_mode": 1}})[2]
    assert found == p.Properties(delivery_mode=1, timestamp=1767225600)
    assert message_of_row({"value": b"", "exchange": "a"}, exchange="b", routingKey="c")[:2] == ("b", "c")
    with pytest.raises(BadRow, match="null"):
        message_of_row({"value": None})
    with pytest.raises(BadRow, match="row 0"):
        message_of_row({"value": b"", "message_id": "x" * 300})
