"""Storage of a whole broker: background upkeep, reported damage, and a start that strict recovery refuses."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from amqpd.testing import BrokerFailed, BrokerProcess

BODY = b"." * 3000


def connect(broker: BrokerProcess) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))


def wait_until(condition: Callable[[], object], message: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.02)


def publish(broker: BrokerProcess, queue: str, count: int) -> None:
    """Publish `count` messages, each in its own batch and confirmed."""
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(count):
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", queue, b"%d" % number + BODY, properties, mandatory=True)
    connection.close()


def logs(data_dir: Path) -> list[str]:
    try:
        return sorted(path.name for path in data_dir.glob("vhosts/*/queues/*/*.log"))
    except FileNotFoundError:  # a directory was removed meanwhile
        return logs(data_dir)


@pytest.mark.slow
def test_upkeep_removes_drained_segments_and_rolls_old_ones(tmp_path: Path) -> None:
    """Upkeep runs in the background, without any client command."""
    settings = {"storage.upkeep_interval_s": 0.2, "storage.segment_age_s": 2}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        publish(broker, "drained", 30)
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_purge("drained")
        wait_until(lambda: logs(broker.data_dir) == [f"{30:020d}.log"], "the drained segment stays")
        channel.queue_delete("drained")
        publish(broker, "old", 1)
        wait_until(lambda: f"{1:020d}.log" in logs(broker.data_dir), "the old segment is not rolled")
        assert f"{0:020d}.log" in logs(broker.data_dir), "its message is not acked"
        method, _, body = channel.basic_get("old", auto_ack=True)
        assert (method.redelivered, body) == (False, b"0" + BODY)
        wait_until(lambda: f"{0:020d}.log" not in logs(broker.data_dir), "the old, acked segment stays")
        connection.close()
        assert "Traceback" not in broker.stderr


def damaged_broker(data_dir: Path) -> BrokerProcess:
    """A killed broker with one bit flipped in the fifth of the nine messages of queue `hit`; not started again."""
    broker = BrokerProcess(data_dir)
    with broker:
        publish(broker, "hit", 9)
        publish(broker, "whole", 1)
        broker.kill()
    for log in data_dir.glob("vhosts/*/queues/*/*.log"):
        content = bytearray(log.read_bytes())
        if len(content) > 9 * len(BODY):
            content[len(content) // 9 * 4 + 500] ^= 1
            log.write_bytes(content)
    return broker


@pytest.mark.slow
def test_lost_offsets_are_listed_by_ctl_and_api(tmp_path: Path) -> None:
    with damaged_broker(tmp_path / "data") as broker:
        listed = broker.ctl("-q", "list_queues", "name", "messages", "degraded", "lost_offsets", "--no-table-headers")
        assert listed.returncode == 0, listed.stderr
        rows = sorted(line.split("\t") for line in listed.stdout.splitlines())
        assert rows == [["hit", "8", "true", "[[4, 4]]"], ["whole", "1", "false", "[]"]]
        hit: Any = broker.api("GET", "/api/queues/%2F/hit")
        assert (hit["degraded"], hit["lost_offsets"], hit["state"]) == (True, [[4, 4]], "running")
        connection = connect(broker)
        channel = connection.channel()
        bodies = [channel.basic_get("hit", auto_ack=True)[2] for _ in range(8)]
        assert bodies == [b"%d" % number + BODY for number in range(9) if number != 4]
        assert channel.basic_get("hit")[0] is None
        connection.close()
    with broker:
        after_restart: Any = broker.api("GET", "/api/queues/%2F/hit?columns=degraded,lost_offsets")
        assert after_restart == {"degraded": True, "lost_offsets": [[4, 4]]}, "also known after the next start"


@pytest.mark.slow
def test_strict_recovery_refuses_to_start(tmp_path: Path) -> None:
    broker = damaged_broker(tmp_path / "data")
    before = {path: path.read_bytes() for path in broker.data_dir.glob("vhosts/*/queues/*/*.log")}
    broker.settings["storage.recovery"] = "strict"
    with pytest.raises(BrokerFailed, match="exit code 69") as failed:
        broker.start()
    text = str(failed.value)
    assert "the log of queue 'hit' is damaged: offsets 4 to 4 are lost" in text
    assert "storage.recovery=salvage" in text and "verify_log" in text
    assert "Traceback" not in text
    assert before == {path: path.read_bytes() for path in before}, "a log was changed"
    broker.settings["storage.recovery"] = "salvage"
    with broker:
        assert broker.api("GET", "/api/queues/%2F/hit?columns=messages") == {"messages": 8}
    broker.settings["storage.recovery"] = "strict"
    with pytest.raises(BrokerFailed, match="exit code 69"):
        broker.start()


@pytest.mark.slow
def test_verify_and_dump_log_of_a_running_broker(tmp_path: Path) -> None:
    """While messages are written the tools report no damage, and they change no file."""
    with BrokerProcess(tmp_path / "data", settings={"storage.segment_size_bytes": 20_000}) as broker:
        publish(broker, "busy", 20)
        stop = threading.Event()

        def keep_publishing() -> None:
            while not stop.is_set():
                publish(broker, "busy", 20)

        publisher = threading.Thread(target=keep_publishing)
        publisher.start()
        try:
            for _ in range(2):
                verified = broker.ctl("verify_log", str(broker.data_dir))
                assert verified.returncode == 0, verified.stdout + verified.stderr
                assert "DAMAGED" not in verified.stdout
                options = ("--deep", "--offsets", "5-14", "--formatter", "json")
                dumped = broker.ctl("dump_log", str(broker.data_dir), *options)
                assert dumped.returncode == 0, dumped.stdout[-1000:] + dumped.stderr
                records = [each for each in json.loads(dumped.stdout) if each["type"] == "record"]
                assert [each["offset"] for each in records] == list(range(5, 15))
                assert {each["properties"]["delivery_mode"] for each in records} == {2}
        finally:
            stop.set()
            publisher.join()

        def file_stats() -> dict[str, tuple[int, int]]:
            files = [path for path in broker.data_dir.glob("vhosts/**/*") if path.is_file()]
            return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

        def is_idle() -> bool:
            """Return True if no file changes for 0.5 s: after the last publish the broker writes for some ticks."""
            now = file_stats()
            time.sleep(0.5)
            return file_stats() == now

        wait_until(is_idle, "the broker does not stop writing")
        before = file_stats()
        assert broker.ctl("verify_log", str(broker.data_dir)).returncode == 0
        assert broker.ctl("dump_log", str(broker.data_dir)).returncode == 0
        assert file_stats() == before


# This limit is below the lowest open descriptor: files that logs close do not help either.
DESCRIPTOR_LIMIT = 3


@pytest.mark.slow
def test_queue_without_a_free_descriptor_is_506_and_opens_later(tmp_path: Path) -> None:
    """No descriptor is free when a queue is first used. That client gets 506, no message is lost, and the next client
    reads all of them.
    """
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        publish(broker, "late", 3)
        publish(broker, "ready", 1)
        broker.kill()
    with broker:
        connection = connect(broker)
        channel = connection.channel()
        assert channel.basic_get("ready", auto_ack=True)[2] == b"0" + BODY
        limit = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (DESCRIPTOR_LIMIT, limit[1]))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            channel.basic_get("late")
        assert closed.value.reply_code == 506
        assert "queue 'late' in vhost '/' cannot be opened now" in closed.value.reply_text
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limit)
        connection = connect(broker)
        channel = connection.channel()
        assert channel.queue_declare("late", passive=True).method.message_count == 3
        bodies = [channel.basic_get("late", auto_ack=True)[2] for _ in range(3)]
        assert bodies == [b"%d" % number + BODY for number in range(3)]
        publish(broker, "late", 1)
        connection.close()
        assert "Traceback" not in broker.stderr, broker.stderr


def publish_is_nacked(channel: Any) -> bool:
    try:
        channel.basic_publish("", "rolls", b"refused" + BODY, pika.BasicProperties(delivery_mode=2))
    except pika.exceptions.NackError:
        return True
    return False


@pytest.mark.slow
def test_publishes_are_nacked_while_no_descriptor_is_free(tmp_path: Path) -> None:
    """Publishes are accepted afterwards without a restart. The alarms check meanwhile."""
    with BrokerProcess(tmp_path / "data", settings={"storage.segment_size_bytes": 4096}) as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("rolls", durable=True)
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", "rolls", b"first" + BODY, properties)
        limit = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (DESCRIPTOR_LIMIT, limit[1]))
        refused = [publish_is_nacked(channel) for _ in range(10)]  # a new segment each
        assert True in refused, "a descriptor was free for each"
        time.sleep(1.2)  # the alarms check once a second
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limit)
        channel.basic_publish("", "rolls", b"last" + BODY, properties)
        count = channel.queue_declare("rolls", passive=True).method.message_count
        bodies = [channel.basic_get("rolls", auto_ack=True)[2] for _ in range(count)]
        assert bodies[0] == b"first" + BODY
        assert bodies[1:] == [b"refused" + BODY] * refused.count(False) + [b"last" + BODY]
        connection.close()
        assert "Traceback" not in broker.stderr, broker.stderr
