"""pika's connections with callbacks: the scenarios of ../README.md with the adapter of the first argument.

An `await` is a callback of pika: the coroutine continues with what the callback gets.
"""

import asyncio
import os
import ssl
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker

NOT_OFFERED = {"float-argument": "pika does not send floats"}
HEADERS = {
    "text": "grüße",
    "yes": True,
    "int": -5,
    "long": 1 << 40,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "bytes": b"\x00\xff",
    "array": [1, "two", {"three": 3}],
    "table": {"a": {"b": "c"}},
}
CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}


class Callback:
    """An `await` ends when `start`'s argument is called; an error of a channel or connection is raised."""

    def __init__(self, start):
        self.start = start

    def __await__(self):
        arguments = yield self
        return arguments[0] if len(arguments) == 1 else arguments


class Loop:
    """pika's loop of one adapter, and the coroutine that runs on it."""

    def __init__(self, adapter):
        self.is_asyncio = adapter == "asyncio"
        self.ioloop = asyncio.new_event_loop() if self.is_asyncio else IOLoop()
        self.connection_class = AsyncioConnection if self.is_asyncio else SelectConnection
        self.waiting = None

    def run(self, coroutine):
        self.coroutine, self.error = coroutine, None
        self.ioloop.call_later(0, lambda: self.resume(None, lambda: coroutine.send(None)))
        self.ioloop.run_forever() if self.is_asyncio else self.ioloop.start()
        if self.error:
            raise self.error

    def resume(self, waiting, step):
        if waiting is not self.waiting:
            return  # the coroutine has continued because of an error
        try:
            self.waiting = step()
        except StopIteration:
            self.ioloop.stop()
        except BaseException as error:  # noqa: BLE001  # raised by run
            self.error = error
            self.ioloop.stop()
        else:
            awaited = self.waiting
            send = lambda *arguments: self.resume(awaited, lambda: self.coroutine.send(arguments))  # noqa: E731
            awaited.start(lambda *arguments: self.ioloop.call_later(0, lambda: send(*arguments)))

    def fail(self, _source, error):
        awaited = self.waiting
        self.ioloop.call_later(0, lambda: self.resume(awaited, lambda: self.coroutine.throw(error)))

    def sleep(self, seconds):
        return Callback(lambda done: self.ioloop.call_later(seconds, done))


def connect(**changes):
    parameters = pika.URLParameters(os.environ["AMQP_URL"])
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
        parameters.ssl_options = pika.SSLOptions(context, "localhost")
    for name, value in changes.items():
        setattr(parameters, name, value)
    return Callback(
        lambda done: LOOP.connection_class(
            parameters,
            on_open_callback=done,
            on_open_error_callback=LOOP.fail,
            on_close_callback=LOOP.fail,
            custom_ioloop=LOOP.ioloop,
        )
    )


def call(method, *args, **kwargs):
    return Callback(lambda done: method(*args, callback=done, **kwargs))


async def open_channel(connection):
    channel = await Callback(lambda done: connection.channel(on_open_callback=done))
    channel.add_on_close_callback(LOOP.fail)
    return channel


