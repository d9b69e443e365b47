"""Queue arguments as a stock client sees them, over the wire, and over a kill -9."""

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
    """One channel in confirm mode, and short words for what the tests do."""

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

    def dying(self, name: str, dead: str, **arguments: object) -> str:
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
        """(method, properties, body) of the next message, unacked; waits for one."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            method, properties, body = self.channel.basic_get(queue)
            if method is not None:
                return method, properties, body
            time.sleep(0.01)
        raise AssertionError(f"no message in {queue} within {within_s} s")

    def lost(self) -> None:
        """The broker was killed: pika notices, and closes what it holds."""
        lose(self.connection)

    def until(self, condition: Callable[[], bool]) -> None:
        """Reads until it is so."""
        until(lambda: self.connection.process_data_events(0.01) or condition())

    def drain(self, queue: str) -> list[bytes]:
        found = []
        while True:
            method, _, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append(body)


def lose(connection: pika.BlockingConnection) -> None:
    with pytest.raises(pika.exceptions.AMQPError):
        connection.sleep(5)


def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {within_s} s"
        time.sleep(0.01)


def unused(ask: Callable[[], object]) -> None:
    """Asks whether a queue is there, seldomer each time: to ask is to use it."""
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


class TestOverTheWire:
    def test_expired_messages_are_dead_lettered(self, client, in_time) -> None:
        for scene in in_time(0.3):
            dead = client.queue(f"dead-{scene.ms}")
            queue = client.dying(f"q-{scene.ms}", dead, x_message_ttl=scene.ms)
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
        client.until(lambda: got == [b"somebody"])

    def test_a_consumer_is_not_given_what_expired_while_its_window_was_full(self, client) -> None:
        queue = client.queue("q", x_message_ttl=500)
        client.channel.basic_qos(prefetch_count=1)
        got = []
        client.channel.basic_consume(queue, lambda _c, method, _p, body: got.append((method.delivery_tag, body)))
        client.publish(queue, b"1")
        client.publish(queue, b"2")
        client.until(lambda: [body for _, body in got] == [b"1"] and client.count(queue) == 0)
        client.channel.basic_ack(got[0][0])
        client.publish(queue, b"3")
        client.until(lambda: len(got) > 1)
        assert [body for _, body in got] == [b"1", b"3"]

    def test_rejected_messages_are_dead_lettered(self, client) -> None:
        dead = client.queue("dead")
        queue = client.dying("q", dead)
        for number in range(3):
            client.publish(queue, b"%d" % number)
        tags = [client.get(queue)[0].delivery_tag for _ in range(3)]
        client.channel.basic_nack(tags[-1], multiple=True, requeue=False)
        got = [client.get(dead) for _ in range(3)]
        assert [body for _, _, body in got] == [b"0", b"1", b"2"]
        assert {deaths(properties)[0] for _, properties, _ in got} == {(queue, "rejected", 1)}

    def test_a_retry_by_dead_lettering_goes_round_and_counts(self, client) -> None:
        """The pattern of every delayed retry: reject, wait in a queue with a TTL, come back."""
        waiting = client.prefix + "waiting"
        queue = client.dying("q", waiting)
        client.dying("waiting", queue, x_message_ttl=20)
        client.publish(queue, b"1")
        for turn in range(1, 4):
            method, properties, _ = client.get(queue)
            if turn > 1:
                assert deaths(properties) == [(waiting, "expired", turn - 1), (queue, "rejected", turn - 1)]
            client.channel.basic_reject(method.delivery_tag, requeue=False)

    def test_reject_publish_is_a_nack(self, client) -> None:
        queue = client.queue("q", x_max_length=1, x_overflow="reject-publish")
        assert [client.publish(queue) for _ in range(3)] == [True, False, False]
        client.drain(queue)
        assert client.publish(queue)

    def test_delivery_limit_counts_every_way_back(self, client, amqpd_broker) -> None:
        dead = client.queue("dead")
        queue = client.dying("q", dead, x_queue_type="quorum", x_delivery_limit=2)
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

    def test_priorities_with_a_consumer(self, client) -> None:
        queue = client.queue("q", x_max_priority=9)
        for number in range(20):
            client.publish(queue, b"%d" % number, priority=number % 10)
        got = []
        client.channel.basic_consume(queue, lambda _c, _m, _p, body: got.append(int(body)), auto_ack=True)
        client.until(lambda: len(got) == 20)
        assert got == sorted(range(20), key=lambda number: (-(number % 10), number))

    def test_a_lease_is_kept_by_a_consumer(self, client, in_time) -> None:
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
            unused(lambda: client.count(queue))
        assert closed.value.reply_code == 404


class TestAfterAKill:
    @pytest.mark.slow
    def test_everything_is_as_it_was(self, own_broker, until_settled) -> None:
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
        client.dying("dying", dead, x_message_ttl=5000)
        counted = client.dying("counted", dead, x_queue_type="quorum", x_delivery_limit=1)
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
        until(lambda: "returned" in own_broker.ctl("dump_log", str(own_broker.data_dir)).stdout)
        own_broker.kill()
        client.lost()
        time.sleep(5)
        own_broker.start()
        client = Client(own_broker.url)
        until(lambda: client.count(dead) == 1)
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
    def test_no_letter_is_lost(self, own_broker, kill_after_s) -> None:
        """Killed while dead letters are under way: each is at its source, at its target, or both, never nowhere."""
        client = Client(own_broker.url)
        dead = client.queue("dead")
        queue = client.dying("q", dead)
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
        client.lost()
        lose(connection)
        own_broker.start()
        client = Client(own_broker.url)
        at_target, at_source = client.drain(dead), client.drain(queue)
        assert sorted({*at_target, *at_source}, key=int) == [b"%d" % number for number in range(2000)]
        assert len(at_target) == len(set(at_target))
        client.connection.close()

    @pytest.mark.slow
    def test_letters_wait_for_their_target_s_log_and_no_longer(self, own_broker, in_time) -> None:
        """What expired meanwhile is published as soon as its target is open: nobody has to try again in a while."""
        for scene in in_time(1.0):
            client = Client(own_broker.url)
            dead = client.queue(f"dead-{scene.ms}")
            queue = client.dying(f"q-{scene.ms}", dead, x_message_ttl=scene.ms)
            assert client.publish(dead, b"there")
            with scene:
                for number in range(20):
                    assert client.publish(queue, b"%d" % number)
                own_broker.kill()
            client.lost()
            if not scene.in_time:
                own_broker.start()
        for told in own_broker.data_dir.glob("vhosts/*/queues/*/queue.json"):
            if json.loads(told.read_text())["queue"] == dead:
                with max(told.parent.glob("*.log")).open("ab") as file:
                    file.write(b"torn")  # so that opening it has something to sync
        time.sleep(scene.seconds)
        own_broker.start()
        client = Client(own_broker.url)
        assert client.count(queue) == 0  # it is open
        until(lambda: client.count(dead) == 21)
        assert client.drain(dead) == [b"there", *(b"%d" % number for number in range(20))]
        assert "a dead-letter target takes nothing" not in own_broker.stderr, own_broker.stderr
        client.connection.close()
