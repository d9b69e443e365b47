"""aio-pika: the scenarios of ../README.md."""

import asyncio
import os
import ssl
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import aio_pika
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.exceptions import AMQPError, ChannelClosed, DeliveryError

NOT_OFFERED = {"blocked": "aio-pika has no callback for connection.blocked"}
HEADERS = {
    "text": "grüße",
    "yes": True,
    "int": -5,
    "long": 1 << 40,
    "double": 1.5,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "array": [1, "two", {"three": 3}],
    "table": {"a": {"b": "c"}},
}
CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}


async def connect(robust=False, **options):
    url = os.environ["AMQP_URL"]
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
        options["ssl_context"] = context
    return await (aio_pika.connect_robust if robust else aio_pika.connect)(url, **options)


async def send(channel, queue, *bodies, **properties):
    for body in bodies:
        await channel.default_exchange.publish(Message(body, **properties), routing_key=queue)


async def receive(queue, count, no_ack=True, arguments=None):
    got = []
    async with queue.iterator(no_ack=no_ack, arguments=arguments) as messages:
        async for message in messages:
            got.append(message)
            if len(got) == count:
                return got


def bodies_of(messages):
    return [message.body for message in messages]


async def refused(text, call):
    try:
        await call
    except (AMQPError, ConnectionError) as error:  # aiormq raises a class for each reply code
        assert text in str(error), error
    else:
        raise AssertionError("not refused")


async def connects(channel):
    queue = await channel.declare_queue("hello")
    await send(channel, "hello", b"Hello World!")
    assert bodies_of(await receive(queue, 1)) == [b"Hello World!"]


async def bad_password():
    await refused("ACCESS_REFUSED", connect())


async def bad_vhost():
    await refused("Connection.Close", connect())  # aiormq does not show the text


async def heartbeat():
    connection = await connect(heartbeat=1)
    await asyncio.sleep(4)
    await connects(await connection.channel())


async def declare(channel):
    queue = await channel.declare_queue("declared", durable=True)
    exchange = await channel.declare_exchange("declared", ExchangeType.TOPIC, durable=True)
    await queue.bind(exchange, "#")
    await exchange.publish(Message(b"1"), "key")
    await channel.get_queue("declared", ensure=True)
    await channel.get_exchange("declared", ensure=True)
    assert (await queue.purge()).message_count == 1
    await queue.unbind(exchange, "#")
    await exchange.delete()
    await queue.delete()


async def missing(connection, channel):
    await refused("NOT_FOUND - no queue 'missing'", channel.declare_queue("missing", passive=True))
    await connects(await connection.channel())


async def inequivalent(channel):
    await channel.declare_queue("inequivalent", durable=True)
    await refused(
        "PRECONDITION_FAILED - inequivalent arg 'durable'", channel.declare_queue("inequivalent", durable=False)
    )


async def float_argument(channel):
    await channel.declare_queue("float", arguments={"x-max-length": 10})
    await refused(
        "PRECONDITION_FAILED - inequivalent arg 'x-max-length'",
        channel.declare_queue("float", arguments={"x-max-length": 10.0}),
    )


async def work_queue(channel):
    queue = await channel.declare_queue("tasks", durable=True)
    done = {"a": [], "b": []}
    finished = asyncio.Event()

    def worker(name):
        async def on_message(message):
            async with message.process():
                done[name].append(message.body)
            if sum(map(len, done.values())) == 10:
                finished.set()

        return on_message

    await channel.set_qos(prefetch_count=1)
    for name in done:
        await queue.consume(worker(name))
    await send(channel, "tasks", *(b"%d" % n for n in range(10)), delivery_mode=DeliveryMode.PERSISTENT)
    await finished.wait()
    assert all(done.values()) and sorted(done["a"] + done["b"]) == [b"%d" % n for n in range(10)], done


async def publish_subscribe(channel):
    logs = await channel.declare_exchange("logs", ExchangeType.FANOUT)
    queues = [await channel.declare_queue(exclusive=True) for _subscriber in range(2)]
    for queue in queues:
        await queue.bind(logs)
    await logs.publish(Message(b"log"), routing_key="")
    assert [bodies_of(await receive(queue, 1)) for queue in queues] == [[b"log"], [b"log"]]


async def patterns(channel, name, kind, bindings, published, expected):
    exchange = await channel.declare_exchange(name, kind)
    queue = await channel.declare_queue(exclusive=True)
    for key in bindings:
        await queue.bind(exchange, routing_key=key)
    for key in published:
        await exchange.publish(Message(key.encode()), routing_key=key)
    assert [message.routing_key for message in await receive(queue, len(expected))] == expected


