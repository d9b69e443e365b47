"""x-consumer-timeout with the two reactions of RabbitMQ 4.3; older versions have one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from deliveries import eventually, fill, rest
from parties import Broker
from peer import Peer

from amqpd.testing import BrokerProcess

TIMEOUT_MS = 250
WITHIN_S = 30.0
TEXT = (
    f"delivery acknowledgement on channel 1 timed out. Timeout value used: {TIMEOUT_MS} ms. This timeout value can be "
    "configured, see consumers doc guide to learn more"
)
ARGUMENT = {"x-consumer-timeout": TIMEOUT_MS}
InTime = Callable[[float], Any]


@pytest.fixture(autouse=True)
def ours(broker_is_ours: bool) -> None:
    if not broker_is_ours:
        pytest.skip("RabbitMQ looks once a minute, and cancels consumers of quorum queues alone")


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[[], Peer]]:
    """Open connections like that of the fixture `peer`."""
    with ExitStack() as stack:

        def peer() -> Peer:
            peer = stack.enter_context(broker.peer())
            peer.handshake()
            peer.channel()
            return peer

        yield peer


@pytest.fixture(scope="module")
def closing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose settings have a consumer timeout and close the channel."""
    settings = {"consumer_timeout_ms": str(TIMEOUT_MS), "consumer_timeout_response": "close_channel"}
    with BrokerProcess(tmp_path_factory.mktemp("closing"), settings=settings) as process:
        yield Broker(process.url, process)


def declare(peer: Peer, kind: str = "classic", **arguments: Any) -> None:
    table = {"x-queue-type": kind} | {name.replace("_", "-"): value for name, value in arguments.items()}
    exclusive = kind != "quorum"
    peer.queue(exclusive=exclusive, durable=not exclusive, arguments=table)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("where", ["queue", "consumer"])
def test_timeout_cancels_consumer_and_requeues(peer: Peer, kind: str, where: str) -> None:
    declare(peer, kind, **(ARGUMENT if where == "queue" else {}))
    fill(peer, 3)
    peer.call("basic.qos", prefetch_count=2)
    started = time.monotonic()
    peer.call("basic.consume", queue=peer.q, consumer_tag="slow", arguments=ARGUMENT if where == "consumer" else {})
    tags = [peer.content("basic.deliver").method["delivery_tag"] for _ in range(2)]
    cancel = peer.expect("basic.cancel", within=WITHIN_S)
    assert (cancel["consumer_tag"], cancel["nowait"]) == ("slow", True)
    assert time.monotonic() - started >= TIMEOUT_MS / 1000
    for tag in tags:
        peer.method("basic.ack", delivery_tag=tag)  # late, and ignored
    peer.fence()
    assert peer.call("queue.declare", queue=peer.q, passive=True)["consumer_count"] == 0
    assert rest(peer) == [(0, True), (1, True), (2, False)]
    peer.call("basic.consume", queue=peer.q, consumer_tag="slow")  # the tag can be reused
    peer.call("queue.delete", queue=peer.q)


def test_other_consumers_of_the_channel_continue(peer: Peer) -> None:
    declare(peer, **ARGUMENT)
    peer.queue(peer.q + "2")
    peer.call("basic.consume", queue=peer.q, consumer_tag="slow")
    peer.call("basic.consume", queue=peer.q + "2", consumer_tag="free")
    peer.publish(peer.q + "2", b"1")
    free = peer.content("basic.deliver").method["delivery_tag"]
    peer.publish(peer.q, b"2")
    peer.content("basic.deliver")
    assert peer.expect("basic.cancel", within=WITHIN_S)["consumer_tag"] == "slow"
    time.sleep(TIMEOUT_MS / 1000 * 2)
    peer.method("basic.ack", delivery_tag=free)
    peer.publish(peer.q + "2", b"3")
    assert peer.content("basic.deliver").body == b"3"


