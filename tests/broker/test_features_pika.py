"""Queue arguments over AMQP with pika, also after kill -9."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

PERSISTENT = 2


class Client:
    """A connection with one channel in confirm mode. Queue names get a prefix."""

    def __init__(self, url: str, prefix: str = "") -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.confirm_delivery()
        self.prefix = prefix

    def queue(self, name: str, **arguments: object) -> str:
        name = self.prefix + name
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.queue_declare(name, durable=True, arguments=table)
        return name

    def dead_lettering_queue(self, name: str, dead: str, **arguments: object) -> str:
        """A queue that dead-letters to the queue `dead`."""
        return self.queue(name, x_dead_letter_exchange="", x_dead_letter_routing_key=dead, **arguments)

    def publish(self, queue: str, body: bytes = b"", **properties: object) -> bool:
        properties.setdefault("delivery_mode", PERSISTENT)
        try:
            self.channel.basic_publish("", queue, body, pika.BasicProperties(**properties))
        except pika.exceptions.NackError:
            return False
        return True

    def count(self, queue: str) -> int:
        return self.channel.queue_declare(queue, passive=True).method.message_count

    def get(self, queue: str, within_s: float = 30.0) -> tuple:
        """Wait for a message. Return its method, properties and body, without an ack."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            method, properties, body = self.channel.basic_get(queue)
            if method is not None:
                return method, properties, body
            time.sleep(0.01)
        raise AssertionError(f"no message in {queue} within {within_s} s")

    def wait_until_closed(self) -> None:
        """Wait until pika has closed the connection of a killed broker."""
        wait_until_connection_closed(self.connection)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Process incoming data until `condition` is true."""
        wait_until(lambda: self.connection.process_data_events(0.01) or condition())

    def drain(self, queue: str) -> list[bytes]:
        found = []
        while True:
            method, _, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append(body)


def wait_until_connection_closed(connection: pika.BlockingConnection) -> None:
    with pytest.raises(pika.exceptions.AMQPError):
        connection.sleep(5)


def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"condition is false after {within_s} s"
        time.sleep(0.01)


def ask_with_growing_pauses(ask: Callable[[], object]) -> None:
    """Call `ask` with growing pauses: a passive declare counts as a use of the queue and delays x-expires."""
    for seconds in (1, 2, 4, 8, 16, 32):
        time.sleep(seconds)
        ask()


_prefixes = count()


@pytest.fixture
def client(amqpd_broker: BrokerProcess) -> Iterator[Client]:
    client = Client(amqpd_broker.url, f"features-{next(_prefixes)}-")
    yield client
    if client.connection.is_open:
        client.connection.close()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def deaths(properties: pika.BasicProperties) -> list[tuple]:
    return [(death["queue"], death["reason"], death["count"]) for death in properties.headers["x-death"]]


class TestArguments:
    def test_expired_messages_are_dead_lettered(self, client, in_time) -> None:
        for scene in in_time(0.3):
            dead = client.queue(f"dead-{scene.ms}")
            queue = client.dead_lettering_queue(f"q-{scene.ms}", dead, x_message_ttl=scene.ms)
            with scene:
                client.publish(queue, b"1", headers={"mine": 1})
                assert client.count(queue) == 1
        _, properties, body = client.get(dead)
        assert body == b"1"
        assert deaths(properties) == [(queue, "expired", 1)]
        assert properties.headers["mine"] == 1
        assert client.count(queue) == 0

    def test_expiration_zero_reaches_a_waiting_consumer_only(self, client) -> None:
        queue = client.queue("q")
        client.publish(queue, b"nobody", expiration="0")
        assert client.count(queue) == 0
        got = []
        client.channel.basic_consume(queue, lambda _c, _m, _p, body: got.append(body), auto_ack=True)
        client.publish(queue, b"somebody", expiration="0")
        client.wait_until(lambda: got == [b"somebody"])

    def test_message_that_expired_while_prefetch_was_full_is_not_delivered(self, client) -> None:
        queue = client.queue("q", x_message_ttl=500)
        client.channel.basic_qos(prefetch_count=1)
        got = []
        client.channel.basic_consume(queue, lambda _c, method, _p, body: got.append((method.delivery_tag, body)))
        client.publish(queue, b"1")
        client.publish(queue, b"2")
        client.wait_until(lambda: [body for _, body in got] == [b"1"] and client.count(queue) == 0)
        client.channel.basic_ack(got[0][0])
        client.publish(queue, b"3")
        client.wait_until(lambda: len(got) > 1)
        assert [body for _, body in got] == [b"1", b"3"]

    def test_rejected_messages_are_dead_lettered(self, client) -> None:
        dead = client.queue("dead")
        queue = client.dead_lettering_queue("q", dead)
        for number in range(3):
            client.publish(queue, b"%d" % number)
        tags = [client.get(queue)[0].delivery_tag for _ in range(3)]
        client.channel.basic_nack(tags[-1], multiple=True, requeue=False)
        got = [client.get(dead) for _ in range(3)]
        assert [body for _, _, body in got] == [b"0", b"1", b"2"]
        assert {deaths(properties)[0] for _, properties, _ in got} == {(queue, "rejected", 1)}

    def test_retry_by_dead_lettering_counts_deaths(self, client) -> None:
        """The common pattern for a delayed retry: reject, wait in a queue with a TTL, return to the first queue."""
        waiting = client.prefix + "waiting"
        queue = client.dead_lettering_queue("q", waiting)
        client.dead_lettering_queue("waiting", queue, x_message_ttl=20)
        client.publish(queue, b"1")
        for turn in range(1, 4):
            method, properties, _ = client.get(queue)
            if turn > 1:
                assert deaths(properties) == [(waiting, "expired", turn - 1), (queue, "rejected", turn - 1)]
            client.channel.basic_reject(method.delivery_tag, requeue=False)

    def test_reject_publish_nacks(self, client) -> None:
        queue = client.queue("q", x_max_length=1, x_overflow="reject-publish")
        assert [client.publish(queue) for _ in range(3)] == [True, False, False]
        client.drain(queue)
        assert client.publish(queue)

    def test_delivery_limit_counts_nack_close_and_reject(self, client, amqpd_broker) -> None:
        dead = client.queue("dead")
        queue = client.dead_lettering_queue("q", dead, x_queue_type="quorum", x_delivery_limit=2)
        client.publish(queue, b"1")
        method, properties, _ = client.get(queue)
        assert properties.headers == {"x-delivery-count": 0}
        client.channel.basic_nack(method.delivery_tag)
        other = Client(amqpd_broker.url)
        method, properties, _ = other.get(queue)
        assert (method.redelivered, properties.headers) == (True, {"x-delivery-count": 1})
        other.connection.close()
        method, properties, _ = client.get(queue)
        assert properties.headers == {"x-delivery-count": 2}
        client.channel.basic_reject(method.delivery_tag, requeue=True)
        _, properties, _ = client.get(dead)
        assert deaths(properties) == [(queue, "delivery_limit", 1)]

    def test_consumer_gets_messages_by_priority(self, client) -> None:
        queue = client.queue("q", x_max_priority=9)
        for number in range(20):
            client.publish(queue, b"%d" % number, priority=number % 10)
        got = []
        client.channel.basic_consume(queue, lambda _c, _m, _p, body: got.append(int(body)), auto_ack=True)
        client.wait_until(lambda: len(got) == 20)
        assert got == sorted(range(20), key=lambda number: (-(number % 10), number))

    def test_consumer_prevents_expiry_of_queue(self, client, in_time) -> None:
        for scene in in_time(0.4):
            with scene:
                channel = client.connection.channel()
                queue = client.prefix + str(scene.ms)
                channel.queue_declare(queue, durable=True, arguments={"x-expires": scene.ms})
                tag = channel.basic_consume(queue, lambda *_: None)
            if not scene.in_time:
                continue
            time.sleep(scene.seconds * 2)
            with scene:
                channel.basic_cancel(tag)
                assert client.count(queue) == 0
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            ask_with_growing_pauses(lambda: client.count(queue))
        assert closed.value.reply_code == 404


class TestAfterAKill:
    @pytest.mark.slow
    def test_queues_with_arguments_are_restored(self, own_broker, until_settled) -> None:
        client = Client(own_broker.url)
        for name, arguments in {
            "short": {"x_message_ttl": 5000},
            "long": {"x_message_ttl": 600_000},
            "full": {"x_max_length": 3},
            "levels": {"x_max_priority": 5},
        }.items():
            client.queue(name, **arguments)
        dead = client.queue("dead")
        client.queue("plain")
        client.dead_lettering_queue("dying", dead, x_message_ttl=5000)
        counted = client.dead_lettering_queue("counted", dead, x_queue_type="quorum", x_delivery_limit=1)
        for queue in ("short", "long", "dying", counted):
            client.publish(queue, queue.encode())
        client.publish("plain", b"mortal", expiration="5000")
        client.publish("plain", b"immortal")
        for number in range(10):
            client.publish("full", b"%d" % number)
            client.publish("levels", b"%d" % number, priority=number % 3)
        client.channel.basic_nack(client.get(counted)[0].delivery_tag)
        client.count(counted)
        until_settled(own_broker, "full", 3)
        wait_until(lambda: "returned" in own_broker.ctl("dump_log", str(own_broker.data_dir)).stdout)
        own_broker.kill()
        client.wait_until_closed()
        time.sleep(5)
        own_broker.start()
        client = Client(own_broker.url)
        wait_until(lambda: client.count(dead) == 1)
        assert client.drain(dead) == [b"dying"]
        assert client.count("short") == 0
        assert client.count("dying") == 0
        assert client.drain("long") == [b"long"]
        assert client.drain("plain") == [b"immortal"]
        assert client.drain("full") == [b"7", b"8", b"9"]
        assert client.drain("levels") == [b"2", b"5", b"8", b"1", b"4", b"7", b"0", b"3", b"6", b"9"]
        method, properties, _ = client.get(counted)
        assert (method.redelivered, properties.headers) == (True, {"x-delivery-count": 1})
        client.channel.basic_nack(method.delivery_tag)
        _, properties, _ = client.get(dead)
        assert deaths(properties) == [(counted, "delivery_limit", 1)]
        client.connection.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("kill_after_s", [0.05, 0.12, 0.25])
    def test_no_dead_letter_is_lost(self, own_broker, kill_after_s) -> None:
        """After a kill while dead letters are published, each message is at its source, its target, or both."""
        client = Client(own_broker.url)
        dead = client.queue("dead")
        queue = client.dead_lettering_queue("q", dead)
        connection = pika.BlockingConnection(pika.URLParameters(own_broker.url))
        channel = connection.channel()
        channel.tx_select()
        for number in range(2000):
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=PERSISTENT))
        channel.tx_commit()
        method = None
        for _ in range(2000):
            method, _, _ = client.channel.basic_get(queue)
        assert method is not None
        client.channel.basic_nack(method.delivery_tag, multiple=True, requeue=False)
        client.connection.process_data_events(0)
        time.sleep(kill_after_s)
        own_broker.kill()
        client.wait_until_closed()
        wait_until_connection_closed(connection)
        own_broker.start()
        client = Client(own_broker.url)
        target_bodies, source_bodies = client.drain(dead), client.drain(queue)
        assert sorted({*target_bodies, *source_bodies}, key=int) == [b"%d" % number for number in range(2000)]
        assert len(target_bodies) == len(set(target_bodies))
        client.connection.close()

    @pytest.mark.slow
    def test_dead_letters_are_published_once_target_log_is_open(self, own_broker, in_time) -> None:
        """Messages that expired during the downtime are published when the target's log is open, without a retry."""
        for scene in in_time(1.0):
            client = Client(own_broker.url)
            dead = client.queue(f"dead-{scene.ms}")
            queue = client.dead_lettering_queue(f"q-{scene.ms}", dead, x_message_ttl=scene.ms)
            assert client.publish(dead, b"there")
            with scene:
                for number in range(20):
                    assert client.publish(queue, b"%d" % number)
                own_broker.kill()
            client.wait_until_closed()
            if not scene.in_time:
                own_broker.start()
        for queue_file in own_broker.data_dir.glob("vhosts/*/queues/*/queue.json"):
            if json.loads(queue_file.read_text())["queue"] == dead:
                with max(queue_file.parent.glob("*.log")).open("ab") as file:
                    file.write(b"torn")  # a torn tail: opening the log has to sync
        time.sleep(scene.seconds)
        own_broker.start()
        client = Client(own_broker.url)
        assert client.count(queue) == 0  # the log of the source is open
        wait_until(lambda: client.count(dead) == 21)
        assert client.drain(dead) == [b"there", *(b"%d" % number for number in range(20))]
        assert "a dead-letter target takes nothing" not in own_broker.stderr, own_broker.stderr
        client.connection.close()