def send(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


async def receive(channel, queue, count, auto_ack=True, arguments=None):
    got = []

    def start(done):
        def on_message(_channel, method, properties, body):
            got.append((method, properties, body))
            if len(got) == count:
                done()

        channel.basic_consume(queue, on_message, auto_ack=auto_ack, arguments=arguments, consumer_tag=f"of {queue}")

    await Callback(start)
    await call(channel.basic_cancel, f"of {queue}")
    return got


def bodies_of(messages):
    return [body for _method, _properties, body in messages]


async def refused(code, text, call):
    try:
        await call
    except AMQPError as error:
        assert str(code) in str(error) and text in str(error), error
    else:
        raise AssertionError("not refused")


async def connects(channel):
    await call(channel.queue_declare, "hello")
    send(channel, "hello", b"Hello World!")
    assert bodies_of(await receive(channel, "hello", 1)) == [b"Hello World!"]


async def bad_password():
    await refused(403, "ACCESS_REFUSED", connect())


async def bad_vhost():
    await refused(530, "NOT_ALLOWED", connect())


async def heartbeat():
    connection = await connect(heartbeat=1)
    await LOOP.sleep(4)
    await connects(await open_channel(connection))


async def declare(channel):
    await call(channel.queue_declare, "declared", durable=True)
    await call(channel.exchange_declare, "declared", "topic", durable=True)
    await call(channel.queue_bind, "declared", "declared", "#")
    channel.basic_publish("declared", "key", b"1")
    await call(channel.queue_declare, "declared", passive=True)
    await call(channel.exchange_declare, "declared", passive=True)
    assert (await call(channel.queue_purge, "declared")).method.message_count == 1
    await call(channel.queue_unbind, "declared", "declared", "#")
    await call(channel.exchange_delete, "declared")
    await call(channel.queue_delete, "declared")


async def missing(channel):
    await refused(404, "NOT_FOUND - no queue 'missing'", call(channel.queue_declare, "missing", passive=True))
    await connects(await open_channel(channel.connection))


async def inequivalent(channel):
    await call(channel.queue_declare, "inequivalent", durable=True)
    await refused(406, "inequivalent arg 'durable'", call(channel.queue_declare, "inequivalent", durable=False))


async def work_queue(channel):
    await call(channel.queue_declare, "tasks", durable=True)
    await call(channel.basic_qos, prefetch_count=1)
    done = {"a": [], "b": []}

    def start(finish):
        def worker(name):
            def on_message(channel, method, _properties, body):
                done[name].append(body)
                channel.basic_ack(method.delivery_tag)
                if sum(map(len, done.values())) == 10:
                    finish()

            return on_message

        for name in done:
            channel.basic_consume("tasks", worker(name))
        send(channel, "tasks", *(b"%d" % n for n in range(10)), delivery_mode=2)

    await Callback(start)
    assert all(done.values()) and sorted(done["a"] + done["b"]) == [b"%d" % n for n in range(10)], done


async def exclusive_queue(channel):
    return (await call(channel.queue_declare, "", exclusive=True)).method.queue


async def patterns(channel, exchange, kind, bindings, published, expected):
    await call(channel.exchange_declare, exchange, kind)
    queue = await exclusive_queue(channel)
    for key in bindings:
        await call(channel.queue_bind, queue, exchange, key)
    for key in published:
        channel.basic_publish(exchange, key, key)
    assert [m.routing_key for m, _p, _b in await receive(channel, queue, len(expected))] == expected


async def publish_subscribe(channel):
    await call(channel.exchange_declare, "logs", "fanout")
    queues = [await exclusive_queue(channel), await exclusive_queue(channel)]
    for queue in queues:
        await call(channel.queue_bind, queue, "logs")
    channel.basic_publish("logs", "", b"log")
    assert [bodies_of(await receive(channel, queue, 1)) for queue in queues] == [[b"log"], [b"log"]]


async def routing(channel):
    published = ["info", "warning", "error"]
    await patterns(channel, "direct_logs", "direct", ["warning", "error"], published, ["warning", "error"])


async def topics(channel):
    keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"]
    await patterns(channel, "topic_logs", "topic", ["*.critical", "kern.#"], keys, [keys[0], keys[2], keys[3]])


async def rpc(channel, callback=None):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def on_request(channel, _method, properties, body):
        result = str(fibonacci(int(body))).encode()
        send(channel, properties.reply_to, result, correlation_id=properties.correlation_id)

    await call(channel.queue_declare, "rpc_queue")
    channel.basic_consume("rpc_queue", on_request, auto_ack=True)
    callback = callback or await exclusive_queue(channel)
    on_reply = {}
    await call(channel.basic_consume, callback, lambda _c, _m, p, body: on_reply["call"](p, body), auto_ack=True)

    def start(done):
        on_reply["call"] = lambda properties, body: done(properties.correlation_id, body)
        send(channel, "rpc_queue", b"15", reply_to=callback, correlation_id="1")

    assert await Callback(start) == ("1", b"610")


async def direct_reply_to(channel):
    await rpc(channel, "amq.rabbitmq.reply-to")


async def confirmed(channel, queue, count):
    """Send so many messages, and return when all are confirmed."""
    await call(channel.queue_declare, queue, durable=True)

    def start(done):
        def on_confirm(frame):
            assert isinstance(frame.method, pika.spec.Basic.Ack), frame
            if frame.method.delivery_tag == count:
                done()

        channel.confirm_delivery(on_confirm)
        send(channel, queue, *[b"safe"] * count, delivery_mode=2)

    await Callback(start)


async def confirm(channel):
    await confirmed(channel, "confirmed", 1)


async def confirm_batch(channel):
    await confirmed(channel, "batch", 1000)


async def mandatory(channel):
    def start(done):
        channel.add_on_return_callback(lambda _channel, method, _properties, body: done(method.reply_code, body))
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)

    assert await Callback(start) == (312, b"lost")