def test_requeued_messages_go_to_another_consumer_at_once(connect: Callable[[], Peer], in_time: InTime) -> None:
    for attempt in in_time(0.5):
        with attempt:
            peer = connect()
            declare(peer)
            peer.channel(2)
            arguments = {"x-consumer-timeout": attempt.ms}
            peer.call("basic.consume", queue=peer.q, consumer_tag="slow", arguments=arguments)
            peer.publish(payload=b"1")
            peer.content("basic.deliver")
            peer.call("basic.consume", 2, queue=peer.q, consumer_tag="other")
    peer.expect("basic.cancel", within=WITHIN_S)
    redelivery = peer.content("basic.deliver", 2)
    assert (redelivery.method["redelivered"], redelivery.body) == (True, b"1")


@pytest.mark.parametrize("answer", ["basic.ack", "basic.nack", "basic.reject"])
def test_second_late_ack_is_an_error(peer: Peer, answer: str) -> None:
    declare(peer, **ARGUMENT)
    peer.call("basic.consume", queue=peer.q)
    peer.publish()
    tag = peer.content("basic.deliver").method["delivery_tag"]
    peer.expect("basic.cancel", within=WITHIN_S)
    peer.method(answer, delivery_tag=tag)
    peer.fence()
    peer.method(answer, delivery_tag=tag)
    peer.expect_channel_close(406, text=f"unknown delivery tag {tag}")


def test_automatic_acks_never_time_out(peer: Peer) -> None:
    declare(peer, **ARGUMENT)
    peer.call("basic.consume", queue=peer.q, consumer_tag="auto", no_ack=True)
    peer.publish()
    peer.content("basic.deliver")
    time.sleep(TIMEOUT_MS / 1000 * 3)
    peer.fence()


def test_acks_in_time_prevent_timeout(connect: Callable[[], Peer], in_time: InTime) -> None:
    """Each delivery is acked after a third of its timeout; all together take twice the timeout."""
    for attempt in in_time(0.6):
        peer = connect()
        declare(peer, x_consumer_timeout=attempt.ms)
        peer.call("basic.consume", queue=peer.q)
        for _ in range(6):
            with attempt:
                peer.publish()
                tag = peer.content("basic.deliver").method["delivery_tag"]
                time.sleep(attempt.seconds / 3)
                peer.method("basic.ack", delivery_tag=tag)
                peer.fence()
            if not attempt.in_time:
                break


def test_client_without_cancel_notification_gets_channel_close(broker: Broker) -> None:
    with broker.peer("untold") as peer:
        peer.handshake(client_properties={"capabilities": {}})
        peer.channel()
        declare(peer, **ARGUMENT)
        peer.call("basic.consume", queue=peer.q)
        peer.publish(payload=b"7")
        peer.content("basic.deliver")
        time.sleep(TIMEOUT_MS / 1000)
        peer.expect_channel_close(406, 0, 0, TEXT)
        assert rest(peer) == [(7, True)]


def test_timeout_of_basic_get_closes_channel(peer: Peer) -> None:
    declare(peer, **ARGUMENT)
    fill(peer, 1)
    assert peer.get(no_ack=False) is not None
    peer.expect_channel_close(406, 0, 0, TEXT)
    assert rest(peer) == [(0, True)]


def test_close_channel_setting(closing: Broker) -> None:
    with closing.peer("closing") as peer:
        peer.handshake()
        peer.channel()
        declare(peer)
        fill(peer, 2)
        peer.call("basic.consume", queue=peer.q)
        for _ in range(2):
            peer.content("basic.deliver")
        peer.expect_channel_close(406, 0, 0, TEXT)
        assert rest(peer) == [(0, True), (1, True)]
    assert closing.process.says("has timed out waiting for a delivery acknowledgement. Timeout used: 250 ms")


def test_consumer_argument_overrides_setting(closing: Broker) -> None:
    with closing.peer("own") as peer:
        peer.handshake()
        peer.channel()
        declare(peer)
        fill(peer, 1)
        peer.call("basic.consume", queue=peer.q, arguments={"x-consumer-timeout": 0})
        peer.content("basic.deliver")
        time.sleep(TIMEOUT_MS / 1000 * 3)
        peer.fence()


