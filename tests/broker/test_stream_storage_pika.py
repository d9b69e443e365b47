"""The example of docs/streams.md, and the commands of operators for streams, on a running broker."""

from __future__ import annotations

import contextlib
import json
import re
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpd.cli.main import run
from amqpd.testing import BrokerProcess, Vhost

MANUAL = Path(__file__).parents[2] / "docs" / "streams.md"
BLOCKS = re.findall(r"```python\n(.*?)```", MANUAL.read_text("utf-8"), re.DOTALL)
(EXAMPLE,) = (block for block in BLOCKS if '"prices"' in block)
STREAM = {"x-queue-type": "stream"}


def connect(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


def run_example(url: str) -> list[tuple[str, int, bytes]]:
    printed: list[tuple[str, int, bytes]] = []
    code = EXAMPLE.replace('"amqp://guest:guest@127.0.0.1:5672/"', repr(url))
    assert code != EXAMPLE
    exec(compile(code, str(MANUAL), "exec"), {"print": lambda *each: printed.append(each)})
    return printed


def ctl(broker: BrokerProcess, *line: str) -> str:
    out, err = StringIO(), StringIO()
    code = run([*line, "--data-dir", str(broker.data_dir)], out, err, StringIO(), {})
    assert code == 0, err.getvalue()
    return out.getvalue()


def offsets(broker: BrokerProcess, vhost: str, queue: str) -> list[dict[str, Any]]:
    columns = ("name", "offset", "lag", "time")
    found: list[dict[str, Any]] = json.loads(
        ctl(broker, "list_stream_offsets", "-p", vhost, queue, *columns, "--formatter", "json")
    )
    return found


def test_example_of_the_documentation_works(amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
    printed = run_example(amqpd_vhost.url)
    assert printed == [
        ("gold", 0, b'{"price": 99}'),
        ("gold", 1, b'{"price": 100}'),
        ("gold", 2, b'{"price": 101}'),
        ("tin", 3, b'{"price": 7}'),
        ("tin", 4, b""),
    ]
    deadline = time.monotonic() + 30
    while not offsets(amqpd_broker, amqpd_vhost.name, "prices"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (stored,) = offsets(amqpd_broker, amqpd_vhost.name, "prices")
    assert (stored["name"], stored["offset"], stored["lag"]) == ("ledger", 5, 0)


def close_lost_connection(connection: pika.BlockingConnection) -> None:
    """Close a client connection after the broker has ended."""
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.process_data_events(1)
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


def read(url: str, queue: str, count: int, **arguments: object) -> list[tuple[int, bytes]]:
    """Consume `count` messages with these arguments and ack each. Return (offset, body) pairs."""
    connection = connect(url)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=10)
    given = {f"x-stream-{name.replace('_', '-')}": value for name, value in arguments.items()}
    found = []
    for method, properties, body in channel.consume(queue, arguments=given, inactivity_timeout=30):
        assert method is not None, f"only {found}"
        found.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()  # pika requeues the prefetched messages, which streams refuse (540)
    return found


def test_named_consumer_continues_and_operator_moves_its_offset(
    amqpd_broker: BrokerProcess, amqpd_vhost: Vhost
) -> None:
    url, vhost = amqpd_vhost.url, amqpd_vhost.name
    connection = connect(url)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    for number in range(20):
        channel.basic_publish("", "s", b"%d" % number)
    connection.close()
    assert read(url, "s", 5, offset="first", consumer_name="n") == [(n, b"%d" % n) for n in range(5)]
    assert read(url, "s", 3, consumer_name="n") == [(n, b"%d" % n) for n in range(5, 8)]
    ctl(amqpd_broker, "set_stream_offset", "-p", vhost, "s", "n", "2")
    assert read(url, "s", 2, consumer_name="n") == [(2, b"2"), (3, b"3")]
    assert [each["name"] for each in offsets(amqpd_broker, vhost, "s")] == ["n"]
    ctl(amqpd_broker, "delete_stream_offset", "-p", vhost, "s", "n")
    assert offsets(amqpd_broker, vhost, "s") == []


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_stored_offsets_after_stop_or_kill(tmp_path: Path, end: str) -> None:
    """A stop writes all offsets. A kill may lose the last few seconds of acks, and no offset moves forward."""
    with BrokerProcess(tmp_path) as broker:
        connection = connect(broker.url)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("s", durable=True, arguments=STREAM)
        for number in range(20):
            channel.basic_publish("", "s", b"%d" % number)
        channel.basic_qos(prefetch_count=4)
        arguments = {"x-stream-offset": "first", "x-stream-consumer-name": "n"}
        for taken, (method, _, _) in enumerate(channel.consume("s", arguments=arguments, inactivity_timeout=30), 1):
            assert method is not None
            channel.basic_ack(method.delivery_tag)
            if taken == 8:
                break
        channel.queue_declare("s", passive=True)  # the declare-ok shows that the broker has read the acks
        ctl(broker, "set_stream_offset", "s", "other", "13")
        if end == "kill":
            broker.kill()
        else:
            broker.stop()
        close_lost_connection(connection)
        broker.start()
        found = {each["name"]: each["offset"] for each in offsets(broker, "/", "s")}
        assert found["other"] == 13, "an offset set by an operator survives a kill"
        assert found.get("n", 0) <= 8
        if end == "stop":
            assert found["n"] == 8
        first = found.get("n", 0)
        name = {"consumer_name": "n"} if "n" in found else {"consumer_name": "n", "offset": "first"}
        assert read(broker.url, "s", 20 - first, **name) == [(n, b"%d" % n) for n in range(first, 20)]
        assert read(broker.url, "s", 7, consumer_name="other") == [(n, b"%d" % n) for n in range(13, 20)]


@pytest.mark.slow
def test_compressed_messages_survive_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        connection = connect(broker.url)
        channel = connection.channel()
        channel.queue_declare("s", durable=True, arguments={**STREAM, "x-compression": "zstd"})
        channel.confirm_delivery()
        bodies = [b"%d " % number * 100 for number in range(300)]
        for body in bodies:
            channel.basic_publish("", "s", body)
        broker.kill()
        close_lost_connection(connection)
        broker.start()
        assert read(broker.url, "s", 300, offset="first") == list(enumerate(bodies))
        dumped = ctl(broker, "dump_log", str(broker.data_dir))
        assert re.search(r"^offsets .* zstd$", dumped, re.MULTILINE)
        assert "no damage" in ctl(broker, "verify_log", str(broker.data_dir))


def test_policy_sets_the_codec_of_later_messages(amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
    """Messages already written keep their codec."""
    connection = connect(amqpd_vhost.url)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    definition = '{"compression":"lz4","cleanup-policy":"compact,delete","max-age":"7D"}'
    for line in ([], ["set_policy", "store", "^s$", definition, "--apply-to", "queues"], ["clear_policy", "store"]):
        if line:
            ctl(amqpd_broker, *line, "-p", amqpd_vhost.name)
        channel.basic_publish("", "s", b"x" * 1000)
    connection.close()
    dumped = json.loads(ctl(amqpd_broker, "dump_log", str(amqpd_broker.data_dir), "--formatter", "json"))
    assert [each["flags"] for each in dumped if each["type"] == "batch" and each["flags"]][-1:] == [["lz4"]]


@pytest.mark.parametrize(
    ("definition", "words"),
    [('{"compression":"lzma"}', "compression"), ('{"cleanup-policy":"everything"}', "cleanup policy")],
)
def test_invalid_policies_are_refused(
    amqpd_broker: BrokerProcess, amqpd_vhost: Vhost, definition: str, words: str
) -> None:
    out = StringIO()
    line = ["set_policy", "bad", "^s$", definition, "-p", amqpd_vhost.name, "--data-dir", str(amqpd_broker.data_dir)]
    assert run([*line], out, out, StringIO(), {}) != 0
    assert words in out.getvalue()
