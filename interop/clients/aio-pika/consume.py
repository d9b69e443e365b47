"""aio-pika: acks, dead letters, priorities and delays."""

import asyncio
import sys
from datetime import timedelta

from aio_pika import ExchangeType, Message
from common import receive, run, send, show


async def prefetch(_connection, channel):
    queue = await channel.declare_queue("prefetch")
    await send(channel, "prefetch", *(b"%d" % n for n in range(10)))
    await channel.set_qos(prefetch_count=3)
    messages = asyncio.Queue()
    await queue.consume(messages.put)
    got = [await messages.get() for _ in range(3)]
    print((await queue.declare()).message_count)
    await got[-1].ack(multiple=True)
    show([await messages.get() for _ in range(3)])


async def requeue(_connection, channel):
    queue = await channel.declare_queue("requeue")
    await send(channel, "requeue", b"1", b"2", b"3")
    got = [await queue.get() for _ in range(3)]
    await got[-1].nack(multiple=True, requeue=True)
    got = [await queue.get() for _ in range(3)]
    for message in got:
        print(message.body.decode(), str(message.redelivered).lower())
    await got[0].reject(requeue=False)
    await got[2].ack(multiple=True)
    print((await queue.purge()).message_count)


async def cancel(_connection, channel):
    queue = await channel.declare_queue("cancel")
    tag = await queue.consume(lambda _message: sys.exit("delivered after the cancel"), no_ack=True)
    await queue.cancel(tag)
    await send(channel, "cancel", b"stays")
    print((await queue.purge()).message_count)


async def broker_cancel(connection, channel):
    queue = await channel.declare_queue("cancelled")
    told = asyncio.get_running_loop().create_future()
    (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(told.set_result)
    await queue.consume(print, consumer_tag="cancelled")
    async with connection.channel() as other:
        await other.queue_delete("cancelled")
    print((await told).consumer_tag)


async def declare_dead_lettering(channel, name, target):
    dead = await channel.declare_queue(target)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    return await channel.declare_queue(name, arguments=arguments), dead


async def show_reason(queue):
    [message] = await receive(queue)
    print(message.headers["x-death"][0]["reason"])


async def dead_letter(_connection, channel):
    queue, dead = await declare_dead_lettering(channel, "rejecting", "dead")
    await send(channel, "rejecting", b"bad")
    await (await queue.get()).reject(requeue=False)
    await show_reason(dead)


async def message_ttl(_connection, channel):
    _queue, expired = await declare_dead_lettering(channel, "ttl", "expired")
    await send(channel, "ttl", b"short", expiration=timedelta(milliseconds=50))
    await show_reason(expired)


async def priority(_connection, channel):
    queue = await channel.declare_queue("priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        await send(channel, "priority", b"%d" % level, priority=level)
    show(await receive(queue, 3))


async def delayed(_connection, channel):
    arguments = {"x-delayed-type": "fanout"}
    exchange = await channel.declare_exchange("delayed", ExchangeType.X_DELAYED_MESSAGE, arguments=arguments)
    queue = await channel.declare_queue("delayed")
    await queue.bind(exchange)
    for body, delay in ((b"late", 1000), (b"soon", 1)):
        await exchange.publish(Message(body, headers={"x-delay": delay}), routing_key="")
    show(await receive(queue, 2))


run(globals())
