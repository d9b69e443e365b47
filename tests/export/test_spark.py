"""format("amqp") in a real Spark on local[2]: batches, streams and their checkpoints."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from foreign_batches import check_batches

from amqpd.storage.log.record import RecordRoute
from amqpd.storage.retention_policy import RetentionPolicy

pytestmark = pytest.mark.external


def load(spark: Any, lake: Any, **options: str) -> Any:
    return spark.read.format("amqp").options(path=lake.data_dir, queue="tasks", **options).load()


def offsets_in(frame: Any) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def test_batch_has_the_unacked_records(spark: Any, written: Any) -> None:
    frame = load(spark, written, splitBytes="200000")
    assert frame.columns == ["value", "vhost", "queue", "offset", "timestamp", "exchange", "routing_key"]
    assert frame.rdd.getNumPartitions() >= 3
    rows = sorted(frame.collect(), key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == list(range(1000, 5000))
    for row in rows[::97]:
        assert bytes(row["value"]).startswith(b"%05d." % row["offset"])
        assert (row["vhost"], row["queue"], row["exchange"]) == ("/", "tasks", "orders")
        assert row["routing_key"] == ("eu" if row["offset"] % 2 else "us")
    counts = {row["routing_key"]: row["count"] for row in frame.groupBy("routing_key").count().collect()}
    assert counts == {"eu": 2000, "us": 2000}
    assert frame.where("routing_key = 'eu'").count() == 2000
    assert frame.count() == 4000  # the filters before left no trace


def test_columns_are_chosen_by_option_or_schema(spark: Any, written: Any) -> None:
    assert load(spark, written, columns="offset,routing_key").columns == ["offset", "routing_key"]
    reader = spark.read.format("amqp").options(path=written.data_dir, queue="tasks")
    chosen = reader.schema("offset long, value binary").load()
    assert chosen.where("offset < 1003").select("offset").count() == 3
    with pytest.raises(Exception, match="column 'offset' is bigint, not string"):
        reader.schema("offset string").load().collect()
    with pytest.raises(Exception, match="unknown column 'body'"):
        reader.schema("body binary").load().collect()


def test_properties_and_headers_have_types(spark: Any, written: Any) -> None:
    from amqpd.protocol.properties import Properties, encode_properties

    raw = encode_properties(
        Properties(content_type="text/plain", headers={"a": "b", "n": 5}, delivery_mode=2, timestamp=1_700_000_000)
    )
    written.append(b"last", properties=raw)
    written.turn()
    frame = load(spark, written, includeProperties="true", includeHeaders="true", startingOffsets="4999")
    first, last = sorted(frame.collect(), key=lambda row: row["offset"])
    assert last["headers"] == {"a": "b", "n": "5"}
    assert last["properties"]["content_type"] == "text/plain"
    assert last["properties"]["timestamp"].timestamp() == 1_700_000_000
    assert bytes(last["raw_properties"]) == raw
    assert first["headers"] is None and first["properties"]["delivery_mode"] == 2
    assert frame.where("headers['n'] = '5'").count() == 1


def test_batches_of_kafka_clients_and_compressed_batches_are_read(spark: Any, written: Any, kafka_batch: Any) -> None:
    """Each codec with a timestamp per record, then batches of a stream with x-compression."""
    for codec in range(5):
        records = [(1_600_000_000_000 + number, b"%d." % number * 40) for number in range(100)]
        headers = [("exchange", b"theirs"), ("properties", b"\x00\x00")]
        written.store.appender.append_checked(check_batches(kafka_batch(codec, records, headers)))
    written.storage.set_policy(written.store, RetentionPolicy(codec=4))
    written.append(*(b"ours %d." % number * 40 for number in range(100)))
    written.turn()
    rows = sorted(load(spark, written, startingOffsets="5000").collect(), key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == list(range(5000, 5600))
    for row in rows[:500]:
        number = (row["offset"] - 5000) % 100
        assert bytes(row["value"]) == b"%d." % number * 40
        assert round(row["timestamp"].timestamp() * 1000) == 1_600_000_000_000 + number
    assert bytes(rows[-1]["value"]) == b"ours 99." * 40


def test_sql_view_can_be_queried(spark: Any, written: Any) -> None:
    spark.sql(f"CREATE OR REPLACE TEMP VIEW tasks USING amqp OPTIONS (path '{written.data_dir}', queue 'tasks')")
    (row,) = spark.sql("SELECT count(*) AS n, min(offset) AS low FROM tasks").collect()
    assert (row["n"], row["low"]) == (4000, 1000)


def test_empty_range_is_an_empty_frame(spark: Any, written: Any) -> None:
    assert load(spark, written, startingOffsets="latest").collect() == []
    assert load(spark, written, endingOffsets="500").count() == 0


def test_new_frame_has_new_records(spark: Any, written: Any) -> None:
    frame = load(spark, written)
    assert frame.count() == 4000
    written.append(b"more")
    written.turn()
    assert load(spark, written).count() == 4001


def test_errors_have_clear_messages(spark: Any, written: Any) -> None:
    with pytest.raises(Exception, match="no durable queue 'none'"):
        spark.read.format("amqp").options(path=written.data_dir, queue="none").load().count()
    with pytest.raises(Exception, match="unknown option 'startingofset'"):
        load(spark, written, startingOfset="5")
    with pytest.raises(Exception, match="offsets 5000 to 8999 are missing: the log ends before them"):
        load(spark, written, endingOffsets="9000").count()
    assert load(spark, written, endingOffsets="9000", failOnDataLoss="false").count() == 4000


def test_wrong_checksum_fails_the_query(spark: Any, written: Any) -> None:
    name = written.names(".log")[-1]
    path = Path(written.place) / name
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=f"{name}: offsets .* the checksum is wrong"):
        load(spark, written).count()
    lost = 4000 - load(spark, written, failOnDataLoss="false").count()
    assert 0 < lost <= 64


class Stream:
    """A stream into Parquet with a checkpoint. Each `run` is one run of a program."""

    def __init__(self, spark: Any, lake: Any, tmp_path: Path) -> None:
        self.spark, self.lake = spark, lake
        self.out, self.checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def frame(self, **options: str) -> Any:
        chosen = {"startingOffsets": "earliest", **options}
        return self.spark.readStream.format("amqp").options(path=self.lake.data_dir, queue="tasks", **chosen).load()

    def run(self, **options: str) -> Any:
        writer = self.frame(**options).writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start(self.out)
        assert query.awaitTermination(120)
        return query

    def offsets(self) -> list[int]:
        return offsets_in(self.spark.read.parquet(self.out))


def test_stream_with_limited_triggers_resumes_from_the_checkpoint(spark: Any, written: Any, tmp_path: Path) -> None:
    stream = Stream(spark, written, tmp_path)
    query = stream.run(maxOffsetsPerTrigger="1500")
    # The limit counts offsets: the first 1000 are acked.
    rows = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert rows == [500, 1500, 1500, 500]
    assert stream.offsets() == list(range(1000, 5000))
    end = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    assert end == {"//tasks": {"id": written.queue_id, "offset": 5000}}
    written.append(*(b"%d" % number for number in range(100)), route=RecordRoute(b"", b"later"))
    written.turn()
    stream.run(maxOffsetsPerTrigger="1500")
    assert stream.offsets() == list(range(1000, 5100))
    assert not [each for each in stream.run().recentProgress if each["numInputRows"]]


def test_stream_whose_records_were_removed_fails_clearly(spark: Any, written: Any, tmp_path: Path) -> None:
    stream = Stream(spark, written, tmp_path)
    stream.run(startingOffsets="1200", maxOffsetsPerTrigger="100000")
    written.append(*(b"." * 1000 for _ in range(1500)))
    written.turn()
    written.store.ack_range(1000, 6200)
    written.settled()
    written.settled()
    assert written.snapshot().start > 5000
    with pytest.raises(Exception, match="offsets 5000 to .* are missing: their segments have been removed"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.offsets() == [*range(1200, 5000), *range(6201, 6500)]


def test_processing_time_trigger_follows_the_queue(spark: Any, written: Any, tmp_path: Path) -> None:
    stream = Stream(spark, written, tmp_path)
    counts = stream.frame(columns="offset,routing_key").groupBy("routing_key").count()
    query = (
        counts.writeStream.format("memory")
        .queryName("live")
        .outputMode("complete")
        .option("checkpointLocation", stream.checkpoint)
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        assert {row["routing_key"]: row["count"] for row in spark.table("live").collect()} == {"eu": 2000, "us": 2000}
        written.append(b"x", route=RecordRoute(b"", b"new"))
        written.turn()
        until = time.monotonic() + 600
        while time.monotonic() < until and spark.table("live").where("routing_key = 'new'").count() == 0:
            time.sleep(0.1)
        assert {row["routing_key"]: row["count"] for row in spark.table("live").collect()}["new"] == 1
        assert query.exception() is None
    finally:
        query.stop()


def test_parquet_written_by_tasks_equals_the_frame(
    spark: Any, written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amqpd.storage.export import engine
    from amqpd.storage.export.columns import BASE
    from amqpd.storage.export.engine import ExportRows
    from amqpd.storage.export.file_writer import FileLayout
    from amqpd.storage.spark.engine import SparkEngine

    read = {"path": written.data_dir, "queue": "tasks", "includeHeaders": "true"}
    monkeypatch.setattr(engine, "TASK_BYTES_MIN", 1000)
    monkeypatch.setattr(engine, "PART_BYTES", 200_000)
    rows = ExportRows((read,), (*BASE, "headers", "raw_headers"))
    files = SparkEngine(tmp_path / "log", session=spark).write_files(rows, FileLayout(str(tmp_path / "out")))
    assert len(files.paths) == 2 and files.rows == 4000
    written_frame = spark.read.parquet(str(tmp_path / "out"))
    expected_frame = load(spark, written, includeHeaders="true")
    assert written_frame.schema.simpleString() == expected_frame.schema.simpleString()
    columns = [name for name in written_frame.columns if name != "headers"]  # Spark cannot compare maps
    assert (
        written_frame.select(columns).exceptAll(expected_frame.select(columns)).count() == 0
        and written_frame.count() == expected_frame.count()
    )


def test_frame_over_the_network_has_the_same_rows(spark: Any, tmp_path: Path) -> None:
    import pika

    from amqpd.testing import BrokerProcess

    with BrokerProcess(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        for number in range(500):
            channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        connection.close()
        url = f"http://guest:guest@127.0.0.1:{broker.http_port}"
        frame = spark.read.format("amqp").options(url=url, queue="orders", minPartitions="2").load()
        assert sorted(int(bytes(row["value"])) for row in frame.collect()) == list(range(500))
        wrong = spark.read.format("amqp").options(url=url, queue="orders", user="guest", password="no").load()
        with pytest.raises(Exception, match="user 'guest' is not allowed: 401"):
            wrong.count()
