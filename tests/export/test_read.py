"""`amqpd.read`: queues as Arrow record batches, from a directory and over HTTP, for DuckDB, pandas and Polars."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pika
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import amqpd
from amqpd.storage.export import arrow, queue_dataset
from amqpd.storage.export.files import SourceError
from amqpd.storage.export.options import NoSuchQueue, parse
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.export.queue_dataset import QueueDataset, bounds_of


def offsets_of(reader):
    return [offset for batch in reader for offset in batch.column("offset").to_pylist()]


def test_directory_is_read_in_batches_without_settled_messages(written):
    reader = amqpd.read(written.data_dir, "tasks")
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.names == ["value", "vhost", "queue", "offset", "timestamp", "exchange", "routing_key"]
    batches = list(reader)
    assert len(batches) > 1
    table = pa.Table.from_batches(batches)
    assert table["offset"].to_pylist() == list(range(1000, 5000))
    assert table["value"][0].as_py()[:5] == b"01000"
    assert offsets_of(amqpd.read(written.data_dir, "tasks", include_settled=True)) == list(range(5000))


def test_first_batch_is_decoded_before_the_rest_is_read(written, monkeypatch):
    opened = []
    monkeypatch.setattr(arrow.PartReader, "_find_name", lambda self, real=arrow.PartReader._find_name: (
        opened.append(self._part.base), real(self))[1])  # fmt: skip
    reader = amqpd.read(written.data_dir, "tasks")
    assert opened == []
    reader.read_next_batch()
    assert len(opened) == 1


def times_of(written, **limits):
    return amqpd.read(written.data_dir, "tasks", columns=["timestamp"], **limits).read_all()["timestamp"].to_pylist()


def test_columns_start_and_stop_select(written):
    table = amqpd.read(written.data_dir, "tasks", columns=["offset", "headers"], start=4990, stop=4995).read_all()
    assert table.schema.names == ["offset", "headers"]
    assert table["offset"].to_pylist() == list(range(4990, 4995))
    times = times_of(written)
    begin = sorted(set(times))[-2]
    assert times_of(written, start=begin) == [time for time in times if time >= begin]
    assert times_of(written, stop=begin) == [time for time in times if time < begin]
    assert times_of(written, start=datetime.now(UTC) + timedelta(days=99999)) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"columns": ["body"]}, "unknown column 'body'"),
        ({"start": -1}, "start: expected an offset"),
        ({"stop": datetime(2026, 1, 1)}, "has no zone"),  # noqa: DTZ001
        ({"tls_ca_cert_file": "/x.pem"}, "need url"),
    ],
)
def test_wrong_argument_is_a_value_error(written, arguments, words):
    with pytest.raises(ValueError, match=words):
        amqpd.read(written.data_dir, "tasks", **arguments)


def test_missing_queue_directory_or_message_is_an_error(written, tmp_path):
    with pytest.raises(NoSuchQueue, match="no durable queue 'none'"):
        amqpd.read(written.data_dir, "none")
    with pytest.raises(SourceError, match="does not exist"):
        amqpd.read(tmp_path / "none", "tasks")
    with pytest.raises(DataLoss, match="fail_on_data_loss=False continues"):
        amqpd.read(written.data_dir, "tasks", start=9000)
    assert amqpd.read(written.data_dir, "tasks", start=9000, fail_on_data_loss=False).read_all().num_rows == 0


def test_import_of_amqpd_stays_light():
    program = "import sys, amqpd; assert not {'pyarrow', 'amqpd.storage', 'json', 'asyncio'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_running_broker_is_read_by_directory_and_by_url(amqpd_broker, amqpd_vhost):
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.queue_declare("a/b \u00fc", durable=True)
    channel.confirm_delivery()
    for number in range(10):
        properties = pika.BasicProperties(delivery_mode=2, headers={"n": number})
        channel.basic_publish("", "a/b \u00fc", b"%d" % number, properties)
    connection.close()
    url = amqpd_broker.http_url.replace("://", "://guest:guest@")
    found = [
        amqpd.read(source, "a/b \u00fc", vhost=amqpd_vhost.name, columns=["offset", "value", "headers"]).read_all()
        for source in (amqpd_broker.data_dir, url)
    ]
    assert found[0] == found[1]
    assert found[0].to_pylist()[3] == {"offset": 3, "value": b"3", "headers": [("n", "3")]}


def test_duckdb_queries_a_reader(written):
    duckdb = pytest.importorskip("duckdb")
    orders = amqpd.read(written.data_dir, "tasks")
    found = duckdb.sql("SELECT routing_key, count(*) FROM orders GROUP BY 1 ORDER BY 1").fetchall()
    assert (found, orders.schema.names[0]) == ([("eu", 2000), ("us", 2000)], "value")


def test_polars_takes_a_reader(written):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(amqpd.read(written.data_dir, "tasks", columns=["offset", "routing_key"]))
    assert frame.group_by("routing_key").len().sort("routing_key").rows() == [("eu", 2000), ("us", 2000)]


def test_pandas_takes_a_reader(written):
    pytest.importorskip("pandas")
    frame = amqpd.read(written.data_dir, "tasks", columns=["offset", "routing_key"]).read_pandas()
    assert frame.groupby("routing_key").size().to_dict() == {"eu": 2000, "us": 2000}


# -- the dataset


@pytest.fixture
def table(written):
    return QueueDataset(parse({"path": written.data_dir, "queue": "tasks"}))


OFFSET, TIME, KEY = ds.field("offset"), ds.field("timestamp"), ds.field("routing_key")
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("condition", "first", "stop"),
    [
        ((OFFSET >= 5) & (OFFSET < 100), 5, 100),
        ((OFFSET == 7) | (OFFSET == 9), 7, 10),
        (OFFSET.isin([50, 20]), 20, 51),
        ((KEY == "offset") & (OFFSET > 3), 4, None),
        ((OFFSET > 10) | (KEY == "b"), 0, None),
        ((OFFSET > 10) & (OFFSET < 5), 11, 5),  # nothing
        (KEY == "a", 0, None),
        (~(OFFSET < 8), 8, None),
    ],
)
def test_bounds_of_offsets(condition, first, stop):
    found = bounds_of(condition)
    assert (found.first, found.stop) == (first, queue_dataset._HIGHEST if stop is None else stop)


def test_bounds_of_times():
    assert bounds_of(TIME >= WHEN).since_ms == 1767225600000
    assert bounds_of((TIME > WHEN) & (OFFSET < 9)).since_ms == 1767225600000
    assert bounds_of(TIME < WHEN).since_ms is None
    assert bounds_of((TIME > WHEN) | (KEY == "a")).since_ms is None


def test_query_decodes_only_what_it_needs(table, monkeypatch):
    asked = []
    real = queue_dataset.batch_parts

    def parts(options, within):
        found = real(options, within)
        asked.append((options.columns, [(part.first, part.stop) for part in found]))
        return found

    monkeypatch.setattr(queue_dataset, "batch_parts", parts)
    found = table.scanner(columns=["routing_key"], filter=OFFSET >= 4990).to_table()
    assert found.schema.names == ["routing_key"] and found.num_rows == 10
    assert asked[-1] == (("offset", "routing_key"), [(4990, 5000)])
    table.scanner(columns=["value"], filter=(OFFSET >= 1500) & (OFFSET < 1502)).to_table()
    assert asked[-1] == (("offset", "value"), [(1500, 1502)])
    assert table.scanner(columns=["offset"]).to_table().num_rows == 4000
    assert table.scanner(columns=["offset"], filter=OFFSET > 99999).to_table().num_rows == 0
    assert asked[-1][1] == []


@pytest.mark.parametrize("seconds", [-5, 0, 3, 19, 25])
def test_filter_by_time_returns_the_rows_of_a_full_scan(table, seconds):
    whole = table.scanner().to_table()
    first = whole["timestamp"][0].as_py()
    border = first + timedelta(seconds=seconds)
    time = ds.field("timestamp")
    for condition in (time >= border, time < border):
        found = table.scanner(columns=["offset"], filter=condition).to_table()
        assert found["offset"].to_pylist() == whole.filter(condition)["offset"].to_pylist()


def test_second_scan_ends_where_the_first_one_did(written, table):
    assert table.scanner(columns=["offset"]).to_table().num_rows == 4000
    written.append(b"later")
    written.turn()
    assert table.scanner(columns=["offset"]).to_table().num_rows == 4000
