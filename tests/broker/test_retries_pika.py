"""Delayed retry over the wire with pika, also after kill -9."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from amqpd.testing import BrokerProcess

DELAY_S = 5.0  # long enough for a busy machine to observe the delayed state
ARGUMENTS = {"x-delayed-retry-min": int(DELAY_S * 1000)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("retries")) as process:
        yield process


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker


def connect(broker: BrokerProcess) -> Any:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def wait_for_disconnect(connection: pika.BlockingConnection) -> None:
    with pytest.raises(pika.exceptions.AMQPError):
        connection.sleep(5)


def declare(channel: Any, name: str, kind: str = "all", **more: object) -> None:
    arguments = {**ARGUMENTS, "x-delayed-retry-type": kind, **more}
    channel.queue_declare(name, durable=True, arguments=arguments)


def publish(channel: Any, name: str, count: int = 1) -> None:
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))


def message_counts(broker: BrokerProcess, name: str) -> tuple[int, int, int, int]:
    item: Any = broker.api("GET", f"/api/queues/%2F/{name}")
    names = ("messages", "messages_ready", "messages_unacknowledged", "messages_delayed_retry")
    return tuple(item[each] for each in names)  # type: ignore[return-value]


def wait_for(channel: Any, name: str, timeout_s: float = 30.0) -> tuple[Any, bytes]:
    """Return the basic.get-ok and the body of the next message."""
    begin = time.monotonic()
    while time.monotonic() - begin < timeout_s:
        method, _, body = channel.basic_get(name)
        if method is not None:
            return method, body
        time.sleep(0.01)
    raise AssertionError("the message does not return")


def drain(channel: Any, name: str) -> list[int]:
    return [int(body) for method, _, body in iter(lambda: channel.basic_get(name, auto_ack=True), (None, None, None))]


def by_reject(channel: Any, tag: int) -> None:
    channel.basic_reject(tag, requeue=True)


def by_nack(channel: Any, tag: int) -> None:
    channel.basic_nack(tag, requeue=True)


def by_recover(channel: Any, _tag: int) -> None:
    channel.basic_recover(requeue=True)


def by_close(channel: Any, _tag: int) -> None:
    channel.close()


def by_transaction_reject(channel: Any, tag: int) -> None:
    channel.tx_select()
    channel.basic_reject(tag, requeue=True)
    channel.tx_commit()


def by_transaction_nack(channel: Any, tag: int) -> None:
    channel.tx_select()
    channel.basic_nack(tag, requeue=True)
    channel.tx_commit()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all", "failed", "returned"])
def test_type_selects_which_requeues_are_delayed(broker, kind) -> None:
    connection = connect(broker)
    channel = connection.channel()
    delayed = []
    for requeue, failed in (
        (by_reject, True),
        (by_nack, False),
        (by_recover, False),
        (by_close, True),
        (by_transaction_reject, True),
        (by_transaction_nack, False),
    ):
        name = f"{kind}-{requeue.__name__}"
        declare(channel, name, kind)
        publish(channel, name)
        other = connection.channel()
        method, _, _ = other.basic_get(name)
        began_s = time.monotonic()
        requeue(other, method.delivery_tag)
        # The declare-ok shows that the broker has processed the other channel's command.
        channel.queue_declare(name, passive=True)
        if kind == "all" or failed is (kind == "failed"):
            assert message_counts(broker, name) == (1, 0, 0, 1), requeue
            delayed.append((name, began_s))
        else:
            assert message_counts(broker, name) == (1, 1, 0, 0), requeue
            got, body = wait_for(channel, name)
            assert (got.redelivered, body) == (True, b"0")
    for name, began_s in delayed:
        got, body = wait_for(channel, name)
        assert (got.redelivered, body) == (True, b"0")
        assert time.monotonic() - began_s > 0.9 * DELAY_S
    connection.close()


@pytest.mark.slow
def test_closed_connection_counts_as_failed_delivery(broker) -> None:
    connection = connect(broker)
    channel = connection.channel()
    declare(channel, "gone-client", "failed", **{"x-delayed-retry-min": 60_000})
    publish(channel, "gone-client")
    dying = connect(broker)
    dying.channel().basic_get("gone-client")
    dying.close()
    assert message_counts(broker, "gone-client") == (1, 0, 0, 1)
    channel.queue_delete("gone-client")
    connection.close()


@pytest.mark.slow
def test_consumer_gets_other_messages_during_the_delay(broker) -> None:
    connection = connect(broker)
    channel = connection.channel()
    declare(channel, "goes-on")
    publish(channel, "goes-on", 5)
    begin = time.monotonic()
    got = []
    channel.basic_qos(prefetch_count=1)
    for method, _, body in channel.consume("goes-on", inactivity_timeout=30):
        got.append((body, method.redelivered))
        if body == b"1" and not method.redelivered:
            channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            channel.basic_ack(method.delivery_tag)
        if len(got) == 6:
            break
    assert got == [*((b"%d" % number, False) for number in range(5)), (b"1", True)]
    assert time.monotonic() - begin > 0.9 * DELAY_S
    channel.cancel()
    connection.close()


def test_delayed_message_is_in_all_counts(broker) -> None:
    connection = connect(broker)
    channel = connection.channel()
    declare(channel, "counted", **{"x-delayed-retry-min": 60_000})
    publish(channel, "counted", 2)
    method, _, _ = channel.basic_get("counted")
    channel.basic_reject(method.delivery_tag, requeue=True)
    assert channel.queue_declare("counted", passive=True).method.message_count == 1
    listed = broker.ctl("list_queues", "name", "messages", "messages_ready", "messages_delayed_retry").stdout
    assert ["counted", "2", "1", "1"] in [each.split() for each in listed.splitlines()]
    overview: Any = broker.api("GET", "/api/overview")
    assert overview["queue_totals"]["messages_delayed_retry"] == 1
    vhost: Any = broker.api("GET", "/api/vhosts/%2F")
    assert vhost["messages_delayed_retry"] == 1
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_delete("counted", if_empty=True)
    channel = connection.channel()
    assert channel.queue_purge("counted").method.message_count == 2
    assert message_counts(broker, "counted") == (0, 0, 0, 0)
    connection.close()


def test_policy_delays_and_its_removal_releases(broker) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("by-policy", durable=True)
    policy = {"pattern": "^by-policy$", "definition": {"delayed-retry-type": "all", "delayed-retry-levels": [60_000]}}
    broker.api("PUT", "/api/policies/%2F/retries", {**policy, "apply-to": "queues"})
    publish(channel, "by-policy")
    method, _, _ = channel.basic_get("by-policy")
    channel.basic_nack(method.delivery_tag, requeue=True)
    channel.queue_declare("by-policy", passive=True)
    assert message_counts(broker, "by-policy") == (1, 0, 0, 1)
    broker.api("DELETE", "/api/policies/%2F/retries")
    wait_for(channel, "by-policy")
    connection.close()


def test_invalid_policy_is_refused(broker) -> None:
    for definition, text in (
        ('{"delayed-retry-type": "often"}', "is not a valid delayed retry type"),
        ('{"delayed-retry-min": 0}', "is not a valid delayed retry minimum"),
        ('{"delayed-retry-levels": "soon"}', "is not a valid list of delayed retry levels"),
    ):
        answer = broker.ctl("set_policy", "wrong", ".*", definition)
        assert answer.returncode != 0
        assert text in answer.stderr


def test_arguments_are_compared_on_redeclare(broker) -> None:
    connection = connect(broker)
    channel = connection.channel()
    arguments = {"x-delayed-retry-type": "all", "x-delayed-retry-levels": [1000, 2000]}
    channel.queue_declare("compared", arguments=arguments)
    channel.queue_declare("compared", arguments=arguments)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg 'x-delayed-retry-levels'"):
        channel.queue_declare("compared", arguments={**arguments, "x-delayed-retry-levels": [1000, 2001]})
    channel = connection.channel()
    streams = {"x-queue-type": "stream", **arguments}
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406.*rabbit_stream_queue"):
        channel.queue_declare("compared-stream", durable=True, arguments=streams)
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("priorities", [False, True])
def test_kill_while_messages_are_delayed(own_broker, until_settled, in_time, kind, priorities) -> None:
    """Each message is there once, in order and not before its time, and the delivery count continues."""
    if priorities and kind == "quorum":
        pytest.skip("quorum queues have no priorities")
    for scene in in_time(4):
        name = f"q{scene.ms}"
        more: dict[str, object] = {"x-queue-type": kind, "x-delayed-retry-min": scene.ms}
        if priorities:
            more["x-max-priority"] = 3
        connection = connect(own_broker)
        channel = connection.channel()
        declare(channel, name, **more)
        publish(channel, name, 300)
        channel.basic_qos(prefetch_count=200)
        tags = [channel.basic_get(name)[0].delivery_tag for _ in range(200)]
        with scene:
            for tag in tags[::2]:
                channel.basic_nack(tag, requeue=True)
            for tag in tags[1::4]:
                channel.basic_ack(tag)
            channel.queue_declare(name, passive=True)
            assert message_counts(own_broker, name) == (250, 100, 50, 100)
            until_settled(own_broker, name, 250)
            own_broker.kill()
            own_broker.start()
            wait_for_disconnect(connection)
            connection = connect(own_broker)
            channel = connection.channel()
            early = drain(channel, name)
            assert early == [*range(3, 200, 4), *range(200, 300)]
            assert message_counts(own_broker, name) == (100, 0, 0, 100)
        if not scene.in_time and connection.is_open:
            connection.close()
    got, body = wait_for(channel, name, scene.seconds + 30)
    assert time.monotonic() - scene.started_s >= scene.seconds
    assert (got.redelivered, body) == (True, b"0")
    until = time.monotonic() + 30
    while channel.queue_declare(name, passive=True).method.message_count < 99 and time.monotonic() < until:
        time.sleep(0.05)
    assert drain(channel, name) == list(range(2, 200, 2))
    connection.close()
