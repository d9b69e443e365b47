"""pika's connections with callbacks: confirms, returns, transactions, headers and bodies."""

from datetime import UTC, datetime
from decimal import Decimal

from common import call, publish_confirmed, receive, run, send, show
from loop import Callback

CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}
HEADERS = CROSSING | {
    "long": 1 << 40,
    "nothing": None,
    "decimal": Decimal("-3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "bytes": b"\x00\xff",
    "deep": [{"a": {"b": ["c"]}}],
}


async def confirm(channel):
    await publish_confirmed(channel, "confirmed", b"safe")
    print((await call(channel.queue_purge, "confirmed")).method.message_count)


async def confirm_batch(channel):
    await publish_confirmed(channel, "batch", *(b"%d" % n for n in range(1000)))
    print((await call(channel.queue_purge, "batch")).method.message_count)


async def mandatory(channel):
    def start(done):
        channel.add_on_return_callback(lambda _channel, method, _properties, _body: done(method.reply_code))
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)

    print(await Callback(start))


async def tx(channel):
    await call(channel.queue_declare, "tx")
    await call(channel.tx_select)
    send(channel, "tx", b"no")
    await call(channel.tx_rollback)
    send(channel, "tx", b"yes")
    await call(channel.tx_commit)
    show(await receive(channel, "tx"))


async def headers(channel):
    await call(channel.queue_declare, "headers")
    send(channel, "headers", b"", headers=HEADERS)
    [(_method, properties, _body)] = await receive(channel, "headers")
    print("pass" if properties.headers == HEADERS else properties.headers)


async def bodies(channel):
    await call(channel.queue_declare, "bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(channel, "bodies", b"x" * size)
        [(_method, _properties, body)] = await receive(channel, "bodies")
        print(body.count(b"x"))


async def write(channel):
    await call(channel.queue_declare, "crossing")
    send(channel, "crossing", bytes(range(256)), content_type="text/plain", message_id="7", headers=CROSSING)
    await call(channel.queue_declare, "crossing", passive=True)
    print("pass")


async def read(channel):
    [(_method, properties, body)] = await receive(channel, "crossing")
    assert (body, properties.headers) == (bytes(range(256)), CROSSING), properties
    assert (properties.content_type, properties.message_id) == ("text/plain", "7"), properties
    print("pass")


run(globals())
