"""aio-pika (and aiormq below it) as its users use it: plain and robust connections, iterators, patterns, many tasks."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any

import aio_pika
import aiormq
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aio_pika.patterns import RPC, Master, NackMessage, RejectMessage
from aio_pika.pool import Pool

Unique = Callable[[str], str]


@pytest.fixture
async def connection(broker: Any) -> AsyncIterator[AbstractConnection]:
    connection = await aio_pika.connect(broker.url, timeout=30)
    yield connection
    await connection.close()


@pytest.fixture
async def channel(connection: AbstractConnection) -> AbstractChannel:
    return await connection.channel(on_return_raises=True)


async def wait_for_count(bodies: list[bytes], count: int, timeout_s: float = 30.0) -> list[bytes]:
    async with asyncio.timeout(timeout_s):
        while len(bodies) < count:  # noqa: ASYNC110 - a callback fills it
            await asyncio.sleep(0.005)
    return bodies


async def test_published_message_is_got_with_its_properties(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    assert re.match(r"amq\.gen-|amq_", queue.name)
    confirmation = await channel.default_exchange.publish(
        Message(b"body", content_type="text/plain", correlation_id="7", delivery_mode=DeliveryMode.PERSISTENT),
        queue.name,
    )
    assert isinstance(confirmation, aiormq.spec.Basic.Ack)
    message = await queue.get(timeout=30)
    assert (message.body, message.content_type, message.correlation_id, message.redelivered) == (
        b"body",
        "text/plain",
        "7",
        False,
    )
    assert message.delivery_mode == DeliveryMode.PERSISTENT
    await message.ack()
    assert await queue.get(fail=False) is None
    with pytest.raises(aio_pika.exceptions.QueueEmpty):
        await queue.get(timeout=30)


async def test_header_values_are_unchanged(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    headers: dict[str, Any] = {
        "bool": False,
        "ints": [0, -1, 127, 200, -200, 40_000, -40_000, 2**31, 2**40, -(2**40)],
        "float": 0.25,
        "decimal": Decimal("12.34"),
        "text": "grüße",
        "none": None,
        "time": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "table": {"nested": {"list": ["a", {"b": 1}]}},
    }
    await channel.default_exchange.publish(Message(b"m", headers=headers), queue.name)
    message = await queue.get(timeout=30)
    assert message.headers == headers
    await message.ack()


async def test_many_tasks_publish_with_confirms_in_order(channel: AbstractChannel, unique: Unique) -> None:
    queue = await channel.declare_queue(unique("many"), durable=True)
    exchange = channel.default_exchange
    await asyncio.gather(
        *(
            exchange.publish(Message(str(n).encode(), delivery_mode=DeliveryMode.PERSISTENT), queue.name)
            for n in range(500)
        )
    )
    got: list[bytes] = []
    await channel.set_qos(prefetch_count=50)
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                got.append(message.body)
            if len(got) == 500:
                break
    assert got == [str(n).encode() for n in range(500)]
    assert (await queue.delete()).message_count == 0


async def test_process_rejects_or_requeues_on_an_exception(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    for body in (b"requeued", b"dropped"):
        await channel.default_exchange.publish(Message(body), queue.name)
    first = await queue.get(timeout=30)
    with pytest.raises(ZeroDivisionError):
        async with first.process(requeue=True):
            raise ZeroDivisionError
    again = await queue.get(timeout=30)
    assert (again.body, again.redelivered) == (b"requeued", True)
    await again.ack()
    with pytest.raises(ZeroDivisionError):
        async with (await queue.get(timeout=30)).process():
            raise ZeroDivisionError
    assert await queue.get(fail=False) is None


async def test_nack_multiple_requeues_in_order(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    for n in range(4):
        await channel.default_exchange.publish(Message(bytes([n])), queue.name)
    messages = [await queue.get(timeout=30) for _ in range(4)]
    await messages[2].nack(multiple=True, requeue=True)
    await messages[3].reject(requeue=True)
    again = [await queue.get(no_ack=True, timeout=30) for _ in range(4)]
    assert [(m.body[0], m.redelivered) for m in again] == [(n, True) for n in range(4)]


async def test_unroutable_mandatory_message_is_returned(
    connection: AbstractConnection, channel: AbstractChannel
) -> None:
    with pytest.raises(aio_pika.exceptions.PublishError) as caught:
        await channel.default_exchange.publish(Message(b"m"), "nowhere")
    assert (caught.value.frame.reply_code, caught.value.frame.reply_text) == (312, "NO_ROUTE")
    confirmation = await channel.default_exchange.publish(Message(b"m"), "nowhere", mandatory=False)
    assert isinstance(confirmation, aiormq.spec.Basic.Ack)


async def test_returned_message_goes_to_the_callback(connection: AbstractConnection) -> None:
    channel = await connection.channel(on_return_raises=False)
    returned: list[bytes] = []
    channel.return_callbacks.add(lambda _channel, message: returned.append(message.body))
    await channel.default_exchange.publish(Message(b"m"), "nowhere")
    assert await wait_for_count(returned, 1) == [b"m"]
    await channel.default_exchange.publish(Message(b"m"), (await channel.declare_queue(exclusive=True)).name)
    assert returned == [b"m"]


async def test_full_queue_nacks_with_reject_publish(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with pytest.raises(aio_pika.exceptions.DeliveryError):  # noqa: PT012 - which one fails is not known
        for _ in range(5):
            await channel.default_exchange.publish(Message(b"m"), queue.name)


async def test_exchange_bindings_route_and_auto_delete(channel: AbstractChannel, unique: Unique) -> None:
    topic = await channel.declare_exchange(unique("topic"), ExchangeType.TOPIC, auto_delete=True)
    fanout = await channel.declare_exchange(unique("fanout"), ExchangeType.FANOUT, auto_delete=True)
    headers = await channel.declare_exchange(unique("headers"), ExchangeType.HEADERS, auto_delete=True)
    one, two = await channel.declare_queue(exclusive=True), await channel.declare_queue(exclusive=True)
    await fanout.bind(topic, "orders.#")
    await one.bind(fanout)
    await two.bind(headers, arguments={"x-match": "all", "kind": "order"})
    await topic.publish(Message(b"through two"), "orders.eu.new")
    with pytest.raises(aio_pika.exceptions.PublishError):
        await topic.publish(Message(b"m"), "invoices")
    await headers.publish(Message(b"by header", headers={"kind": "order", "more": 1}), "")
    assert (await one.get(no_ack=True, timeout=30)).body == b"through two"
    assert (await two.get(no_ack=True, timeout=30)).body == b"by header"
    await fanout.unbind(topic, "orders.#")
    with pytest.raises((aio_pika.exceptions.ChannelClosed, aio_pika.exceptions.PublishError)):
        await topic.publish(Message(b"m"), "orders.eu.new")  # auto-delete: deleted with its last binding


async def test_transaction_publishes_only_on_commit(connection: AbstractConnection) -> None:
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(exclusive=True)
    async with channel.transaction():
        await channel.default_exchange.publish(Message(b"kept"), queue.name)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - which one fails is not known
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"lost"), queue.name)
            raise ZeroDivisionError
    assert (await queue.get(no_ack=True, timeout=30)).body == b"kept"
    assert await queue.get(fail=False) is None


async def test_prefetch_limits_unacked_deliveries(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    await channel.set_qos(prefetch_count=2)
    held: list[AbstractIncomingMessage] = []
    await queue.consume(lambda message: _append(held, message))
    for n in range(5):
        await channel.default_exchange.publish(Message(bytes([n])), queue.name)
    await wait_for_count(held, 2)  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    assert len(held) == 2
    await held[1].ack(multiple=True)
    await wait_for_count(held, 4)  # type: ignore[arg-type]
    assert [m.body[0] for m in held] == [0, 1, 2, 3]


async def _append(held: list[AbstractIncomingMessage], message: AbstractIncomingMessage) -> None:
    held.append(message)


async def test_consumer_ends_with_cancel_or_queue_deletion(
    connection: AbstractConnection, channel: AbstractChannel, unique: Unique
) -> None:
    queue = await channel.declare_queue(unique("q"))
    tag = await queue.consume(lambda _m: asyncio.sleep(0))
    assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.consumer_count == 1
    await queue.cancel(tag)
    assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.consumer_count == 0
    await queue.consume(lambda _m: asyncio.sleep(0))
    other = await connection.channel()
    await other.queue_delete(queue.name)
    await channel.declare_queue(exclusive=True)  # the basic.cancel from the broker did not harm the channel
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        await channel.declare_queue(queue.name, passive=True)


@pytest.mark.parametrize(
    ("error", "attempt"),
    [
        (aio_pika.exceptions.ChannelNotFoundEntity, lambda c: c.get_queue("nosuch")),
        (aio_pika.exceptions.ChannelNotFoundEntity, lambda c: c.get_exchange("nosuch")),
        (aiormq.exceptions.ChannelAccessRefused, lambda c: c.declare_queue("amq.mine")),
        (
            aio_pika.exceptions.ChannelPreconditionFailed,
            lambda c: c.declare_exchange("amq.direct", "fanout", durable=True),
        ),
    ],
)
async def test_channel_error_raises_its_exception(
    connection: AbstractConnection, error: type[Exception], attempt: Callable[..., Any]
) -> None:
    channel = await connection.channel()
    with pytest.raises(error):
        await attempt(channel)
    assert await (await connection.channel()).declare_queue(exclusive=True)


async def test_closed_channel_can_be_reopened(connection: AbstractConnection) -> None:
    channel = await connection.channel()
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        await channel.get_queue("nosuch")
    await channel.reopen()
    assert (await channel.declare_queue(exclusive=True)).declaration_result.message_count == 0


async def test_exclusive_queue_of_another_connection_is_locked(
    broker: Any, connection: AbstractConnection, channel: AbstractChannel
) -> None:
    queue = await channel.declare_queue(exclusive=True)
    other = await aio_pika.connect(broker.url)
    with pytest.raises(aiormq.exceptions.ChannelLockedResource):
        await (await other.channel()).get_queue(queue.name)
    await other.close()


async def test_wrong_password_or_vhost_is_refused(broker: Any) -> None:
    with pytest.raises(aio_pika.exceptions.ProbableAuthenticationError):
        await aio_pika.connect(host=broker.host, port=broker.port, login="guest", password="wrong")
    # aiormq 7.2 cannot tell a refused vhost from a broken answer; here only the immediate end is checked.
    with pytest.raises(aio_pika.exceptions.AMQPError):
        await aio_pika.connect(host=broker.host, port=broker.port, virtualhost="nosuch")


async def test_bodies_around_frame_size_and_empty_ones_arrive(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    for size in (0, 1, 131_063, 131_064, 131_065, 4_000_000):
        await channel.default_exchange.publish(Message(b"x" * size), queue.name)
        assert len((await queue.get(no_ack=True, timeout=30)).body) == size


async def test_direct_reply_to_delivers_the_reply(connection: AbstractConnection, channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    client = await connection.channel()
    replies: list[bytes] = []
    reply_queue = await client.get_queue("amq.rabbitmq.reply-to", ensure=False)
    await reply_queue.consume(lambda message: _append_body(replies, message), no_ack=True)
    await client.default_exchange.publish(Message(b"hi", reply_to="amq.rabbitmq.reply-to"), queue.name)
    question = await queue.get(no_ack=True, timeout=30)
    assert question.reply_to is not None
    # Not mandatory: RabbitMQ delivers a mandatory reply and returns it as well.
    await channel.default_exchange.publish(Message(b"hello"), question.reply_to, mandatory=False)
    assert await wait_for_count(replies, 1) == [b"hello"]


async def _append_body(bodies: list[bytes], message: AbstractIncomingMessage) -> None:
    bodies.append(message.body)


async def test_rpc_pattern_returns_results_and_errors(connection: AbstractConnection, unique: Unique) -> None:
    server, client = (
        await RPC.create(await connection.channel()),
        await RPC.create(await connection.channel()),
    )

    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def fail() -> None:
        raise ValueError("no")

    name, failing = unique("multiply"), unique("fail")
    await server.register(name, multiply, auto_delete=True)
    await server.register(failing, fail, auto_delete=True)
    assert await asyncio.gather(*(client.call(name, {"x": n, "y": 3}) for n in range(50))) == [n * 3 for n in range(50)]
    with pytest.raises(ValueError, match="no"):
        await client.call(failing)
    with pytest.raises(aio_pika.exceptions.MessageProcessError):
        await client.call(unique("nosuch"), expiration=5)
    await client.close()
    await server.close()


async def test_master_worker_pattern_requeues_and_rejects(connection: AbstractConnection, unique: Unique) -> None:
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=1)
    master = Master(channel)
    name = unique("tasks")
    seen: list[int] = []

    async def work(*, task: int) -> None:
        seen.append(task)
        if task == 1 and seen.count(1) == 1:
            raise NackMessage(requeue=True)
        if task == 2:
            raise RejectMessage(requeue=False)

    worker = await master.create_worker(name, work, auto_delete=True)
    for task in range(4):
        await master.create_task(name, kwargs={"task": task})
    await wait_for_count(seen, 5)  # type: ignore[arg-type]
    await worker.close()
    assert sorted(seen) == [0, 1, 1, 2, 3]


async def test_channel_pool_publishes_all_messages(broker: Any) -> None:
    connection = await aio_pika.connect(broker.url)
    async with connection:
        pool: Pool[AbstractChannel] = Pool(connection.channel, max_size=10)
        queue = await (await connection.channel()).declare_queue(exclusive=True)

        async def publish(n: int) -> None:
            async with pool.acquire() as channel:
                await channel.default_exchange.publish(Message(str(n).encode()), queue.name)

        async with pool:
            await asyncio.gather(*(publish(n) for n in range(100)))
        bodies = {(await queue.get(no_ack=True, timeout=30)).body for _ in range(100)}
        assert bodies == {str(n).encode() for n in range(100)}


async def test_update_secret_is_answered(connection: AbstractConnection) -> None:
    assert isinstance(await connection.update_secret("new", reason="rotation"), aiormq.spec.Connection.UpdateSecretOk)


@pytest.mark.slow
async def test_heartbeats_keep_an_idle_connection(broker: Any) -> None:
    connection = await aio_pika.connect(broker.url_with("heartbeat=2"))
    await asyncio.sleep(5)
    queue = await (await connection.channel()).declare_queue(exclusive=True)
    assert queue.declaration_result.message_count == 0
    await connection.close()


async def test_robust_channel_recovers_after_a_channel_error(broker: Any, unique: Unique) -> None:
    connection = await aio_pika.connect_robust(broker.url, timeout=30)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(unique("robust"), auto_delete=False)
        got: list[bytes] = []
        await queue.consume(lambda message: _append_body(got, message), no_ack=True)
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await channel.declare_queue("nosuch", passive=True)
        other = await connection.channel()
        await other.default_exchange.publish(Message(b"m"), queue.name)
        assert await wait_for_count(got, 1) == [b"m"]
        await other.queue_delete(queue.name)


async def test_robust_connection_recovers_when_an_operator_closes_it(broker: Any, unique: Unique) -> None:
    name = unique("robust")
    url = broker.url_with(f"name={name}&reconnect_interval=0.1")
    connection = await aio_pika.connect_robust(url, timeout=30)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(unique("q"), exclusive=True)
        exchange = await channel.declare_exchange(unique("x"), ExchangeType.DIRECT, auto_delete=True)
        await queue.bind(exchange, "key")
        got: list[bytes] = []
        await queue.consume(lambda message: _append_body(got, message), no_ack=True)
        back = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: back.set())
        await asyncio.to_thread(broker.close_from_outside, name, "test")
        await asyncio.wait_for(back.wait(), 30)
        publisher = await aio_pika.connect(broker.url)
        async with publisher:
            sender = await publisher.channel()
            async with asyncio.timeout(30):
                while not got:  # queue and binding are restored a moment after the connection
                    try:
                        await (await sender.get_exchange(exchange.name)).publish(Message(b"again"), "key")
                    except (aio_pika.exceptions.ChannelClosed, aio_pika.exceptions.PublishError):
                        sender = await publisher.channel()
                    await asyncio.sleep(0.05)
        assert got[0] == b"again"