async def routing(channel):
    keys = ["info", "warning", "error"]
    await patterns(channel, "direct_logs", ExchangeType.DIRECT, keys[1:], keys, keys[1:])


async def topics(channel):
    keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"]
    expected = [keys[0], keys[2], keys[3]]
    await patterns(channel, "topic_logs", ExchangeType.TOPIC, ["*.critical", "kern.#"], keys, expected)


async def serve_fibonacci(channel):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    async def on_request(request):
        result = str(fibonacci(int(request.body))).encode()
        await send(channel, request.reply_to, result, correlation_id=request.correlation_id)

    requests = await channel.declare_queue("rpc_queue")
    await requests.consume(on_request, no_ack=True)


async def ask(channel, callback):
    reply = asyncio.get_running_loop().create_future()
    await callback.consume(reply.set_result, no_ack=True)
    await send(channel, "rpc_queue", b"15", reply_to=callback.name, correlation_id="1")
    answer = await reply
    assert (answer.correlation_id, answer.body) == ("1", b"610"), answer


async def rpc(channel):
    await serve_fibonacci(channel)
    await ask(channel, await channel.declare_queue(exclusive=True))


async def direct_reply_to(channel):
    await serve_fibonacci(channel)
    await ask(channel, await channel.get_queue("amq.rabbitmq.reply-to", ensure=False))


async def confirm(channel):
    await channel.declare_queue("confirmed", durable=True)
    await send(channel, "confirmed", b"safe", delivery_mode=DeliveryMode.PERSISTENT)  # returns when it is confirmed


async def confirm_batch(channel):
    queue = await channel.declare_queue("batch", durable=True)
    await asyncio.gather(*(send(channel, "batch", b"%d" % n, delivery_mode=2) for n in range(1000)))
    assert (await queue.purge()).message_count == 1000


async def mandatory(connection, _channel):
    channel = await connection.channel(on_return_raises=True)
    try:
        await channel.default_exchange.publish(Message(b"lost"), "nowhere", mandatory=True)
    except DeliveryError as error:
        assert error.message.delivery.reply_code == 312, error.message
    else:
        raise AssertionError("not returned")


async def tx(connection, _channel):
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue("tx")
    transaction = channel.transaction()
    await transaction.select()
    await send(channel, "tx", b"no")
    await transaction.rollback()
    await send(channel, "tx", b"yes")
    await transaction.commit()
    assert bodies_of(await receive(queue, 1)) == [b"yes"]


async def headers(channel):
    queue = await channel.declare_queue("headers")
    await send(channel, "headers", b"", headers=HEADERS)
    got = (await receive(queue, 1))[0].headers
    assert got == HEADERS, got


