"""kombu without Celery: Producer and Consumer, mixins, simple queues, pidbox, pools, retries."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest
from amqp.exceptions import AccessRefused
from kombu import Connection, Consumer, Exchange, Producer, Queue, binding, eventloop
from kombu.common import Broadcast, drain_consumer, maybe_declare
from kombu.mixins import ConsumerMixin, ConsumerProducerMixin
from kombu.pidbox import Mailbox
from kombu.pools import connections, producers, reset

Unique = Callable[[str], str]


@pytest.fixture
def connection(broker: Any) -> Iterator[Connection]:
    with Connection(broker.url, connect_timeout=30) as connection:
        yield connection


@pytest.fixture
def queue(unique: Unique) -> Queue:
    exchange = Exchange(unique("exchange"), "direct", durable=False, auto_delete=True)
    return Queue(unique("queue"), exchange, routing_key="key", exclusive=True, durable=False)


def drain(connection: Connection, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        try:
            connection.drain_events(timeout=0.1)
        except TimeoutError:
            continue


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compression", [None, "zlib", "bzip2"])
def test_payload_survives_serializers_and_compression(
    connection: Connection, queue: Queue, serializer: str, compression: str | None
) -> None:
    payload = {"n": 1, "text": "grüße", "list": [1.5, None, True], "long": "x" * 10_000}
    got: list[Any] = []
    with connection.Consumer(queue, accept=[serializer]) as consumer:

        def on_message(body: Any, message: kombu.Message) -> None:
            got.append((body, message.headers.get("kind"), message.properties["priority"]))
            message.ack()

        consumer.register_callback(on_message)
        connection.Producer().publish(
            payload,
            exchange=queue.exchange,
            routing_key="key",
            serializer=serializer,
            compression=compression,
            declare=[queue],
            headers={"kind": "test"},
            priority=2,
        )
        drain(connection, lambda: got)
    assert got == [(payload, "test", 2)]


def test_requeued_message_is_redelivered_and_rejected_one_is_not(connection: Connection, queue: Queue) -> None:
    channel = connection.channel()
    bound = queue(channel)
    bound.declare()
    assert bound.get() is None
    producer = Producer(channel, exchange=queue.exchange, routing_key="key")
    for n in range(3):
        producer.publish({"n": n})
    message = bound.get()
    assert (message.payload, message.delivery_info["redelivered"]) == ({"n": 0}, False)
    message.requeue()
    message = bound.get()
    assert (message.payload, message.delivery_info["redelivered"]) == ({"n": 0}, True)
    message.reject()
    message = bound.get()
    assert message.payload == {"n": 1}
    message.ack()
    assert bound.purge() == 1


def test_queue_with_many_bindings_gets_each_message_once(connection: Connection, unique: Unique) -> None:
    topic = Exchange(unique("topic"), "topic", durable=False, auto_delete=True)
    inner = Exchange(unique("inner"), "fanout", durable=False, auto_delete=True)
    queue = Queue(
        unique("q"),
        [binding(topic, routing_key="a.*"), binding(topic, routing_key="b.#"), binding(inner)],
        exclusive=True,
        durable=False,
    )
    channel = connection.channel()
    bound = queue(channel)
    bound.declare()
    inner(channel).bind_to(topic, routing_key="c")
    producer = Producer(channel, exchange=topic, serializer="json")
    for key in ("a.1", "a", "b", "b.1.2", "c", "d"):
        producer.publish(key, routing_key=key)
    assert [message.payload for message in iter(lambda: bound.get(no_ack=True), None)] == ["a.1", "b", "b.1.2", "c"]
    inner(channel).unbind_from(topic, routing_key="c")
    producer.publish("c", routing_key="c")
    assert bound.get() is None


def test_headers_exchange_matches_any(connection: Connection, unique: Unique) -> None:
    exchange = Exchange(unique("headers"), "headers", durable=False, auto_delete=True)
    queue = Queue(unique("q"), exchange, binding_arguments={"x-match": "any", "a": 1, "b": "x"}, exclusive=True)
    bound = queue(connection.channel())
    bound.declare()
    producer = connection.Producer(exchange=exchange)
    for headers in ({"a": 1}, {"b": "x"}, {"b": "y"}, {}):
        producer.publish(headers, headers=headers)
    assert [m.payload for m in iter(lambda: bound.get(no_ack=True), None)] == [{"a": 1}, {"b": "x"}]


def test_prefetch_window_follows_celerys_changes(connection: Connection, queue: Queue) -> None:
    """Celery sends global=true to RabbitMQ, otherwise global=false. Either way the channel has one window, which Celery
    changes while consumers run.
    """
    channel = connection.channel()
    bound = queue(channel)
    got: list[kombu.Message] = []
    consumers = [Consumer(channel, bound, on_message=got.append, tag_prefix=str(n)) for n in range(2)]
    apply_global = not connection.qos_semantics_matches_spec
    consumers[0].qos(prefetch_count=2, apply_global=apply_global)
    for consumer in consumers:
        consumer.consume()
    producer = Producer(channel, exchange=queue.exchange, routing_key="key")
    for n in range(10):
        producer.publish(n)
    for prefetch_count in (2, 3, 7):
        consumers[0].qos(prefetch_count=prefetch_count, apply_global=apply_global)
        drain(connection, lambda expected=prefetch_count: len(got) == expected)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
    consumers[0].qos(prefetch_count=1, apply_global=apply_global)
    for message in got[:6]:
        message.ack()
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)
    got[6].ack()
    drain(connection, lambda: len(got) == 8)


def test_publish_with_confirms_stores_all_messages(broker: Any, unique: Unique) -> None:
    with Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        queue = Queue(unique("durable"), durable=True)
        bound = queue(connection.channel())
        bound.declare()
        producer = connection.Producer()
        for n in range(50):
            producer.publish(n, routing_key=queue.name, retry=True)
        assert bound.purge() == 50
        bound.delete()


def test_unroutable_mandatory_message_is_returned(connection: Connection) -> None:
    returned: list[Any] = []
    producer = connection.Producer(on_return=lambda *answer: returned.append(answer))
    producer.publish("m", exchange="amq.direct", routing_key="nowhere", mandatory=True)
    drain(connection, lambda: returned)
    assert returned[0][0].reply_code == 312


def test_simple_queue_requeues_and_acks(connection: Connection, unique: Unique) -> None:
    name = unique("simple")
    queue = connection.SimpleQueue(name)
    for n in range(3):
        queue.put({"n": n})
    message = queue.get(timeout=30)
    assert message.payload == {"n": 0}
    message.ack()
    second = queue.get(timeout=30)
    second.requeue()
    third, fourth = queue.get(timeout=30), queue.get(timeout=30)
    assert sorted((m.payload["n"], m.delivery_info["redelivered"]) for m in (third, fourth)) == [(1, True), (2, False)]
    third.ack()
    fourth.ack()
    assert queue.qsize() == 0
    queue.close()
    queue.queue.delete()


def test_simple_buffer_is_emptied_by_get(connection: Connection, unique: Unique) -> None:
    with connection.SimpleBuffer(unique("buffer")) as buffer:
        buffer.put("gone when nobody reads")
        assert buffer.get(timeout=30).payload == "gone when nobody reads"
        with pytest.raises(buffer.Empty):
            buffer.get(block=False)


def test_broadcast_reaches_all_consumers(broker: Any, unique: Unique) -> None:
    name = unique("news")
    with Connection(broker.url) as one, Connection(broker.url) as two:
        received: list[tuple[int, Any]] = []
        for number, connection in enumerate((one, two)):
            queue = Broadcast(name, durable=False, auto_delete=True)
            consumer = connection.Consumer(
                queue, callbacks=[lambda body, message, number=number: (received.append((number, body)), message.ack())]
            )
            consumer.consume()
        one.Producer(exchange=Exchange(name, "fanout")).publish("hello")
        drain(one, lambda: (0, "hello") in received)
        drain(two, lambda: (1, "hello") in received)


def test_consumer_producer_mixin_answers_requests(broker: Any, unique: Unique) -> None:
    tasks = Queue(unique("rpc"), durable=False, auto_delete=True)

    class Server(ConsumerProducerMixin):  # type: ignore[misc]
        def __init__(self, connection: Connection) -> None:
            self.connection = connection

        def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
            return [consumer(tasks, on_message=self.answer, prefetch_count=1)]

        def answer(self, message: kombu.Message) -> None:
            self.producer.publish(
                message.payload * 2,
                exchange="",
                routing_key=message.properties["reply_to"],
                correlation_id=message.properties["correlation_id"],
                retry=True,
            )
            message.ack()

    with Connection(broker.url) as server_connection, Connection(broker.url) as connection:
        server = Server(server_connection)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            replies = Queue(unique("replies"), exclusive=True, durable=False, auto_delete=True)
            got: dict[str, Any] = {}
            with connection.Consumer(
                replies, callbacks=[lambda body, m: got.__setitem__(m.properties["correlation_id"], body)], no_ack=True
            ):
                for n in range(10):
                    connection.Producer().publish(
                        n, routing_key=tasks.name, declare=[tasks], reply_to=replies.name, correlation_id=str(n)
                    )
                drain(connection, lambda: len(got) == 10)
            assert got == {str(n): 2 * n for n in range(10)}
        finally:
            server.should_stop = True
            thread.join(30)
        assert not thread.is_alive()


def test_consumer_mixin_reconnects(broker: Any, unique: Unique) -> None:
    name = unique("mixin")
    queue = Queue(name, durable=True)
    got: list[Any] = []

    class Worker(ConsumerMixin):  # type: ignore[misc]
        def __init__(self, connection: Connection) -> None:
            self.connection = connection

        def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
            return [consumer(queue, callbacks=[self.take])]

        def take(self, body: Any, message: kombu.Message) -> None:
            got.append(body)
            message.ack()

    options = {"client_properties": {"connection_name": name}}
    with Connection(broker.url, transport_options=options) as connection, Connection(broker.url) as other:
        worker = Worker(connection)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            with other.Producer() as producer:
                producer.publish("first", routing_key=name, declare=[queue])
                wait(lambda: got == ["first"])
                broker.close_from_outside(name, "test")
                producer.publish("second", routing_key=name)
                wait(lambda: got == ["first", "second"])
        finally:
            worker.should_stop = True
            thread.join(30)
        queue(other.channel()).delete()


def wait(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(0.01)


def test_pidbox_mailbox_answers_calls(broker: Any, unique: Unique) -> None:
    mailbox = Mailbox(unique("box"), type="fanout", accept=["json"])
    with Connection(broker.url) as connection, Connection(broker.url) as caller:
        node = mailbox(connection).Node("node", state={"n": 1}, handlers={"add": lambda state, n: state["n"] + n})
        channel = connection.channel()
        node.listen(channel=channel)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    connection.drain_events(timeout=0.1)
                except TimeoutError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert mailbox(caller).call(["node"], "add", {"n": 41}, timeout=30) == [{"node": 42}]
            assert mailbox(caller).multi_call("add", {"n": 1}, timeout=30, limit=1) == [{"node": 2}]
        finally:
            stop.set()
            thread.join()


@pytest.mark.slow
def test_heartbeats_keep_an_idle_connection(broker: Any) -> None:
    with Connection(broker.url, heartbeat=2) as connection:
        connection.connect()
        for _ in range(20):
            connection.heartbeat_check(rate=2)
            try:
                connection.drain_events(timeout=0.25)
            except TimeoutError:
                continue
        assert connection.default_channel.queue_declare(exclusive=True).message_count == 0


def test_connection_errors_raise_kombu_exceptions(broker: Any) -> None:
    with Connection(broker.url) as connection:
        connection.ensure_connection(max_retries=1, timeout=30)
        with pytest.raises(connection.channel_errors, match="no queue 'nosuch'"):
            connection.channel().queue_declare("nosuch", passive=True)
    wrong = Connection(f"amqp://guest:wrong@{broker.host}:{broker.port}//")
    with wrong as connection, pytest.raises(AccessRefused, match="Login was refused"):
        connection.connect()
    with socket.socket() as bound_socket:  # this port is bound, but no server listens
        bound_socket.bind(("127.0.0.1", 0))
        with (
            Connection(f"amqp://guest:guest@{broker.host}:{bound_socket.getsockname()[1]}//") as connection,
            pytest.raises(kombu.exceptions.OperationalError),
        ):
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=30)


def test_publish_is_retried_on_a_broken_connection(broker: Any, queue: Queue) -> None:
    with Connection(broker.url) as keeper, Connection(broker.url) as connection:
        bound = queue(keeper.channel())
        bound.declare()
        producer = connection.Producer(exchange=queue.exchange, routing_key="key")
        producer.publish("before")
        connection.transport.connection = connection.connection
        connection.connection.sock.shutdown(socket.SHUT_RDWR)
        producer.publish("after", retry=True, retry_policy={"max_retries": 3, "interval_start": 0})
        got: list[str] = []
        wait(lambda: (got.append(m.payload) if (m := bound.get(no_ack=True)) else None) or len(got) == 2)
        assert got == ["before", "after"]


def test_producer_pool_publishes_all_messages(broker: Any, unique: Unique) -> None:
    name = unique("pool")
    connection = Connection(broker.url)
    queue = Queue(name, durable=False, auto_delete=True)
    try:

        def publish(n: int) -> None:
            with producers[connection].acquire(block=True, timeout=30) as producer:
                producer.publish(n, routing_key=name)

        with connections[connection].acquire(block=True, timeout=30) as consumer_connection:
            got: list[int] = []
            with consumer_connection.Consumer(queue, callbacks=[lambda body, m: got.append(body)], no_ack=True):
                threads = [threading.Thread(target=publish, args=(n,)) for n in range(20)]
                for thread in threads:
                    thread.start()
                drain(consumer_connection, lambda: len(got) == 20)
                for thread in threads:
                    thread.join()
            assert sorted(got) == list(range(20))
    finally:
        reset()


def test_drain_consumer_and_eventloop_stop_at_their_limits(connection: Connection, queue: Queue) -> None:
    producer = connection.Producer(exchange=queue.exchange, routing_key="key")
    bound = queue(connection.channel())
    bound.declare()
    for n in range(5):
        producer.publish(n)
    consumer = connection.Consumer(queue, accept=["json"])
    assert [body for body, _ in drain_consumer(consumer, limit=3, timeout=30)] == [0, 1, 2]
    queue(connection.channel()).declare()  # kombu's exclusive queues are auto-delete: declare again
    for n in range(2):
        producer.publish(n)
    rest: list[Any] = []
    with connection.Consumer(queue, callbacks=[lambda body, message: (rest.append(body), message.ack())]):
        for _ in eventloop(connection, limit=300, timeout=0.1, ignore_timeouts=True):
            if len(rest) >= 2:
                break
    assert rest == [0, 1]


def test_declare_is_cached_per_connection(connection: Connection, queue: Queue) -> None:
    channel = connection.channel()
    durable = Exchange(queue.exchange.name, "direct", durable=True)
    assert maybe_declare(durable, channel)
    assert maybe_declare(durable, channel) is False
    channel.exchange_delete(durable.name)
    maybe_declare(queue, channel)
    assert queue(channel).queue_declare(passive=True).queue == queue.name
