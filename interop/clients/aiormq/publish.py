"""aiormq: confirms, returns, transactions, headers and bodies."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

from aiormq.exceptions import PublishError
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


async def confirm(channel):
    await channel.queue_declare("confirmed", durable=True)
    await send(channel, "confirmed", b"safe", delivery_mode=2)  # returns when it is confirmed
    print((await channel.queue_purge("confirmed")).message_count)


async def confirm_batch(channel):
    await channel.queue_declare("batch", durable=True)
    await asyncio.gather(*(send(channel, "batch", b"%d" % n, delivery_mode=2) for n in range(1000)))
    print((await channel.queue_purge("batch")).message_count)


async def mandatory(channel):
    raising = await channel.connection.channel(on_return_raises=True)
    try:
        await raising.basic_publish(b"lost", routing_key="nowhere", mandatory=True)
    except PublishError as error:
        print(error.message.delivery.reply_code)


async def tx(channel):
    channel = await channel.connection.channel(publisher_confirms=False)
    await channel.queue_declare("tx")
    await channel.tx_select()
    await send(channel, "tx", b"no")
    await channel.tx_rollback()
    await send(channel, "tx", b"yes")
    await channel.tx_commit()
    show(await receive(channel, "tx"))


async def headers(channel):
    await channel.queue_declare("headers")
    await send(channel, "headers", b"", headers=HEADERS)
    [message] = await receive(channel, "headers")
    got = message.header.properties.headers
    print("pass" if got == HEADERS else got)


async def bodies(channel):
    await channel.queue_declare("bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        await send(channel, "bodies", b"x" * size)
        [message] = await receive(channel, "bodies")
        print(message.body.count(b"x"))


async def write(channel):
    await channel.queue_declare("crossing")
    properties = {"content_type": "text/plain", "message_id": "7", "headers": CROSSING}
    await send(channel, "crossing", bytes(range(256)), **properties)
    print("pass")


async def read(channel):
    [message] = await receive(channel, "crossing")
    got = message.header.properties
    assert (bytes(message.body), got.headers) == (bytes(range(256)), CROSSING), got.headers
    assert (got.content_type, got.message_id) == ("text/plain", "7"), got
    print("pass")


run(globals())