async def tx(channel):
    await call(channel.queue_declare, "tx")
    await call(channel.tx_select)
    send(channel, "tx", b"no")
    await call(channel.tx_rollback)
    send(channel, "tx", b"yes")
    await call(channel.tx_commit)
    assert bodies_of(await receive(channel, "tx", 1)) == [b"yes"]


async def headers(channel):
    await call(channel.queue_declare, "headers")
    send(channel, "headers", b"", headers=HEADERS)
    got = (await receive(channel, "headers", 1))[0][1].headers
    assert got == HEADERS, got


async def bodies(channel):
    await call(channel.queue_declare, "bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(channel, "bodies", b"x" * size)
        assert bodies_of(await receive(channel, "bodies", 1)) == [b"x" * size]


async def channels(channel):
    opened = [await open_channel(channel.connection) for _ in range(100)]
    await call(channel.queue_declare, "channels")
    for each in opened:
        send(each, "channels", b"x")
    assert len(await receive(channel, "channels", 100)) == 100


async def prefetch(channel):
    await call(channel.queue_declare, "prefetch")
    send(channel, "prefetch", *(b"%d" % n for n in range(10)))
    await call(channel.basic_qos, prefetch_count=3)
    got = await receive(channel, "prefetch", 3, auto_ack=False)
    assert (await call(channel.queue_declare, "prefetch", passive=True)).method.message_count == 7
    channel.basic_ack(got[-1][0].delivery_tag, multiple=True)
    assert bodies_of(await receive(channel, "prefetch", 3, auto_ack=False)) == [b"3", b"4", b"5"]


async def requeue(channel):
    await call(channel.queue_declare, "requeue")
    send(channel, "requeue", b"1", b"2", b"3")
    got = await receive(channel, "requeue", 3, auto_ack=False)
    channel.basic_nack(got[-1][0].delivery_tag, multiple=True, requeue=True)
    got = [(await call(channel.basic_get, "requeue"))[1:] for _ in range(3)]
    assert [(m.redelivered, body) for m, _p, body in got] == [(True, b"1"), (True, b"2"), (True, b"3")], got
    channel.basic_reject(got[0][0].delivery_tag, requeue=False)
    channel.basic_ack(got[2][0].delivery_tag, multiple=True)
    assert (await call(channel.queue_purge, "requeue")).method.message_count == 0


async def cancel(channel):
    await call(channel.queue_declare, "cancel")
    tag = channel.basic_consume("cancel", lambda *_: sys.exit("delivered after the cancel"), auto_ack=True)
    await call(channel.basic_cancel, tag)
    send(channel, "cancel", b"stays")
    assert (await call(channel.queue_purge, "cancel")).method.message_count == 1


async def broker_cancel(channel):
    await call(channel.queue_declare, "cancelled")
    await call(channel.basic_consume, "cancelled", lambda *_: None, consumer_tag="reader")
    other = await open_channel(channel.connection)

    def start(done):
        channel.add_on_cancel_callback(lambda frame: done(frame.method.consumer_tag))
        other.queue_delete("cancelled")

    assert await Callback(start) == "reader"


async def blocked(channel):
    connection = channel.connection

    def start(done):
        connection.add_on_connection_blocked_callback(lambda _c, frame: done(frame.method.reason))
        send(channel, "nowhere", b"held")

    assert await Callback(start) == "low on memory"
    print("ready", flush=True)  # the runner ends the alarm
    await Callback(lambda done: connection.add_on_connection_unblocked_callback(lambda *_: done()))


async def dead_letter(channel):
    await call(channel.queue_declare, "dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await call(channel.queue_declare, "rejecting", arguments=to_dead)
    send(channel, "rejecting", b"bad")
    method, _properties, _body = (await receive(channel, "rejecting", 1, auto_ack=False))[0]
    channel.basic_reject(method.delivery_tag, requeue=False)
    died = (await receive(channel, "dead", 1))[0][1].headers["x-death"][0]
    assert (died["queue"], died["reason"], died["count"]) == ("rejecting", "rejected", 1), died


async def message_ttl(channel):
    await call(channel.queue_declare, "expired")
    to_expired = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"}
    await call(channel.queue_declare, "ttl", arguments=to_expired)
    send(channel, "ttl", b"short", expiration="50")
    assert (await receive(channel, "expired", 1))[0][1].headers["x-death"][0]["reason"] == "expired"


async def queue_ttl(channel):
    await call(channel.queue_declare, "leased", arguments={"x-expires": 100})
    try:
        while True:  # a bind does not renew the lease
            await call(channel.queue_bind, "leased", "amq.fanout")
            await LOOP.sleep(0.05)
    except ChannelClosedByBroker as error:
        assert error.reply_code == 404, error


async def priority(channel):
    await call(channel.queue_declare, "priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        send(channel, "priority", str(level), priority=level)
    assert bodies_of(await receive(channel, "priority", 3)) == [b"5", b"3", b"1"]


async def delayed(channel):
    await call(channel.exchange_declare, "delayed", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    await call(channel.queue_declare, "delayed")
    await call(channel.queue_bind, "delayed", "delayed")
    for body, delay in ((b"late", 1000), (b"soon", 1)):
        channel.basic_publish("delayed", "", body, pika.BasicProperties(headers={"x-delay": delay}))
    assert bodies_of(await receive(channel, "delayed", 2)) == [b"soon", b"late"]


async def stream(channel, name, arguments, count):
    await call(channel.queue_declare, name, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        value = {"x-stream-filter-value": "odd" if n % 2 else "even"}
        send(channel, name, b"%d" % n, headers=value)
    await call(channel.basic_qos, prefetch_count=10)
    return bodies_of(await receive(channel, name, count, auto_ack=False, arguments=arguments))


async def stream_offset(channel):
    assert await stream(channel, "stream", {"x-stream-offset": 5}, 5) == [b"5", b"6", b"7", b"8", b"9"]


async def stream_filter(channel):
    wanted = {"x-stream-offset": "first", "x-stream-filter": "odd"}
    assert await stream(channel, "filtered", wanted, 5) == [b"1", b"3", b"5", b"7", b"9"]


async def policy(channel):
    await call(channel.queue_declare, "limited")
    send(channel, "limited", b"1", b"2", b"3", b"4")
    assert (await call(channel.queue_purge, "limited")).method.message_count == 2


async def reconnect(channel):
    await confirmed(channel, "kept", 1)
    await receive(channel, "kept", 1, auto_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        await Callback(lambda _done: None)
    except AMQPError:
        connection = None
    while connection is None:
        try:
            connection = await connect()
        except AMQPConnectionError:
            await LOOP.sleep(0.1)
    assert bodies_of(await receive(await open_channel(connection), "kept", 1)) == [b"safe"]


async def write(channel):
    await call(channel.queue_declare, "crossing")
    send(channel, "crossing", bytes(range(256)), content_type="text/plain", message_id="7", headers=CROSSING)
    await call(channel.queue_declare, "crossing", passive=True)


async def read(channel):
    _method, properties, body = (await receive(channel, "crossing", 1))[0]
    assert (body, properties.headers) == (bytes(range(256)), CROSSING), properties
    assert (properties.content_type, properties.message_id) == ("text/plain", "7"), properties


async def run(name):
    if name in ("bad-password", "bad-vhost", "heartbeat"):
        await globals()[name.replace("-", "_")]()
    else:
        channel = await open_channel(await connect())
        scenario = connects if name in ("connect", "tls", "client-certificate") else globals()[name.replace("-", "_")]
        await scenario(channel)


def main(name):
    if name == "version":
        print(pika.__version__)
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        LOOP.run(run(name))
        print("pass")


LOOP = Loop(sys.argv[1])
main(sys.argv[2])
