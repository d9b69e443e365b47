"""Records held in queues for exports: segments are kept until the commit, removed over the limit, and survive kills."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pika
import pytest

from amqpd.protocol import properties as p
from amqpd.storage.acks import retained
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.files import BrokerSource, DirectorySource
from amqpd.storage.export.job import CommitFailed, ExportJob, ExportOptions, commit
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.export.publisher import SinkPublisher, SinkTarget
from amqpd.testing import BrokerFailed, BrokerProcess


@pytest.fixture
def held_log(make_lake):
    """A log of 200 records of 100 bytes in segments of about 4 KB, held for `nightly`, all acked."""
    lake = make_lake(4096)
    lake.storage.export_hold(lake.store).declare("nightly", None)
    for number in range(200):
        lake.append(b"%04d" % number + b"." * 96)
        lake.turn()
    lake.store.ack_range(0, 199)
    lake.settled()
    return lake


def sealed_segments(lake):
    """Return the base offsets of the remaining sealed segments."""
    return [int(name[:20]) for name in lake.names(".log")][:-1]


def test_acked_segments_are_removed_without_a_hold(make_lake):
    lake = make_lake(4096)
    for number in range(200):
        lake.append(b"%04d" % number + b"." * 96)
        lake.turn()
    lake.store.ack_range(0, 199)
    lake.settled()
    assert sealed_segments(lake) == []


def test_acked_segments_are_kept_until_the_export_commits(held_log):
    bases = sealed_segments(held_log)
    assert len(bases) > 5
    assert held_log.offsets(includeSettled="true") == list(range(200))
    assert held_log.offsets() == []
    assert held_log.store.record_count == 0
    hold = held_log.storage.export_hold(held_log.store)
    assert hold.kept_bytes > 4096 * 5
    middle = bases[3]
    hold.commit("nightly", middle + 1)
    held_log.storage.on_export_hold_changed(held_log.store)
    held_log.settled()
    assert sealed_segments(held_log) == bases[3:]
    hold.commit("nightly", 200)
    held_log.storage.on_export_hold_changed(held_log.store)
    held_log.settled()
    assert sealed_segments(held_log) == []


def test_hold_survives_a_kill(held_log):
    held_log.storage.export_hold(held_log.store).commit("nightly", 50)
    held_log.storage.on_export_hold_changed(held_log.store)
    held_log.settled()
    bases = sealed_segments(held_log)
    held_log.again()  # the hold is read from its file, not from a declaration
    held_log.settled()
    assert sealed_segments(held_log) == bases
    hold = held_log.storage.export_hold(held_log.store)
    assert hold.exported == {"nightly": 50}
    assert hold.clear("nightly")
    held_log.storage.on_export_hold_changed(held_log.store)
    held_log.settled()
    assert sealed_segments(held_log) == []
    assert not hold.clear("nightly")
    assert held_log.names(".offset") == []


@pytest.mark.parametrize("call", ["unlink", "fsync_dir"])
def test_removal_of_an_exporter_that_failed_can_be_repeated(held_log, call):
    """The exporter stays until its file is removed: otherwise the file would hold segments after a restart."""
    held_log.settled()
    hold = held_log.storage.export_hold(held_log.store)
    held_log.filesystem.fault = lambda name, path: OSError(errno.EIO, "Input/output error") if name == call else None
    with pytest.raises(OSError, match="Input/output"):
        hold.clear("nightly")
    assert hold.exported == {"nightly": 0}
    held_log.filesystem.fault = None
    held_log.filesystem.calls.clear()
    assert hold.clear("nightly")
    assert held_log.filesystem.calls[-1][0] == "fsync_dir"
    assert held_log.names(".offset") == []


def test_segments_are_kept_for_the_slowest_exporter(held_log):
    hold = held_log.storage.export_hold(held_log.store)
    hold.add("other")
    hold.commit("nightly", 200)
    held_log.storage.on_export_hold_changed(held_log.store)
    held_log.settled()
    assert sealed_segments(held_log)[0] == 0
    assert hold.commit("other", 100)
    assert not hold.commit("unknown", 100)
    held_log.storage.on_export_hold_changed(held_log.store)
    held_log.settled()
    assert sealed_segments(held_log)[0] > 50


def test_segments_over_the_limit_are_removed_and_logged(held_log, caplog):
    bases = sealed_segments(held_log)
    hold = held_log.storage.export_hold(held_log.store)
    with caplog.at_level(logging.ERROR):
        hold.add("nightly", 10_000)
        held_log.storage.on_export_hold_changed(held_log.store)
        held_log.settled()
    left = sealed_segments(held_log)
    assert left == bases[-len(left) :]
    assert 1 <= len(left) < len(bases)
    assert "offsets 0 to" in caplog.text
    assert "are removed before their export" in caplog.text
    assert held_log.storage.export_losses.records == left[0]
    assert hold.kept_bytes <= 10_000
    with pytest.raises(DataLoss, match="offsets 0 to"):
        held_log.offsets(includeSettled="true", startingOffsets="0")
    held_log.again()
    held_log.settled()
    assert sealed_segments(held_log) == left  # the file has the limit


def test_damaged_offset_file_keeps_everything(held_log, caplog):
    held_log.storage.export_hold(held_log.store).commit("nightly", 150)
    path = f"{held_log.place}/export-nightly.offset"
    held_log.filesystem.replace_file(path, b"1 150 17179869184 0\n", sync=False)
    bases = sealed_segments(held_log)
    held_log.again()
    held_log.settled()
    assert held_log.storage.export_hold(held_log.store).exported == {"nightly": 0}
    assert sealed_segments(held_log) == bases
    assert "export-nightly.offset is damaged" in caplog.text


def test_job_without_a_broker_writes_the_offset_file(tmp_path):
    retained.write_offset(tmp_path, "nightly", 5)  # no hold, so nothing to write
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "export-nightly.offset"
    path.write_bytes(retained._encode(0, 77))
    retained.write_offset(tmp_path, "nightly", 5)
    retained.write_offset(tmp_path, "nightly", 3)
    assert retained._decode(path.read_bytes(), path.name) == (5, 77)


def test_job_of_root_leaves_the_offset_file_to_the_broker_s_user(tmp_path, monkeypatch):
    """The broker could not open the queue any more if the file belonged to root."""
    owners = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: owners.append((str(path), uid, gid)))
    path = tmp_path / "export-nightly.offset"
    path.write_bytes(retained._encode(0, 77))
    retained.write_offset(tmp_path, "nightly", 5)
    folder = tmp_path.stat()
    assert owners == [(str(path), folder.st_uid, folder.st_gid)]


# -- with a broker


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data", settings={"storage.segment_size_bytes": 1 << 20}) as broker:
        yield broker


def declare(broker, arguments, queue="orders", durable=True):
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        connection.channel().queue_declare(queue, durable=durable, arguments=arguments)
    finally:
        connection.close()


def publish(broker, count):
    publisher = SinkPublisher(SinkTarget.from_url(broker.url))
    persistent = p.encode_properties(p.Properties(delivery_mode=2))
    for number in range(count):
        publisher.publish("", "orders", persistent, b"%06d" % number + b"." * 2000)
    publisher.finish()
    publisher.close()


def consume(broker, count):
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=200)
    for number, (method, _, _) in enumerate(channel.consume("orders", inactivity_timeout=600), 1):
        assert method is not None
        if number % 100 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if number == count:
            break
    connection.close()


def queue_directory(broker):
    (place,) = Path(broker.data_dir).glob("vhosts/*/queues/*")
    return place


def eventually(condition):
    import time

    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_queue_emptied_by_consumers_is_exported_completely(broker, tmp_path):
    declare(broker, {"x-export": "nightly"})
    publish(broker, 3000)
    consume(broker, 3000)
    place = queue_directory(broker)
    assert len(list(place.glob("*.log"))) >= 6

    def export(name):
        source, to, check = {"path": str(broker.data_dir)}, str(tmp_path / name), str(tmp_path / f"{name}.check")
        wanted = ExportOptions(source, "/", "orders", to, check, name=name)
        return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()

    assert export("another").rows < 3000  # acked records are not kept for this export
    assert export("nightly").rows == 3000
    eventually(lambda: len(list(place.glob("*.log"))) <= 1)
    assert broker.api("GET", "/api/amqpd/exports/%2F/orders")["exports"] == [{"name": "nightly", "offset": 3000}]
    broker.kill()
    broker.start()
    publish(broker, 10)
    assert export("nightly").rows == 10
    assert broker.api("GET", "/api/amqpd/exports/%2F/orders")["exports"] == [{"name": "nightly", "offset": 3010}]


@pytest.mark.slow
def test_amqpctl_sets_and_clears_an_export(broker):
    declare(broker, None)
    assert broker.ctl("set_export", "orders", "lake", "--max-bytes", "5000").returncode == 0
    publish(broker, 1)
    found = broker.api("GET", "/api/amqpd/exports/%2F/orders")
    assert (found["exports"], found["max_bytes"]) == ([{"name": "lake", "offset": 0}], 5000)
    source, (queue,) = DirectorySource(str(broker.data_dir)), DirectorySource(str(broker.data_dir)).queues("/")
    commit(source, queue, "lake", 1)
    assert broker.api("GET", "/api/amqpd/exports/%2F/orders")["exports"] == [{"name": "lake", "offset": 1}]
    commit(BrokerSource.from_url(broker.http_url.replace("://", "://guest:guest@")), queue, "lake", 1)
    with pytest.raises(CommitFailed, match="404"):
        commit(source, queue, "unknown", 1)
    broker.stop()
    commit(source, queue, "lake", 7)
    broker.start()
    assert broker.api("GET", "/api/amqpd/exports/%2F/orders")["exports"] == [{"name": "lake", "offset": 7}]
    assert broker.ctl("clear_export", "orders", "lake").returncode == 0
    assert broker.ctl("clear_export", "orders", "lake").returncode == 69
    assert broker.ctl("set_export", "orders", "no/name").returncode == 69
    assert broker.ctl("set_export", "nothing", "lake").returncode == 69


def test_invalid_export_arguments_are_refused(broker):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-export"):
        declare(broker, {"x-export": "a/b"})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="max_bytes_but_no_export_defined"):
        declare(broker, {"x-export-max-bytes": 5})
    declare(broker, {"x-export": "nightly", "x-export-max-bytes": 1 << 20})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg 'x-export'"):
        declare(broker, {"x-export": "other", "x-export-max-bytes": 1 << 20})
    with pytest.raises(BrokerFailed, match="declared with x-export"):
        broker.api("DELETE", "/api/amqpd/exports/%2F/orders/nightly")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="not durable"):
        declare(broker, {"x-export": "nightly"}, "transient", durable=False)
