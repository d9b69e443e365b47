"""aiormq: acks, dead letters, priorities and delays."""

import asyncio
import sys

from aiormq import spec
from common import consume, receive, run, send, show


async def prefetch(channel):
    await channel.queue_declare("prefetch")
    await send(channel, "prefetch", *(b"%d" % n for n in range(10)))
    await channel.basic_qos(prefetch_count=3)
    messages = await consume(channel, "prefetch")
    got = [await messages.get() for _ in range(3)]
    print((await channel.queue_declare("prefetch", passive=True)).message_count)
    await channel.basic_ack(got[-1].delivery.delivery_tag, multiple=True)
    show([await messages.get() for _ in range(3)])


async def requeue(channel):
    await channel.queue_declare("requeue")
    await send(channel, "requeue", b"1", b"2", b"3")
    got = [await channel.basic_get("requeue") for _ in range(3)]
    await channel.basic_nack(got[-1].delivery.delivery_tag, multiple=True, requeue=True)
    got = [await channel.basic_get("requeue") for _ in range(3)]
    for message in got:
        print(message.body.decode(), str(message.delivery.redelivered).lower())
    await channel.basic_reject(got[0].delivery.delivery_tag, requeue=False)
    await channel.basic_ack(got[2].delivery.delivery_tag, multiple=True)
    print((await channel.queue_purge("requeue")).message_count)


async def cancel(channel):
    await channel.queue_declare("cancel")
    await channel.basic_consume("cancel", sys.exit, no_ack=True, consumer_tag="reader")
    await channel.basic_cancel("reader")
    await send(channel, "cancel", b"stays")
    print((await channel.queue_purge("cancel")).message_count)


async def broker_cancel(channel):
    told = asyncio.get_running_loop().create_future()
    channel.on_consumer_cancel_callbacks.add(told.set_result)
    await channel.queue_declare("cancelled")
    await channel.basic_consume("cancelled", print, consumer_tag="cancelled")
    await (await channel.connection.channel()).queue_delete("cancelled")
    print((await told).consumer_tag)


async def declare_dead_lettering(channel, queue, target):
    await channel.queue_declare(target)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    await channel.queue_declare(queue, arguments=arguments)


async def show_reason(channel, queue):
    [message] = await receive(channel, queue)
    print(message.header.properties.headers["x-death"][0]["reason"])


async def dead_letter(channel):
    await declare_dead_lettering(channel, "rejecting", "dead")
    await send(channel, "rejecting", b"bad")
    message = await channel.basic_get("rejecting")
    await channel.basic_reject(message.delivery.delivery_tag, requeue=False)
    await show_reason(channel, "dead")


async def message_ttl(channel):
    await declare_dead_lettering(channel, "ttl", "expired")
    await send(channel, "ttl", b"short", expiration="50")
    await show_reason(channel, "expired")


async def priority(channel):
    await channel.queue_declare("priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        await send(channel, "priority", b"%d" % level, priority=level)
    show(await receive(channel, "priority", 3))


async def delayed(channel):
    arguments = {"x-delayed-type": "fanout"}
    await channel.exchange_declare("delayed", exchange_type="x-delayed-message", arguments=arguments)
    await channel.queue_declare("delayed")
    await channel.queue_bind("delayed", "delayed")
    for body, delay in ((b"late", 1000), (b"soon", 1)):
        properties = spec.Basic.Properties(headers={"x-delay": delay})
        await channel.basic_publish(body, exchange="delayed", properties=properties)
    show(await receive(channel, "delayed", 2))


run(globals())
