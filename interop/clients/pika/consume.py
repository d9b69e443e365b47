"""pika's BlockingConnection: acks, dead letters, priorities and delays."""

import sys

import pika
from common import receive, run, send, show


def prefetch(channel):
    channel.queue_declare("prefetch")
    send(channel, "prefetch", *(b"%d" % n for n in range(10)))
    channel.basic_qos(prefetch_count=3)
    got = receive(channel, "prefetch", 3, auto_ack=False)
    print(channel.queue_declare("prefetch", passive=True).method.message_count)
    channel.basic_ack(got[-1][0].delivery_tag, multiple=True)
    show(receive(channel, "prefetch", 3, auto_ack=False))


def requeue(channel):
    channel.queue_declare("requeue")
    send(channel, "requeue", b"1", b"2", b"3")
    got = [channel.basic_get("requeue") for _ in range(3)]
    channel.basic_nack(got[-1][0].delivery_tag, multiple=True, requeue=True)
    got = [channel.basic_get("requeue") for _ in range(3)]
    for method, _properties, body in got:
        print(body.decode(), str(method.redelivered).lower())
    channel.basic_reject(got[0][0].delivery_tag, requeue=False)
    channel.basic_ack(got[2][0].delivery_tag, multiple=True)
    print(channel.queue_purge("requeue").method.message_count)


def cancel(channel):
    channel.queue_declare("cancel")
    tag = channel.basic_consume("cancel", lambda *_: sys.exit("delivered after the cancel"), auto_ack=True)
    channel.basic_cancel(tag)
    send(channel, "cancel", b"stays")
    print(channel.queue_purge("cancel").method.message_count)


def broker_cancel(channel):
    channel.queue_declare("cancelled")
    told = []
    channel.basic_consume("cancelled", print, consumer_tag="cancelled")
    channel.add_on_cancel_callback(told.append)
    channel.connection.channel().queue_delete("cancelled")
    while not told:
        channel.connection.process_data_events(1)
    print(told[0].method.consumer_tag)


def declare_dead_lettering(channel, queue, target):
    channel.queue_declare(target)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    channel.queue_declare(queue, arguments=arguments)


def show_reason(channel, queue):
    [(_method, properties, _body)] = receive(channel, queue)
    print(properties.headers["x-death"][0]["reason"])


def dead_letter(channel):
    declare_dead_lettering(channel, "rejecting", "dead")
    send(channel, "rejecting", b"bad")
    method, _properties, _body = channel.basic_get("rejecting")
    channel.basic_reject(method.delivery_tag, requeue=False)
    show_reason(channel, "dead")


def message_ttl(channel):
    declare_dead_lettering(channel, "ttl", "expired")
    send(channel, "ttl", b"short", expiration="50")
    show_reason(channel, "expired")


def priority(channel):
    channel.queue_declare("priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        send(channel, "priority", str(level), priority=level)
    show(receive(channel, "priority", 3))


def delayed(channel):
    channel.exchange_declare("delayed", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("delayed")
    channel.queue_bind("delayed", "delayed")
    for body, delay in ((b"late", 1000), (b"soon", 1)):
        channel.basic_publish("delayed", "", body, pika.BasicProperties(headers={"x-delay": delay}))
    show(receive(channel, "delayed", 2))


run(globals())