def test_deliveries_of_a_cancelled_consumer_still_time_out(connect: Callable[[], Peer], in_time: InTime) -> None:
    for attempt in in_time(0.3):
        with attempt:
            peer = connect()
            declare(peer, x_consumer_timeout=attempt.ms)
            peer.call("basic.consume", queue=peer.q, consumer_tag="gone")
            peer.publish(payload=b"5")
            tag = peer.content("basic.deliver").method["delivery_tag"]
            peer.call("basic.cancel", consumer_tag="gone")
    eventually(peer, peer.q, 1)
    peer.method("basic.ack", delivery_tag=tag)
    peer.fence()
    assert rest(peer) == [(5, True)]


def test_open_transaction_extends_timeout(connect: Callable[[], Peer], in_time: InTime) -> None:
    for attempt in in_time(0.3):
        with attempt:
            peer = connect()
            declare(peer, x_consumer_timeout=attempt.ms)
            fill(peer, 1)
            peer.call("tx.select")
            peer.call("basic.consume", queue=peer.q)
            tag = peer.content("basic.deliver").method["delivery_tag"]
            peer.method("basic.ack", delivery_tag=tag)
            peer.fence()
    time.sleep(attempt.seconds * 2)
    peer.call("tx.commit")
    assert rest(peer) == []


@pytest.mark.parametrize(("value", "why"), [(-1, "{value_negative,-1}"), ("1", '"expected integer, got longstr"')])
def test_invalid_timeouts_are_refused(peer: Peer, value: object, why: str) -> None:
    declare(peer)
    peer.method("basic.consume", queue=peer.q, arguments={"x-consumer-timeout": value})
    text = f"invalid arg 'x-consumer-timeout' for queue '{{q}}' in vhost '/': {why}"
    peer.expect_channel_close(406, 60, 20, text)
    peer.method("queue.declare", queue=peer.q + "2", arguments={"x-consumer-timeout": value})
    peer.expect_channel_close(406, 50, 10)


def test_timeout_argument_is_refused_for_streams(peer: Peer) -> None:
    arguments = {"x-queue-type": "stream"}
    peer.call("queue.declare", queue=peer.q, durable=True, arguments=arguments)
    peer.call("basic.qos", prefetch_count=1)
    peer.method("basic.consume", queue=peer.q, arguments=ARGUMENT)
    peer.expect_channel_close(406, 60, 20)
    peer.call("queue.delete", queue=peer.q)


def test_setting_does_not_apply_to_streams(closing: Broker) -> None:
    with closing.peer("stream") as peer:
        peer.handshake()
        peer.channel()
        peer.call("queue.declare", queue=peer.q, durable=True, arguments={"x-queue-type": "stream"})
        fill(peer, 1)
        peer.call("basic.qos", prefetch_count=1)
        peer.call("basic.consume", queue=peer.q, arguments={"x-stream-offset": "first"})
        peer.content("basic.deliver")
        time.sleep(TIMEOUT_MS / 1000 * 3)
        peer.fence()


@pytest.mark.slow
def test_many_queues_and_consumers_in_sequence(peer: Peer, broker: Broker) -> None:
    """A channel does not keep hundreds of closed consumers and queues; a later timeout still works."""
    for number in range(200):
        name = f"{peer.q}-{number}"
        peer.queue(name, arguments={"x-consumer-timeout": 60_000})
        peer.publish(name, b"1")
        got = peer.get(name, no_ack=False)
        assert got is not None
        peer.method("basic.ack", delivery_tag=got.method["delivery_tag"])
        peer.call("basic.consume", queue=name, consumer_tag="c")
        peer.call("basic.cancel", consumer_tag="c")
        peer.call("queue.delete", queue=name)
    declare(peer, **ARGUMENT)
    peer.call("basic.consume", queue=peer.q, consumer_tag="slow")
    peer.publish()
    peer.content("basic.deliver")
    assert peer.expect("basic.cancel", within=WITHIN_S)["consumer_tag"] == "slow"