async def bodies(channel):
    queue = await channel.declare_queue("bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        await send(channel, "bodies", b"x" * size)
        assert bodies_of(await receive(queue, 1)) == [b"x" * size]


async def channels(connection, channel):
    queue = await channel.declare_queue("channels")
    opened = [await connection.channel() for _ in range(100)]
    for each in opened:
        await send(each, "channels", b"x")
    assert len(await receive(queue, 100)) == 100


async def prefetch(channel):
    queue = await channel.declare_queue("prefetch")
    await send(channel, "prefetch", *(b"%d" % n for n in range(10)))
    await channel.set_qos(prefetch_count=3)
    messages = asyncio.Queue()
    await queue.consume(messages.put)
    got = [await messages.get() for _ in range(3)]
    assert (await queue.declare()).message_count == 7
    await got[-1].ack(multiple=True)
    assert [(await messages.get()).body for _ in range(3)] == [b"3", b"4", b"5"]


async def requeue(channel):
    queue = await channel.declare_queue("requeue")
    await send(channel, "requeue", b"1", b"2", b"3")
    got = [await queue.get() for _ in range(3)]
    await got[-1].nack(multiple=True, requeue=True)
    got = [await queue.get() for _ in range(3)]
    assert [(m.redelivered, m.body) for m in got] == [(True, b"1"), (True, b"2"), (True, b"3")], got
    await got[0].reject(requeue=False)
    await got[2].ack(multiple=True)
    assert (await queue.purge()).message_count == 0


async def cancel(channel):
    queue = await channel.declare_queue("cancel")
    tag = await queue.consume(lambda _message: sys.exit("delivered after the cancel"), no_ack=True)
    await queue.cancel(tag)
    await send(channel, "cancel", b"stays")
    assert (await queue.purge()).message_count == 1


async def broker_cancel(connection, channel):
    queue = await channel.declare_queue("cancelled")
    told = asyncio.get_running_loop().create_future()
    (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(told.set_result)
    await queue.consume(print, consumer_tag="reader")
    async with connection.channel() as other:
        await other.queue_delete("cancelled")
    assert (await told).consumer_tag == "reader"


async def dead_letter(channel):
    dead = await channel.declare_queue("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue = await channel.declare_queue("rejecting", arguments=arguments)
    await send(channel, "rejecting", b"bad")
    await (await queue.get()).reject(requeue=False)
    died = (await receive(dead, 1))[0].headers["x-death"][0]
    assert (died["queue"], died["reason"], died["count"]) == ("rejecting", "rejected", 1), died


async def message_ttl(channel):
    expired = await channel.declare_queue("expired")
    await channel.declare_queue("ttl", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"})
    await send(channel, "ttl", b"short", expiration=timedelta(milliseconds=50))
    assert (await receive(expired, 1))[0].headers["x-death"][0]["reason"] == "expired"


async def queue_ttl(channel):
    queue = await channel.declare_queue("leased", arguments={"x-expires": 100})
    try:
        while True:  # a bind does not renew the lease
            await queue.bind("amq.fanout")
            await asyncio.sleep(0.05)
    except ChannelClosed as error:
        assert "NOT_FOUND" in str(error), error


async def priority(channel):
    queue = await channel.declare_queue("priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        await send(channel, "priority", b"%d" % level, priority=level)
    assert bodies_of(await receive(queue, 3)) == [b"5", b"3", b"1"]


async def delayed(channel):
    arguments = {"x-delayed-type": "fanout"}
    exchange = await channel.declare_exchange("delayed", ExchangeType.X_DELAYED_MESSAGE, arguments=arguments)
    queue = await channel.declare_queue("delayed")
    await queue.bind(exchange)
    for body, delay in ((b"late", 1000), (b"soon", 1)):
        await exchange.publish(Message(body, headers={"x-delay": delay}), routing_key="")
    assert bodies_of(await receive(queue, 2)) == [b"soon", b"late"]


async def stream(channel, name, arguments):
    queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        await send(channel, name, b"%d" % n, headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    await channel.set_qos(prefetch_count=10)
    messages = asyncio.Queue()
    await queue.consume(messages.put, arguments=arguments)
    return [(await messages.get()).body for _ in range(5)]


async def stream_offset(channel):
    assert await stream(channel, "stream", {"x-stream-offset": 5}) == [b"5", b"6", b"7", b"8", b"9"]


async def stream_filter(channel):
    wanted = {"x-stream-offset": "first", "x-stream-filter": "odd"}
    assert await stream(channel, "filtered", wanted) == [b"1", b"3", b"5", b"7", b"9"]


async def policy(channel):
    queue = await channel.declare_queue("limited")
    await send(channel, "limited", b"1", b"2", b"3", b"4")
    assert (await queue.purge()).message_count == 2


async def reconnect():
    channel = await (await connect(robust=True, reconnect_interval=0.1)).channel()
    queue = await channel.declare_queue("kept", durable=True)
    await send(channel, "kept", b"kept", delivery_mode=DeliveryMode.PERSISTENT)
    messages = asyncio.Queue()
    await queue.consume(messages.put)
    await messages.get()
    print("ready", flush=True)  # the runner kills the broker; the robust connection restores the consumer
    message = await messages.get()
    assert (message.redelivered, message.body) == (True, b"kept"), message


async def write(channel):
    await channel.declare_queue("crossing")
    properties = {"content_type": "text/plain", "message_id": "7", "headers": CROSSING}
    await send(channel, "crossing", bytes(range(256)), **properties)


async def read(channel):
    message = (await receive(await channel.declare_queue("crossing"), 1))[0]
    assert (message.body, message.headers) == (bytes(range(256)), CROSSING), message
    assert (message.content_type, message.message_id) == ("text/plain", "7"), message


async def run(name):
    if name in ("bad-password", "bad-vhost", "heartbeat", "reconnect"):
        await globals()[name.replace("-", "_")]()
        return
    async with await connect() as connection:
        channel = await connection.channel()
        function = "connects" if name in ("connect", "tls", "client-certificate") else name.replace("-", "_")
        needs_connection = name in ("missing", "mandatory", "tx", "channels", "broker-cancel")
        await globals()[function](*([connection] if needs_connection else []), channel)


def main(name):
    if name == "version":
        print(aio_pika.__version__)
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        asyncio.run(run(name))
        print("pass")


main(*sys.argv[1:])
