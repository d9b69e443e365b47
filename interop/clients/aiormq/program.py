"""aiormq: the scenarios of ../README.md."""

import asyncio
import os
import ssl
import sys
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version

import aiormq
from aiormq import AMQPError, spec
from aiormq.exceptions import ChannelNotFoundEntity, PublishError
from yarl import URL

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
NOT_OFFERED = {"blocked": "aiormq has no callback for connection.blocked"}


async def connect(**query):
    url = URL(os.environ["AMQP_URL"]).update_query(query)
    context = None
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
    connection = aiormq.Connection(url, context=context)
    await connection.connect()
    return connection


async def send(channel, queue, *bodies, **properties):
    for body in bodies:
        await channel.basic_publish(body, routing_key=queue, properties=spec.Basic.Properties(**properties))


async def consume(channel, queue, **options):
    messages = asyncio.Queue()
    await channel.basic_consume(queue, messages.put, **options)
    return messages


async def receive(channel, queue, count):
    messages = asyncio.Queue()
    started = await channel.basic_consume(queue, messages.put, no_ack=True)
    got = [await messages.get() for _ in range(count)]
    await channel.basic_cancel(started.consumer_tag)
    return got


def bodies_of(messages):
    return [bytes(message.body) for message in messages]


async def refused(text, call):
    try:
        await call
    except (AMQPError, ConnectionError) as error:  # a class for each reply code
        assert text in str(error), error
    else:
        raise AssertionError("not refused")


async def connects(connection):
    channel = await connection.channel()
    await channel.queue_declare("hello")
    await send(channel, "hello", b"Hello World!")
    assert bodies_of(await receive(channel, "hello", 1)) == [b"Hello World!"]


async def bad_password():
    await refused("ACCESS_REFUSED", connect())


async def bad_vhost():
    await refused("Connection.Close", connect())  # aiormq does not show the text


async def heartbeat():
    connection = await connect(heartbeat=1)
    await asyncio.sleep(4)
    await connects(connection)


async def declare(connection):
    channel = await connection.channel()
    await channel.queue_declare("declared", durable=True)
    await channel.exchange_declare("declared", exchange_type="topic", durable=True)
    await channel.queue_bind("declared", "declared", "#")
    await channel.basic_publish(b"1", exchange="declared", routing_key="key")
    await channel.queue_declare("declared", passive=True)
    await channel.exchange_declare("declared", passive=True)
    assert (await channel.queue_purge("declared")).message_count == 1
    await channel.queue_unbind("declared", "declared", "#")
    await channel.exchange_delete("declared")
    await channel.queue_delete("declared")


async def missing(connection):
    channel = await connection.channel()
    await refused("NOT_FOUND - no queue 'missing'", channel.queue_declare("missing", passive=True))
    await connects(connection)


async def inequivalent(connection):
    channel = await connection.channel()
    await channel.queue_declare("inequivalent", durable=True)
    await refused("PRECONDITION_FAILED - inequivalent arg 'durable'", channel.queue_declare("inequivalent"))


async def float_argument(connection):
    channel = await connection.channel()
    await channel.queue_declare("float", arguments={"x-max-length": 10})
    again = channel.queue_declare("float", arguments={"x-max-length": 10.0})
    await refused("PRECONDITION_FAILED - inequivalent arg 'x-max-length'", again)


async def work_queue(connection):
    channel = await connection.channel()
    await channel.queue_declare("tasks", durable=True)
    await channel.basic_qos(prefetch_count=1)
    messages = await consume(channel, "tasks", consumer_tag="a")
    await channel.basic_consume("tasks", messages.put, consumer_tag="b")
    await send(channel, "tasks", *(b"%d" % n for n in range(10)), delivery_mode=2)
    done, workers = [], set()
    while len(done) < 10:
        message = await messages.get()
        done.append(bytes(message.body))
        workers.add(message.delivery.consumer_tag)
        await channel.basic_ack(message.delivery.delivery_tag)
    assert sorted(done) == [b"%d" % n for n in range(10)] and workers == {"a", "b"}, (done, workers)


async def publish_subscribe(connection):
    channel = await connection.channel()
    await channel.exchange_declare("logs", exchange_type="fanout")
    queues = [(await channel.queue_declare(exclusive=True)).queue for _subscriber in range(2)]
    for queue in queues:
        await channel.queue_bind(queue, "logs")
    await channel.basic_publish(b"log", exchange="logs")
    assert [bodies_of(await receive(channel, queue, 1)) for queue in queues] == [[b"log"], [b"log"]]


async def patterns(connection, exchange, kind, bindings, published, expected):
    channel = await connection.channel()
    await channel.exchange_declare(exchange, exchange_type=kind)
    queue = (await channel.queue_declare(exclusive=True)).queue
    for key in bindings:
        await channel.queue_bind(queue, exchange, key)
    for key in published:
        await channel.basic_publish(key.encode(), exchange=exchange, routing_key=key)
    got = [message.delivery.routing_key for message in await receive(channel, queue, len(expected))]
    assert got == expected, got


