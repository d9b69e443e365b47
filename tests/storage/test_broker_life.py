"""What the storage does for a whole broker: upkeep in the background, damage that is shown, a start that is refused."""

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


def until(there: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not there():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def publish(broker: BrokerProcess, queue: str, count: int) -> None:
    """One batch each, confirmed one by one."""
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
def test_upkeep_runs_in_the_background(tmp_path: Path) -> None:
    """A drained queue gives its room back, an old segment is rolled; nobody asks for either."""
    settings = {"storage.upkeep_interval_s": 0.2, "storage.segment_age_s": 2}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        publish(broker, "drained", 30)
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_purge("drained")
        until(lambda: logs(broker.data_dir) == [f"{30:020d}.log"], "the drained segment stays")
        channel.queue_delete("drained")
        publish(broker, "old", 1)
        until(lambda: f"{1:020d}.log" in logs(broker.data_dir), "the old segment is not rolled")
        assert f"{0:020d}.log" in logs(broker.data_dir), "its message was not settled"
        method, _, body = channel.basic_get("old", auto_ack=True)
        assert (method.redelivered, body) == (False, b"0" + BODY)
        until(lambda: f"{0:020d}.log" not in logs(broker.data_dir), "what is old and settled stays")
        connection.close()
        assert "Traceback" not in broker.stderr


def damaged(data_dir: Path) -> BrokerProcess:
    """A broker that was killed, and the fifth of whose nine messages a bit was flipped in; not started."""
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
def test_lost_offsets_are_shown(tmp_path: Path) -> None:
    with damaged(tmp_path / "data") as broker:
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
        again: Any = broker.api("GET", "/api/queues/%2F/hit?columns=degraded,lost_offsets")
        assert again == {"degraded": True, "lost_offsets": [[4, 4]]}, "known at the next start, too"


@pytest.mark.slow
def test_strict_recovery_refuses_to_start(tmp_path: Path) -> None:
    broker = damaged(tmp_path / "data")
    before = {path: path.read_bytes() for path in broker.data_dir.glob("vhosts/*/queues/*/*.log")}
    broker.settings["storage.recovery"] = "strict"
    with pytest.raises(BrokerFailed, match="exit code 69") as failed:
        broker.start()
    text = str(failed.value)
    assert "the log of queue 'hit' is damaged: offsets 4 to 4 are lost" in text
    assert "storage.recovery=salvage" in text and "verify_log" in text
    assert "Traceback" not in text
    assert before == {path: path.read_bytes() for path in before}, "nothing was changed"
    broker.settings["storage.recovery"] = "salvage"
    with broker:
        assert broker.api("GET", "/api/queues/%2F/hit?columns=messages") == {"messages": 8}
    broker.settings["storage.recovery"] = "strict"
    with pytest.raises(BrokerFailed, match="exit code 69"):
        broker.start()


@pytest.mark.slow
def test_logs_of_a_running_broker_are_looked_into(tmp_path: Path) -> None:
    """While messages are written nothing of it looks like damage; and looking changes nothing."""
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

        def stand() -> dict[str, tuple[int, int]]:
            files = [path for path in broker.data_dir.glob("vhosts/**/*") if path.is_file()]
            return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

        def rests() -> bool:
            """The broker writes on for some ticks of 50 ms when a queue comes to rest."""
            now = stand()
            time.sleep(0.5)
            return stand() == now

        until(rests, "the broker writes on and on")
        before = stand()
        assert broker.ctl("verify_log", str(broker.data_dir)).returncode == 0
        assert broker.ctl("dump_log", str(broker.data_dir)).returncode == 0
        assert stand() == before


# Below the lowest that is open: what logs give back helps nobody either.
NONE_LEFT = 3


@pytest.mark.slow
def test_a_queue_whose_log_cannot_be_opened_is_back_when_it_can(tmp_path: Path) -> None:
    """No descriptor left when a queue is first used: 506 for that client, nothing in the queue is taken for gone, and
    the next one finds it as it was.
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
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (NONE_LEFT, limit[1]))
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


def nacked(channel: Any) -> bool:
    try:
        channel.basic_publish("", "rolls", b"refused" + BODY, pika.BasicProperties(delivery_mode=2))
    except pika.exceptions.NackError:
        return True
    return False


@pytest.mark.slow
def test_publishes_are_nacked_while_there_is_no_descriptor(tmp_path: Path) -> None:
    """... and taken again after, without a restart; the alarms look on meanwhile."""
    with BrokerProcess(tmp_path / "data", settings={"storage.segment_size_bytes": 4096}) as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("rolls", durable=True)
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", "rolls", b"first" + BODY, properties)
        limit = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (NONE_LEFT, limit[1]))
        refused = [nacked(channel) for _ in range(10)]  # a new segment each
        assert True in refused, "there was a descriptor left for each"
        time.sleep(1.2)  # the alarms' look comes each second
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limit)
        channel.basic_publish("", "rolls", b"last" + BODY, properties)
        count = channel.queue_declare("rolls", passive=True).method.message_count
        bodies = [channel.basic_get("rolls", auto_ack=True)[2] for _ in range(count)]
        assert bodies[0] == b"first" + BODY
        assert bodies[1:] == [b"refused" + BODY] * refused.count(False) + [b"last" + BODY]
        connection.close()
        assert "Traceback" not in broker.stderr, broker.stderr
