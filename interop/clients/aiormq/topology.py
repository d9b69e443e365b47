"""aiormq: queues, exchanges and bindings."""

import asyncio

from aiormq.exceptions import ChannelNotFoundEntity
from common import hello, run, send, show_error


async def declare(channel):
    await channel.queue_declare("declared", durable=True)
    await channel.exchange_declare("declared", exchange_type="topic", durable=True)
    await channel.queue_bind("declared", "declared", "#")
    await channel.basic_publish(b"1", exchange="declared", routing_key="key")
    await channel.queue_declare("declared", passive=True)
    await channel.exchange_declare("declared", passive=True)
    print((await channel.queue_purge("declared")).message_count)
    await channel.queue_unbind("declared", "declared", "#")
    await channel.exchange_delete("declared")
    await channel.queue_delete("declared")


async def missing(channel):
    try:
        await channel.queue_declare("missing", passive=True)
    except ChannelNotFoundEntity as error:
        show_error(error)
    await hello(await channel.connection.channel())


async def inequivalent(channel):
    await channel.queue_declare("inequivalent", durable=True)
    await channel.queue_declare("inequivalent")


async def float_argument(channel):
    await channel.queue_declare("float", arguments={"x-max-length": 10})
    await channel.queue_declare("float", arguments={"x-max-length": 10.0})


async def queue_ttl(channel):
    await channel.queue_declare("leased", arguments={"x-expires": 100})
    while True:  # a bind does not renew the lease
        await channel.queue_bind("leased", "amq.fanout")
        await asyncio.sleep(0.05)


async def policy(channel):
    await channel.queue_declare("limited")
    await send(channel, "limited", b"1", b"2", b"3", b"4")
    print((await channel.queue_purge("limited")).message_count)


run(globals())
