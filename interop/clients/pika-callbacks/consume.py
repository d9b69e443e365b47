"""pika's connections with callbacks: acks, dead letters, priorities and delays."""

import sys

import pika
from common import call, open_channel, receive, run, send, show
from loop import Callback


async def prefetch(channel):
    await call(channel.queue_declare, "prefetch")
    send(channel, "prefetch", *(b"%d" % n for n in range(10)))
    await call(channel.basic_qos, prefetch_count=3)
    got = await receive(channel, "prefetch", 3, auto_ack=False)
    print((await call(channel.queue_declare, "prefetch", passive=True)).method.message_count)
    channel.basic_ack(got[-1][0].delivery_tag, multiple=True)
    show(await receive(channel, "prefetch", 3, auto_ack=False))


async def requeue(channel):
    await call(channel.queue_declare, "requeue")
    send(channel, "requeue", b"1", b"2", b"3")
    got = await receive(channel, "requeue", 3, auto_ack=False)
    channel.basic_nack(got[-1][0].delivery_tag, multiple=True, requeue=True)
    got = [(await call(channel.basic_get, "requeue"))[1:] for _ in range(3)]
    for method, _properties, body in got:
        print(body.decode(), str(method.redelivered).lower())
    channel.basic_reject(got[0][0].delivery_tag, requeue=False)
    channel.basic_ack(got[2][0].delivery_tag, multiple=True)
    print((await call(channel.queue_purge, "requeue")).method.message_count)


async def cancel(channel):
    await call(channel.queue_declare, "cancel")
    tag = channel.basic_consume("cancel", lambda *_: sys.exit("delivered after the cancel"), auto_ack=True)
    await call(channel.basic_cancel, tag)
    send(channel, "cancel", b"stays")
    print((await call(channel.queue_purge, "cancel")).method.message_count)


async def broker_cancel(channel):
    await call(channel.queue_declare, "cancelled")
    await call(channel.basic_consume, "cancelled", print, consumer_tag="cancelled")
    other = await open_channel(channel.connection)

    def start(done):
        channel.add_on_cancel_callback(done)
        other.queue_delete("cancelled")

    told = await Callback(start)
    print(told.method.consumer_tag)


async def declare_dead_lettering(channel, queue, target):
    await call(channel.queue_declare, target)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    await call(channel.queue_declare, queue, arguments=arguments)


async def show_reason(channel, queue):
    [(_method, properties, _body)] = await receive(channel, queue)
    print(properties.headers["x-death"][0]["reason"])


async def dead_letter(channel):
    await declare_dead_lettering(channel, "rejecting", "dead")
    send(channel, "rejecting", b"bad")
    _channel, method, _properties, _body = await call(channel.basic_get, "rejecting")
    channel.basic_reject(method.delivery_tag, requeue=False)
    await show_reason(channel, "dead")


async def message_ttl(channel):
    await declare_dead_lettering(channel, "ttl", "expired")
    send(channel, "ttl", b"short", expiration="50")
    await show_reason(channel, "expired")


async def priority(channel):
    await call(channel.queue_declare, "priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        send(channel, "priority", str(level), priority=level)
    show(await receive(channel, "priority", 3))


async def delayed(channel):
    await call(channel.exchange_declare, "delayed", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    await call(channel.queue_declare, "delayed")
    await call(channel.queue_bind, "delayed", "delayed")
    for body, delay in ((b"late", 1000), (b"soon", 1)):
        channel.basic_publish("delayed", "", body, pika.BasicProperties(headers={"x-delay": delay}))
    show(await receive(channel, "delayed", 2))


run(globals())
