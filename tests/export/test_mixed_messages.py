"""Every value of every column is what a stock client receives: py-amqp, pika and kafka-python read mixed messages.

pika, Celery and this test encode the messages: JSON bodies, tasks, binary bodies, headers of all types, transient and
persistent ones. A fanout exchange brings each to a stream and to queues of other types. Exports run with three time
zones. py-amqp, Celery's client, consumes samples of the stream, pika the first messages of the others, and kafka-python
decodes samples of the stream's files. DuckDB reads the exported rows that pika's messages are compared with.

    TEST_MIXED_MESSAGES=1000000 .venv/bin/python -P -m pytest tests/export/test_mixed_messages.py -s -m on_demand

TEST_MIXED_MESSAGES is the number in each of the four queues. TEST_MIXED_SAMPLE is the number of messages that py-amqp
consumes, and pika from each queue (default 20,000), TEST_CRASH_SEED the seed.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import time
import warnings
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pika
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from amqpd.storage.export.columns import COLUMNS
from amqpd.storage.export.publisher import SinkPublisher, SinkTarget
from amqpd.testing import BrokerProcess

amqp = pytest.importorskip("amqp")
celery = pytest.importorskip("celery")
kafka = pytest.importorskip("kafka")

pytestmark = pytest.mark.external

ZONES = ("UTC", "America/St_Johns", "Asia/Kolkata")
OTHERS = {"classic": {}, "quor\u00fcm": {"x-queue-type": "quorum"}, "urgent": {"x-max-priority": 9}}
"""Queues beside the stream, with their arguments."""
SHAPES = 4000
"""Number of different properties."""
TASKS = 200
CHUNK = 500
"""Messages that py-amqp consumes from one offset on."""
JSON_STOP = 50_000
"""Offsets that are exported to JSON, too."""
EQUAL_ROWS = 100_000
"""Rows of a queue that are compared at once."""
KEYS = ["eu.new", "", "us/old", "gr\u00fcn", "a b=c", "x" * 255]


def short(data: bytes) -> bytes:
    return struct.pack("B", len(data)) + data


def all_types(rng: random.Random) -> bytes:
    """Return a header table with each type of AMQP 0-9-1 and RabbitMQ, as the wire has it."""
    text = rng.choice(["", "plain", "gr\u00fcn \U0001f600", '"quoted"\\ \n']).encode()
    moment = rng.randrange(0, 1 << 32)
    real = struct.unpack(">f", struct.pack(">f", rng.uniform(-1e3, 1e3)))[0]
    inner = short(b"n") + b"I" + struct.pack(">i", rng.randrange(-(1 << 31), 1 << 31)) + short(b"none") + b"V"
    items = b"t\1" + b"S" + struct.pack(">I", len(text)) + text + b"F" + struct.pack(">I", len(inner)) + inner
    fields = {
        b"t": b"t\1", b"f": b"t\0",
        b"b": b"b" + struct.pack(">b", rng.randrange(-128, 128)), b"B": b"B" + bytes([rng.randrange(256)]),
        b"s": b"s" + struct.pack(">h", rng.randrange(-(1 << 15), 1 << 15)),
        b"u": b"u" + struct.pack(">H", rng.randrange(1 << 16)),
        b"I": b"I" + struct.pack(">i", rng.randrange(-(1 << 31), 1 << 31)),
        b"i": b"i" + struct.pack(">I", rng.randrange(1 << 32)),
        b"l": b"l" + struct.pack(">q", rng.randrange(-(1 << 63), 1 << 63)),
        b"real": b"f" + struct.pack(">f", real), b"double": b"d" + struct.pack(">d", rng.uniform(-1e9, 1e9)),
        b"D": b"D" + struct.pack(">Bi", rng.randrange(6), rng.randrange(-(1 << 31), 1 << 31)),
        b"S": b"S" + struct.pack(">I", len(text)) + text,
        b"x": b"x" + struct.pack(">I", 3) + rng.randbytes(3),
        b"T": b"T" + struct.pack(">Q", moment), b"V": b"V",
        b"A": b"A" + struct.pack(">I", len(items)) + items,
        b"F": b"F" + struct.pack(">I", len(inner)) + inner,
    }  # fmt: skip
    names = rng.sample(sorted(fields), rng.randrange(len(fields) + 1))
    table = b"".join(short(name) + fields[name] for name in names)
    return struct.pack(">I", len(table)) + table


def properties_of(rng: random.Random) -> bytes:
    """Return encoded properties: half by pika, half with all types of headers."""
    if rng.random() < 0.5:
        return b"\x30\x00" + all_types(rng) + b"\x02"  # headers, delivery mode
    optional = {
        "content_type": "application/json", "content_encoding": "utf-8", "priority": rng.randrange(10),
        "correlation_id": f"c{rng.randrange(1000)}", "reply_to": "answers", "expiration": "86400000",
        "message_id": f"{rng.getrandbits(128):032x}", "timestamp": rng.randrange(0, 1 << 32), "type": "order",
        "user_id": "guest", "app_id": "gr\u00fcn",
        "headers": {
            "tenant": "t1", "n": rng.randrange(1 << 40), "when": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
            "deep": {"a": [1]}, "price": Decimal("12.5"), "raw": rng.randbytes(5),
        },
    }  # fmt: skip
    names = rng.sample(sorted(optional), rng.randrange(len(optional) + 1))
    chosen = pika.BasicProperties(delivery_mode=rng.choice([None, 1, 2]), **{name: optional[name] for name in names})
    return b"".join(chosen.encode())


def publish(broker, count, rng):
    """Publish tasks of Celery, and then other messages. Return their number."""
    app = celery.Celery("shop", broker=broker.url, set_as_current=False)
    app.conf.task_queues = [celery_queue()]
    for number in range(TASKS):
        app.send_task("shop.charge", (number, "EUR"), {"when": "now"}, queue="mixed", countdown=number % 3 or None)
    app.close()
    shapes = [properties_of(rng) for _ in range(SHAPES)]
    publisher = SinkPublisher(SinkTarget.from_url(broker.url))
    for number in range(count - TASKS):
        kind = number % 3
        if kind == 0:
            body = b'{"n": %d, "text": "gr\xc3\xbcn"}' % number
        elif kind == 1:
            body = number.to_bytes(8, "big") + b"\xff\x00"
        else:
            body = b"" if number % 7 == 0 else b"%d" % number * (number % 40)
        publisher.publish("mixed-in", KEYS[number % len(KEYS)], shapes[number % SHAPES], body)
    publisher.finish()
    publisher.close()


def celery_queue():
    import kombu

    return kombu.Queue("mixed", kombu.Exchange("mixed-in", "fanout", durable=True), no_declare=True)


def export(broker, directory, zone, kind, *arguments, what=("--queue", "mixed")):
    root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    name = f"{kind}-{zone.replace('/', '-')}{what[0]}"
    command = [
        sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(broker.data_dir), "--formatter", "json", "export",
        *what, "--to", str(directory / name), "--format", kind, "--columns", ",".join(COLUMNS), *arguments,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": path, "TZ": zone}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(f"{zone}, {kind}: {done.stdout.strip()}", flush=True)
    return directory / name


def consumed(broker, first, count):
    """Yield (offset, method, properties, body) as py-amqp receives them."""
    address = "{}:{}".format(*broker.ready.listeners["amqp"])
    connection = amqp.Connection(address, userid="guest", password="guest")
    connection.connect()
    try:
        channel = connection.channel()
        channel.basic_qos(0, CHUNK, False)
        found = []
        channel.basic_consume("mixed", callback=found.append, arguments={"x-stream-offset": first})
        while len(found) < count:
            connection.drain_events(timeout=600)
        for message in found[:count]:
            properties = dict(message.properties)
            headers = properties.pop("application_headers")
            offset = headers.pop("x-stream-offset")
            body = message.body if isinstance(message.body, bytes) else message.body.encode()
            yield offset, message.delivery_info, properties, headers, body
    finally:
        connection.close()


def check_other_queues(broker, place, count):
    """Compare the first messages of each queue, in the order in which it delivers them. Return their number."""
    duckdb = pytest.importorskip("duckdb")
    sample = min(count, int(os.environ.get("TEST_MIXED_SAMPLE", "20000")))
    parameters = pika.URLParameters(broker.url)
    parameters.heartbeat = 0
    with duckdb.connect() as database, pika.BlockingConnection(parameters) as connection:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(f"CREATE VIEW rows AS FROM read_parquet('{place}/*.parquet')")
        for queue, arguments in OTHERS.items():
            found = database.execute(
                'SELECT count(DISTINCT "offset"), max("offset") FROM rows WHERE queue = ?', [queue]
            )
            assert found.fetchall() == [(count, count - 1)]
            priority = "coalesce(properties.priority, 0) DESC," if "x-max-priority" in arguments else ""
            query = f'SELECT * FROM rows WHERE queue = ? ORDER BY {priority} "offset" LIMIT {sample}'
            rows = database.sql(query, params=[queue]).to_arrow_table().to_pylist()
            channel = connection.channel()
            channel.basic_qos(prefetch_count=CHUNK)
            for row, (method, properties, body) in zip(rows, channel.consume(queue), strict=False):
                channel.basic_ack(method.delivery_tag)
                check_pika_row(row, method, properties, body)
            channel.close()
    return sample * len(OTHERS)


def check_pika_row(row, method, properties, body):
    assert (row["value"], row["exchange"], row["routing_key"]) == (body, method.exchange, method.routing_key)
    headers = dict(properties.headers or {})
    if headers:
        (exact,), _ = amqp.serialization.loads("F", row["raw_headers"], 0)
        for name in {"real", "double"} & set(headers):  # pika cuts off fractions
            assert headers[name] == int(exact[name])
            headers[name] = exact[name]
    check_headers(row["headers"], headers)
    for name, value in row["properties"].items():
        wanted = getattr(properties, name)
        assert value == (datetime.fromtimestamp(wanted, UTC) if name == "timestamp" and wanted is not None else wanted)
    raw = pika.BasicProperties().decode(row["raw_properties"])
    assert vars(raw) == vars(properties)


def header_text(value):
    """Return the text of a header in the column `headers`, for a value that py-amqp has decoded."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    plain = plain_of(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def plain_of(value):
    if isinstance(value, dict):
        return {name: plain_of(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain_of(each) for each in value]
    if isinstance(value, datetime):
        return int(value.replace(tzinfo=UTC).timestamp())
    return value


def check_headers(found, expected):
    if found is None:
        assert expected == {}
        return
    found = dict(found)
    assert list(found) == list(expected)
    for name, value in expected.items():
        if value is None:
            assert found[name] is None
        elif isinstance(value, Decimal):
            assert Decimal(found[name]) == value
        elif isinstance(value, float):
            assert float(found[name]) == value
        else:
            assert found[name] == header_text(value)


def check_row(row, offset, method, properties, headers, body):
    assert (row["offset"], row["vhost"], row["queue"]) == (offset, "/", "mixed")
    assert (row["exchange"], row["routing_key"]) == (method["exchange"], method["routing_key"])
    assert row["value"] == body
    check_headers(row["headers"], headers)
    expected = dict(properties)
    if "timestamp" in expected:
        expected["timestamp"] = datetime.fromtimestamp(expected["timestamp"], UTC)
    assert {name: value for name, value in row["properties"].items() if value is not None} == expected
    raw = amqp.basic_message.Message()
    raw._load_properties(60, row["raw_properties"], 0)
    whole = dict(raw.properties)
    assert whole.pop("application_headers", {}) == headers and whole == properties
    if row["raw_headers"] is None:
        assert headers == {}
    else:
        table, _ = amqp.serialization.loads("F", row["raw_headers"], 0)
        assert table == [headers]


def check_json(row, whole):
    """Compare a line of JSON with a row."""
    if "value_base64" in row:
        assert b64decode(row["value_base64"]) == whole["value"]
    else:
        assert row["value"].encode() == whole["value"]
    moment = whole["timestamp"]
    assert row["timestamp"] == f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    for name in ("offset", "exchange", "routing_key"):
        assert row[name] == whole[name]
    headers = {name: text for name, text in whole["headers"] or () if text is not None}
    assert {name: text for name, text in row.get("headers", {}).items() if text is not None} == headers
    wanted = {name: value for name, value in whole["properties"].items() if value is not None}
    if "timestamp" in wanted:
        wanted["timestamp"] = f"{wanted['timestamp']:%Y-%m-%dT%H:%M:%S}.000Z"
    assert row["properties"] == wanted


def kafka_batches(directory, share):
    """Yield the records of every `share`th batch of a queue's files, decoded by kafka-python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.record.memory_records import MemoryRecords
    for path in sorted(directory.glob("*.log")):
        records = MemoryRecords(path.read_bytes())
        number = 0
        while records.has_next():
            batch = records.next_batch()
            if number % share == 0:
                yield list(batch)
            number += 1


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(3000, marks=pytest.mark.slow),
        pytest.param(int(os.environ.get("TEST_MIXED_MESSAGES", "2500000")), marks=pytest.mark.on_demand),
    ],
)
def test_every_value_is_that_of_a_stock_client(tmp_path, count):
    seed = int(os.environ.get("TEST_CRASH_SEED", "29"))
    rng = random.Random(seed)
    began = datetime.now(UTC)
    with BrokerProcess(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.exchange_declare("mixed-in", "fanout", durable=True)
        channel.queue_declare("mixed", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind("mixed", "mixed-in")
        for queue, arguments in OTHERS.items():
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, "mixed-in")
        connection.close()
        started = time.monotonic()
        publish(broker, count, rng)
        print(f"seed {seed}: published {count:,} in {time.monotonic() - started:.0f} s", flush=True)
        places = [export(broker, tmp_path, zone, "parquet") for zone in ZONES]
        lines = [export(broker, tmp_path, zone, "json", "--to-offset", str(min(count, JSON_STOP))) for zone in ZONES]
        check_whole(places[0], count, began)
        check_equal(places, "mixed", count)
        sampled = sample_with_amqp(broker, places[0], count, rng)
        wholes = [export(broker, tmp_path, zone, "parquet", what=("--vhost", "/")) for zone in ZONES]
        for queue in ("mixed", *OTHERS):
            check_equal(wholes, queue, count)
        by_pika = check_other_queues(broker, wholes[1], count)
        directory = next(
            path.parent
            for path in Path(broker.data_dir).glob("vhosts/*/queues/*/queue.json")
            if json.loads(path.read_text())["queue"] == "mixed"
        )
        decoded = 0
        for records in kafka_batches(directory, max(1, count // 100_000)):
            table = rows_of(places[0], records[0].offset, len(records))
            times = pc.cast(table["timestamp"], pa.int64()).to_pylist()
            for row, time_us, record in zip(table.to_pylist(), times, records, strict=True):
                assert (row["offset"], row["value"]) == (record.offset, record.value)
                assert (time_us, row["routing_key"].encode()) == (record.timestamp * 1000, record.key or b"")
            decoded += len(records)
    texts = [sorted(line for path in place.glob("*.json") for line in path.read_text().splitlines()) for place in lines]
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) == min(count, JSON_STOP)
    whole = rows_of(places[0], 0, len(texts[0])).to_pylist()
    for line in texts[0]:
        row = json.loads(line)
        check_json(row, whole[row["offset"]])
    counts = f"{sampled:,} by py-amqp, {by_pika:,} by pika, {decoded:,} by kafka-python"
    print(f"{counts}, {len(texts[0]):,} lines of JSON; zones {ZONES}")
    assert decoded >= 1000


def rows_of(place, first, count):
    """Return some rows in the order of their offsets."""
    offset = pc.field("offset")
    return ds.dataset(place).to_table(filter=(offset >= first) & (offset < first + count)).sort_by("offset")


def check_equal(places, queue, count):
    """Compare a queue's rows in several exports, some at a time."""
    offset = pc.field("offset")
    for first in range(0, count, EQUAL_ROWS):
        part = (pc.field("queue") == queue) & (offset >= first) & (offset < first + EQUAL_ROWS)
        tables = [ds.dataset(place).to_table(filter=part).sort_by("offset") for place in places]
        assert tables[0].num_rows == min(EQUAL_ROWS, count - first)
        assert all(each.equals(tables[0]) for each in tables)


def check_whole(place, count, began):
    assert ds.dataset(place).schema.names == list(COLUMNS)
    table = ds.dataset(place).to_table(columns=["offset", "timestamp"]).sort_by("offset")
    assert table["offset"].combine_chunks().equals(pa.array(range(count), pa.int64()))
    bounds = pc.min_max(table["timestamp"]).as_py()
    assert began.replace(microsecond=0) <= bounds["min"] <= bounds["max"] <= datetime.now(UTC)


def sample_with_amqp(broker, place, count, rng):
    sample = int(os.environ.get("TEST_MIXED_SAMPLE", "20000"))
    firsts = [0, max(0, count - CHUNK)]
    while (len(firsts) + 1) * CHUNK <= min(sample, count):
        firsts.append(rng.randrange(count - CHUNK))
    for first in firsts:
        rows = rows_of(place, first, CHUNK).to_pylist()
        for row, received in zip(rows, consumed(broker, first, CHUNK), strict=True):
            check_row(row, *received)
    return len(firsts) * CHUNK
