"""py-amqp: acks, dead letters, priorities and delays."""

import sys

from amqp import Message
from common import declare_queue, receive, run, send, show


def prefetch(channel):
    declare_queue(channel, "prefetch")
    send(channel, "prefetch", *"0123456789")
    channel.basic_qos(0, 3, a_global=False)
    got = []
    channel.basic_consume("prefetch", callback=got.append)
    while len(got) < 3:
        channel.connection.drain_events()
    print(channel.queue_declare("prefetch", passive=True).message_count)
    channel.basic_ack(got[-1].delivery_tag, multiple=True)
    while len(got) < 6:
        channel.connection.drain_events()
    show(got[3:])


def requeue(channel):
    declare_queue(channel, "requeue")
    send(channel, "requeue", "1", "2", "3")
    got = [channel.basic_get("requeue") for _ in range(3)]
    for message in reversed(got):  # py-amqp has no basic.nack
        channel.basic_reject(message.delivery_tag, requeue=True)
    got = [channel.basic_get("requeue") for _ in range(3)]
    for message in got:
        print(message.body, str(message.delivery_info["redelivered"]).lower())
    channel.basic_reject(got[0].delivery_tag, requeue=False)
    channel.basic_ack(got[2].delivery_tag, multiple=True)
    print(channel.queue_purge("requeue"))


def cancel(channel):
    declare_queue(channel, "cancel")
    tag = channel.basic_consume("cancel", callback=lambda _m: sys.exit("delivered after the cancel"), no_ack=True)
    channel.basic_cancel(tag)
    send(channel, "cancel", "stays")
    print(channel.queue_purge("cancel"))


def broker_cancel(channel):
    told = []
    declare_queue(channel, "cancelled")
    channel.basic_consume("cancelled", "cancelled", callback=print, on_cancel=told.append)
    channel.connection.channel().queue_delete("cancelled")
    while not told:
        channel.connection.drain_events()
    print(told[0])


def declare_dead_lettering(channel, queue, target):
    declare_queue(channel, target)
    declare_queue(channel, queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})


def show_reason(channel, queue):
    [message] = receive(channel, queue)
    print(message.headers["x-death"][0]["reason"])


def dead_letter(channel):
    declare_dead_lettering(channel, "rejecting", "dead")
    send(channel, "rejecting", "bad")
    channel.basic_reject(channel.basic_get("rejecting").delivery_tag, requeue=False)
    show_reason(channel, "dead")


def message_ttl(channel):
    declare_dead_lettering(channel, "ttl", "expired")
    send(channel, "ttl", "short", expiration="50")
    show_reason(channel, "expired")


def priority(channel):
    declare_queue(channel, "priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        send(channel, "priority", str(level), priority=level)
    show(receive(channel, "priority", 3))


def delayed(channel):
    channel.exchange_declare("delayed", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    declare_queue(channel, "delayed")
    channel.queue_bind("delayed", "delayed")
    for body, delay in (("late", 1000), ("soon", 1)):
        channel.basic_publish(Message(body, application_headers={"x-delay": delay}), "delayed")
    show(receive(channel, "delayed", 2))


run(globals())
