"""pika's connections with callbacks: queues, exchanges and bindings."""

from common import call, hello, open_channel, run, send
from loop import LOOP
from pika.exceptions import ChannelClosedByBroker


async def declare(channel):
    await call(channel.queue_declare, "declared", durable=True)
    await call(channel.exchange_declare, "declared", "topic", durable=True)
    await call(channel.queue_bind, "declared", "declared", "#")
    channel.basic_publish("declared", "key", b"1")
    await call(channel.queue_declare, "declared", passive=True)
    await call(channel.exchange_declare, "declared", passive=True)
    print((await call(channel.queue_purge, "declared")).method.message_count)
    await call(channel.queue_unbind, "declared", "declared", "#")
    await call(channel.exchange_delete, "declared")
    await call(channel.queue_delete, "declared")


async def missing(channel):
    try:
        await call(channel.queue_declare, "missing", passive=True)
    except ChannelClosedByBroker as error:
        print(error)
    await hello(await open_channel(channel.connection))


async def inequivalent(channel):
    await call(channel.queue_declare, "inequivalent", durable=True)
    await call(channel.queue_declare, "inequivalent", durable=False)


async def float_argument(_channel):
    print("not offered: pika does not send floats")


async def queue_ttl(channel):
    await call(channel.queue_declare, "leased", arguments={"x-expires": 100})
    while True:  # a bind does not renew the lease
        await call(channel.queue_bind, "leased", "amq.fanout")
        await LOOP.sleep(0.05)


async def policy(channel):
    await call(channel.queue_declare, "limited")
    send(channel, "limited", b"1", b"2", b"3", b"4")
    print((await call(channel.queue_purge, "limited")).method.message_count)


run(globals())
