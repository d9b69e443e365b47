"""aio-pika: confirms, returns, transactions, headers and bodies."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

from aio_pika import DeliveryMode, Message
from aio_pika.exceptions import DeliveryError
from common import receive, run, send, show

CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}
HEADERS = CROSSING | {
    "long": 1 << 40,
    "double": 1.5,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "deep": [{"a": {"b": ["c"]}}],
}


async def confirm(_connection, channel):
    queue = await channel.declare_queue("confirmed", durable=True)
    await send(channel, "confirmed", b"safe", delivery_mode=DeliveryMode.PERSISTENT)  # returns when it is confirmed
    print((await queue.purge()).message_count)


async def confirm_batch(_connection, channel):
    queue = await channel.declare_queue("batch", durable=True)
    await asyncio.gather(*(send(channel, "batch", b"%d" % n, delivery_mode=2) for n in range(1000)))
    print((await queue.purge()).message_count)


async def mandatory(connection, _channel):
    channel = await connection.channel(on_return_raises=True)
    try:
        await channel.default_exchange.publish(Message(b"lost"), "nowhere", mandatory=True)
    except DeliveryError as error:
        print(error.message.delivery.reply_code)


async def tx(connection, _channel):
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue("tx")
    transaction = channel.transaction()
    await transaction.select()
    await send(channel, "tx", b"no")
    await transaction.rollback()
    await send(channel, "tx", b"yes")
    await transaction.commit()
    show(await receive(queue))


async def headers(_connection, channel):
    queue = await channel.declare_queue("headers")
    await send(channel, "headers", b"", headers=HEADERS)
    [message] = await receive(queue)
    print("pass" if message.headers == HEADERS else message.headers)


async def bodies(_connection, channel):
    queue = await channel.declare_queue("bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        await send(channel, "bodies", b"x" * size)
        [message] = await receive(queue)
        print(message.body.count(b"x"))


async def write(_connection, channel):
    await channel.declare_queue("crossing")
    properties = {"content_type": "text/plain", "message_id": "7", "headers": CROSSING}
    await send(channel, "crossing", bytes(range(256)), **properties)
    print("pass")


async def read(_connection, channel):
    [message] = await receive(await channel.declare_queue("crossing"))
    assert (message.body, message.headers) == (bytes(range(256)), CROSSING), message
    assert (message.content_type, message.message_id) == ("text/plain", "7"), message
    print("pass")


run(globals())
