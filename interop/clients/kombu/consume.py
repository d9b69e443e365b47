"""kombu: acks, dead letters, priorities and delays."""

import sys

from common import declare_queue, receive, run, send, show
from kombu import Consumer, Exchange, Producer


def prefetch(connection):
    queue = declare_queue(connection.default_channel, "prefetch")
    send(queue, *"0123456789")
    got = []
    Consumer(queue.channel, [queue], on_message=got.append, prefetch_count=3).consume()
    while len(got) < 3:
        connection.drain_events()
    print(queue.channel.queue_declare("prefetch", passive=True).message_count)
    got[-1].ack(multiple=True)
    while len(got) < 6:
        connection.drain_events()
    show(got[3:6])


def requeue(connection):
    queue = declare_queue(connection.default_channel, "requeue")
    send(queue, "1", "2", "3")
    for message in reversed([queue.get() for _ in range(3)]):  # kombu has no basic.nack
        message.requeue()
    got = [queue.get() for _ in range(3)]
    for message in got:
        print(message.payload, str(message.delivery_info["redelivered"]).lower())
    got[0].reject()
    got[2].ack(multiple=True)
    print(queue.purge())


def cancel(connection):
    queue = declare_queue(connection.default_channel, "cancel")
    consumer = Consumer(queue.channel, [queue], on_message=sys.exit, no_ack=True)
    consumer.consume()
    consumer.cancel()
    send(queue, "stays")
    print(queue.purge())


def broker_cancel(connection):
    queue = declare_queue(connection.default_channel, "cancelled")
    Consumer(queue.channel, [queue], on_message=print, tag_prefix="reader").consume()
    try:
        queue(connection.channel()).delete()
        while True:
            connection.drain_events()
    except connection.connection_errors as error:
        print("cancelled" if "reader" in str(error) else error)


def declare_dead_lettering(channel, name, target):
    dead = declare_queue(channel, target)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    return declare_queue(channel, name, queue_arguments=arguments), dead


def show_reason(queue):
    [message] = receive(queue)
    print(message.headers["x-death"][0]["reason"])


def dead_letter(connection):
    queue, dead = declare_dead_lettering(connection.default_channel, "rejecting", "dead")
    send(queue, "bad")
    queue.get().reject()
    show_reason(dead)


def message_ttl(connection):
    queue, expired = declare_dead_lettering(connection.default_channel, "ttl", "expired")
    send(queue, "short", expiration=0.05)
    show_reason(expired)


def priority(connection):
    queue = declare_queue(connection.default_channel, "priority", max_priority=5)
    for level in (1, 5, 3):
        send(queue, str(level), priority=level)
    show(receive(queue, 3))


def delayed(connection):
    arguments = {"x-delayed-type": "fanout"}
    exchange = Exchange("delayed", "x-delayed-message", arguments=arguments)(connection.default_channel)
    queue = declare_queue(connection.default_channel, "delayed", exchange)
    for body, delay in (("late", 1000), ("soon", 1)):
        Producer(queue.channel, exchange).publish(body, headers={"x-delay": delay})
    show(receive(queue, 2))


run(globals())