async def routing(connection):
    levels = ["info", "warning", "error"]
    await patterns(connection, "direct_logs", "direct", levels[1:], levels, levels[1:])


async def topics(connection):
    keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"]
    await patterns(connection, "topic_logs", "topic", ["*.critical", "kern.#"], keys, [keys[0], keys[2], keys[3]])


async def ask_fibonacci(channel, callback):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    async def on_request(message):
        request = message.header.properties
        result = str(fibonacci(int(message.body))).encode()
        await send(channel, request.reply_to, result, correlation_id=request.correlation_id)

    await channel.queue_declare("rpc_queue")
    await channel.basic_consume("rpc_queue", on_request, no_ack=True)
    replies = await consume(channel, callback, no_ack=True)
    await send(channel, "rpc_queue", b"15", reply_to=callback, correlation_id="1")
    reply = await replies.get()
    assert (reply.header.properties.correlation_id, bytes(reply.body)) == ("1", b"610"), reply


async def rpc(connection):
    channel = await connection.channel()
    await ask_fibonacci(channel, (await channel.queue_declare(exclusive=True)).queue)


async def direct_reply_to(connection):
    await ask_fibonacci(await connection.channel(), "amq.rabbitmq.reply-to")


async def confirm(connection):
    channel = await connection.channel()
    await channel.queue_declare("confirmed", durable=True)
    properties = spec.Basic.Properties(delivery_mode=2)
    confirmed = await channel.basic_publish(b"safe", routing_key="confirmed", properties=properties)
    assert isinstance(confirmed, spec.Basic.Ack), confirmed


async def confirm_batch(connection):
    channel = await connection.channel()
    await channel.queue_declare("batch", durable=True)
    await asyncio.gather(*(send(channel, "batch", b"%d" % n, delivery_mode=2) for n in range(1000)))
    assert (await channel.queue_purge("batch")).message_count == 1000


async def mandatory(connection):
    channel = await connection.channel(on_return_raises=True)
    try:
        await channel.basic_publish(b"lost", routing_key="nowhere", mandatory=True)
    except PublishError as error:
        assert error.message.delivery.reply_code == 312, error.message
    else:
        raise AssertionError("not returned")


async def tx(connection):
    channel = await connection.channel(publisher_confirms=False)
    await channel.queue_declare("tx")
    await channel.tx_select()
    await send(channel, "tx", b"no")
    await channel.tx_rollback()
    await send(channel, "tx", b"yes")
    await channel.tx_commit()
    assert bodies_of(await receive(channel, "tx", 1)) == [b"yes"]


async def headers(connection):
    channel = await connection.channel()
    await channel.queue_declare("headers")
    await send(channel, "headers", b"", headers=HEADERS)
    got = (await receive(channel, "headers", 1))[0].header.properties.headers
    assert got == HEADERS, got


