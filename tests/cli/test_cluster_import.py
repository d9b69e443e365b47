"""`cluster_import`: copy the vhosts and messages of a stopped broker to a running one."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from amqpd.testing import BrokerFailed, BrokerProcess

pytestmark = pytest.mark.slow

COUNT = 700


@pytest.fixture(scope="module")
def stopped_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with two vhosts, a topic exchange, priorities, a stream, a user, a policy.

    Some messages are acked, and one is unacked.
    """
    directory = tmp_path_factory.mktemp("stopped")
    with BrokerProcess(directory) as broker:
        broker.add_vhost("shop")
        broker.api("PUT", "/api/users/anna", {"password": "s3cret", "tags": "monitoring"})
        broker.api("PUT", "/api/policies/shop/keep", {"pattern": "^o", "definition": {"max-length": 100_000}})
        for vhost in ("/", "shop"):
            connection = pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", broker.amqp_port, virtual_host=vhost)
            )
            channel = connection.channel()
            channel.confirm_delivery()
            channel.exchange_declare("events", "topic", durable=True)
            channel.queue_declare("orders", durable=True, arguments={"x-max-priority": 5})
            channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
            channel.queue_declare("passing", durable=False)
            for queue in ("orders", "log", "passing"):
                channel.queue_bind(queue, "events", "order.#")
            for number in range(COUNT):
                properties = pika.BasicProperties(
                    delivery_mode=2, priority=number % 3, message_id=str(number), headers={"n": number, "vhost": vhost}
                )
                channel.basic_publish("events", f"order.{number}", f"{vhost} {number}".encode(), properties)
            for _ in range(10):
                method, _, _ = channel.basic_get("orders")
                channel.basic_ack(method.delivery_tag)
            channel.basic_get("orders")
            connection.close()
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "target") as broker:
        yield broker


def read_all(broker: BrokerProcess, vhost: str, queue: str) -> list[tuple[str, str, bytes, pika.BasicProperties]]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, virtual_host=vhost))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    found = []
    arguments = {"x-stream-offset": "first"} if queue == "log" else {}
    for method, properties, body in channel.consume(queue, arguments=arguments, inactivity_timeout=5):
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
        found.append((method.exchange, method.routing_key, body, properties))
        if len(found) == (COUNT if queue == "log" else COUNT - 10):
            break
    connection.close()
    return found


@pytest.mark.slow
def test_import_copies_messages_users_policies_and_bindings(stopped_data_dir: Path, target: BrokerProcess) -> None:
    process = target.ctl("cluster_import", str(stopped_data_dir))
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"queue 'orders' in vhost 'shop': {COUNT - 10} messages" in process.stdout
    assert f"4 queues, {2 * (COUNT - 10) + 2 * COUNT} messages; {stopped_data_dir} is unchanged" in process.stdout
    for vhost in ("/", "shop"):
        found = read_all(target, vhost, "orders")
        assert len(found) == COUNT - 10
        by_priority = [(-(properties.priority or 0), int(properties.message_id)) for _, _, _, properties in found]
        assert by_priority == sorted(by_priority)
        for exchange, key, body, properties in found:
            number = properties.headers["n"]
            assert (exchange, key, body) == ("events", f"order.{number}", f"{vhost} {number}".encode())
            assert (properties.headers["vhost"], properties.delivery_mode) == (vhost, 2)
        stream = read_all(target, vhost, "log")
        assert [properties.headers["n"] for _, _, _, properties in stream] == list(range(COUNT))
    users = {each["name"]: each["tags"] for each in target.api("GET", "/api/users")}  # type: ignore[union-attr]
    assert users["anna"] == ["monitoring"]
    assert target.api("GET", "/api/policies/shop/keep")["definition"] == {"max-length": 100_000}  # type: ignore[index]
    assert len(target.api("GET", "/api/bindings/shop")) > 3  # type: ignore[arg-type]


@pytest.mark.slow
def test_import_is_refused_when_a_queue_exists(stopped_data_dir: Path, target: BrokerProcess) -> None:
    target.add_vhost("shop")
    target.api("PUT", "/api/queues/shop/orders", {"durable": True})
    process = target.ctl("cluster_import", str(stopped_data_dir))
    assert process.returncode == 65
    assert "vhost 'shop' has a queue 'orders' already: nothing was imported" in process.stderr
    assert [each["name"] for each in target.api("GET", "/api/queues?columns=name")] == ["orders"]  # type: ignore[union-attr]


@pytest.mark.slow
def test_missing_or_used_data_directory_is_refused(tmp_path: Path, target: BrokerProcess) -> None:
    process = target.ctl("cluster_import", str(tmp_path / "nothing"))
    assert process.returncode == 65
    assert "is no data directory of amqpd" in process.stderr
    assert not (tmp_path / "nothing").exists()
    with BrokerProcess(tmp_path / "running") as running:
        process = target.ctl("cluster_import", str(running.data_dir))
        assert process.returncode == 65
        assert f"a broker uses {running.data_dir}: stop it first" in process.stderr


def test_two_dumps_of_the_source_are_equal(stopped_data_dir: Path) -> None:
    command = [sys.executable, "-P", "-m", "amqpd.dump", str(stopped_data_dir)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=120) for _ in range(2)]
    first, second = ([json.loads(line) for line in run.stdout.splitlines()] for run in runs)
    assert first[1:] == second[1:]
    assert first[-1] == {"end": True}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"exchange": "x" * 256}, "exchange must be text of at most 255 bytes"),
        ({"properties": "!"}, "properties must be base64"),
        ({"properties": b64encode(b"\xff\xff").decode()}, "properties: "),
        ({"body": None}, "body must be base64"),
        ({"persistent": 1}, "persistent must be true or false"),
    ],
)
def test_malformed_message_is_refused(target: BrokerProcess, change: dict[str, object], why: str) -> None:
    target.api("PUT", "/api/queues/%2F/q", {"durable": True})
    empty_message = {"exchange": "", "routing_key": "q", "properties": "AAA=", "body": "", "persistent": True}
    assert target.api("POST", "/api/amqpd/append/%2F/q", {"messages": [empty_message]}) == {"count": 1}
    with pytest.raises(BrokerFailed, match=f"400 .*{why}"):
        target.api("POST", "/api/amqpd/append/%2F/q", {"messages": [empty_message, {**empty_message, **change}]})
    assert len(target.api("GET", "/api/queues/%2F/q/messages")["messages"]) == 1  # type: ignore[index]
