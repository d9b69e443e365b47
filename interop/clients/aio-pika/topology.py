"""aio-pika: queues, exchanges and bindings."""

import asyncio

from aio_pika import ExchangeType, Message
from aio_pika.exceptions import ChannelNotFoundEntity
from common import hello, run, send, show_error


async def declare(_connection, channel):
    queue = await channel.declare_queue("declared", durable=True)
    exchange = await channel.declare_exchange("declared", ExchangeType.TOPIC, durable=True)
    await queue.bind(exchange, "#")
    await exchange.publish(Message(b"1"), "key")
    await channel.get_queue("declared", ensure=True)
    await channel.get_exchange("declared", ensure=True)
    print((await queue.purge()).message_count)
    await queue.unbind(exchange, "#")
    await exchange.delete()
    await queue.delete()


async def missing(connection, channel):
    try:
        await channel.declare_queue("missing", passive=True)
    except ChannelNotFoundEntity as error:
        show_error(error)
    await hello(await connection.channel())


async def inequivalent(_connection, channel):
    await channel.declare_queue("inequivalent", durable=True)
    await channel.declare_queue("inequivalent", durable=False)


async def float_argument(_connection, channel):
    await channel.declare_queue("float", arguments={"x-max-length": 10})
    await channel.declare_queue("float", arguments={"x-max-length": 10.0})


async def queue_ttl(_connection, channel):
    queue = await channel.declare_queue("leased", arguments={"x-expires": 100})
    while True:  # a bind does not renew the lease
        await queue.bind("amq.fanout")
        await asyncio.sleep(0.05)


async def policy(_connection, channel):
    queue = await channel.declare_queue("limited")
    await send(channel, "limited", b"1", b"2", b"3", b"4")
    print((await queue.purge()).message_count)


run(globals())