async def bodies(connection):
    channel = await connection.channel()
    await channel.queue_declare("bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        await send(channel, "bodies", b"x" * size)
        assert bodies_of(await receive(channel, "bodies", 1)) == [b"x" * size]


async def channels(connection):
    opened = [await connection.channel() for _ in range(100)]
    await opened[0].queue_declare("channels")
    for each in opened:
        await send(each, "channels", b"x")
    assert len(await receive(opened[0], "channels", 100)) == 100


async def prefetch(connection):
    channel = await connection.channel()
    await channel.queue_declare("prefetch")
    await send(channel, "prefetch", *(b"%d" % n for n in range(10)))
    await channel.basic_qos(prefetch_count=3)
    messages = await consume(channel, "prefetch")
    got = [await messages.get() for _ in range(3)]
    assert (await channel.queue_declare("prefetch", passive=True)).message_count == 7
    await channel.basic_ack(got[-1].delivery.delivery_tag, multiple=True)
    assert bodies_of([await messages.get() for _ in range(3)]) == [b"3", b"4", b"5"]


async def requeue(connection):
    channel = await connection.channel()
    await channel.queue_declare("requeue")
    await send(channel, "requeue", b"1", b"2", b"3")
    got = [await channel.basic_get("requeue") for _ in range(3)]
    await channel.basic_nack(got[-1].delivery.delivery_tag, multiple=True, requeue=True)
    got = [await channel.basic_get("requeue") for _ in range(3)]
    assert bodies_of(got) == [b"1", b"2", b"3"] and all(message.delivery.redelivered for message in got), got
    await channel.basic_reject(got[0].delivery.delivery_tag, requeue=False)
    await channel.basic_ack(got[2].delivery.delivery_tag, multiple=True)
    assert (await channel.queue_purge("requeue")).message_count == 0


async def cancel(connection):
    channel = await connection.channel()
    await channel.queue_declare("cancel")
    await channel.basic_consume("cancel", sys.exit, no_ack=True, consumer_tag="reader")
    await channel.basic_cancel("reader")
    await send(channel, "cancel", b"stays")
    assert (await channel.queue_purge("cancel")).message_count == 1


async def broker_cancel(connection):
    channel = await connection.channel()
    told = asyncio.get_running_loop().create_future()
    channel.on_consumer_cancel_callbacks.add(told.set_result)
    await channel.queue_declare("cancelled")
    await channel.basic_consume("cancelled", print, consumer_tag="reader")
    await (await connection.channel()).queue_delete("cancelled")
    assert (await told).consumer_tag == "reader"


def dead_lettering(queue):
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


async def reason_of_death(channel, queue):
    return (await receive(channel, queue, 1))[0].header.properties.headers["x-death"][0]["reason"]


async def dead_letter(connection):
    channel = await connection.channel()
    await channel.queue_declare("dead")
    await channel.queue_declare("rejecting", arguments=dead_lettering("dead"))
    await send(channel, "rejecting", b"bad")
    await channel.basic_reject((await channel.basic_get("rejecting")).delivery.delivery_tag, requeue=False)
    assert await reason_of_death(channel, "dead") == "rejected"


async def message_ttl(connection):
    channel = await connection.channel()
    await channel.queue_declare("expired")
    await channel.queue_declare("ttl", arguments=dead_lettering("expired"))
    await send(channel, "ttl", b"short", expiration="50")
    assert await reason_of_death(channel, "expired") == "expired"


async def queue_ttl(connection):
    channel = await connection.channel()
    await channel.queue_declare("leased", arguments={"x-expires": 100})
    try:
        while True:  # a bind does not renew the lease
            await channel.queue_bind("leased", "amq.fanout")
            await asyncio.sleep(0.05)
    except ChannelNotFoundEntity:
        pass


async def priority(connection):
    channel = await connection.channel()
    await channel.queue_declare("priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        await send(channel, "priority", b"%d" % level, priority=level)
    assert bodies_of(await receive(channel, "priority", 3)) == [b"5", b"3", b"1"]


async def delayed(connection):
    channel = await connection.channel()
    arguments = {"x-delayed-type": "fanout"}
    await channel.exchange_declare("delayed", exchange_type="x-delayed-message", arguments=arguments)
    await channel.queue_declare("delayed")
    await channel.queue_bind("delayed", "delayed")
    for body, delay in ((b"late", 1000), (b"soon", 1)):
        properties = spec.Basic.Properties(headers={"x-delay": delay})
        await channel.basic_publish(body, exchange="delayed", properties=properties)
    assert bodies_of(await receive(channel, "delayed", 2)) == [b"soon", b"late"]


async def stream(connection, name, arguments):
    channel = await connection.channel()
    await channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        await send(channel, name, b"%d" % n, headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    await channel.basic_qos(prefetch_count=10)
    messages = await consume(channel, name, arguments=arguments)
    return bodies_of([await messages.get() for _ in range(5)])


async def stream_offset(connection):
    assert await stream(connection, "stream", {"x-stream-offset": 5}) == [b"5", b"6", b"7", b"8", b"9"]


async def stream_filter(connection):
    wanted = {"x-stream-offset": "first", "x-stream-filter": "odd"}
    assert await stream(connection, "filtered", wanted) == [b"1", b"3", b"5", b"7", b"9"]


async def policy(connection):
    channel = await connection.channel()
    await channel.queue_declare("limited")
    await send(channel, "limited", b"1", b"2", b"3", b"4")
    assert (await channel.queue_purge("limited")).message_count == 2


async def reconnect():
    connection = await connect()
    channel = await connection.channel()
    await channel.queue_declare("kept", durable=True)
    await send(channel, "kept", b"kept", delivery_mode=2)
    await channel.basic_get("kept")
    print("ready", flush=True)  # the runner kills the broker and starts it again
    await asyncio.wait([connection.closing])
    while True:
        try:
            connection = await connect()
            break
        except (AMQPError, OSError):
            await asyncio.sleep(0.1)
    assert bodies_of(await receive(await connection.channel(), "kept", 1)) == [b"kept"]


async def write(connection):
    channel = await connection.channel()
    await channel.queue_declare("crossing")
    properties = {"content_type": "text/plain", "message_id": "7", "headers": CROSSING}
    await send(channel, "crossing", bytes(range(256)), **properties)


async def read(connection):
    message = (await receive(await connection.channel(), "crossing", 1))[0]
    got = message.header.properties
    assert (bytes(message.body), got.headers) == (bytes(range(256)), CROSSING), got.headers
    assert (got.content_type, got.message_id) == ("text/plain", "7"), got


async def run(name):
    if name in ("bad-password", "bad-vhost", "heartbeat", "reconnect"):
        await globals()[name.replace("-", "_")]()
        return
    connection = await connect()
    function = "connects" if name in ("connect", "tls", "client-certificate") else name.replace("-", "_")
    await globals()[function](connection)
    await connection.close()


def main(name):
    if name == "version":
        print(version("aiormq"))
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        asyncio.run(run(name))
        print("pass")


main(*sys.argv[1:])
