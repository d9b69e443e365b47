"""AMQPStorm: acks, dead letters, priorities and delays."""

import sys
import time

from common import receive, run, send, show


def prefetch(_connection, channel):
    channel.queue.declare("prefetch")
    send(channel, "prefetch", *"0123456789")
    channel.basic.qos(3)
    channel.basic.consume(queue="prefetch")
    messages = channel.build_inbound_messages()
    got = [next(messages) for _ in range(3)]
    print(channel.queue.declare("prefetch", passive=True)["message_count"])
    channel.basic.ack(got[-1].delivery_tag, multiple=True)
    show(next(messages) for _ in range(3))


def requeue(_connection, channel):
    channel.queue.declare("requeue")
    send(channel, "requeue", "1", "2", "3")
    got = [channel.basic.get("requeue") for _ in range(3)]
    channel.basic.nack(got[-1].delivery_tag, multiple=True, requeue=True)
    got = [channel.basic.get("requeue") for _ in range(3)]
    for message in got:
        print(message.body, str(message.redelivered).lower())
    got[0].reject(requeue=False)
    channel.basic.ack(got[2].delivery_tag, multiple=True)
    print(channel.queue.purge("requeue")["message_count"])


def cancel(_connection, channel):
    channel.queue.declare("cancel")
    tag = channel.basic.consume(sys.exit, "cancel", no_ack=True)
    channel.basic.cancel(tag)
    send(channel, "cancel", "stays")
    print(channel.queue.purge("cancel")["message_count"])


def broker_cancel(connection, channel):
    channel.queue.declare("cancelled")
    channel.basic.consume(queue="cancelled")
    connection.channel().queue.delete("cancelled")
    while channel.consumer_tags:
        time.sleep(0.01)
    print("cancelled")


def declare_dead_lettering(channel, queue, target):
    channel.queue.declare(target)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    channel.queue.declare(queue, arguments=arguments)


def show_reason(channel, queue):
    [message] = receive(channel, queue)
    print(message.properties["headers"]["x-death"][0]["reason"])


def dead_letter(_connection, channel):
    declare_dead_lettering(channel, "rejecting", "dead")
    send(channel, "rejecting", "bad")
    channel.basic.get("rejecting").reject(requeue=False)
    show_reason(channel, "dead")


def message_ttl(_connection, channel):
    declare_dead_lettering(channel, "ttl", "expired")
    send(channel, "ttl", "short", expiration="50")
    show_reason(channel, "expired")


def priority(_connection, channel):
    channel.queue.declare("priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        send(channel, "priority", str(level), priority=level)
    show(receive(channel, "priority", 3))


def delayed(_connection, channel):
    channel.exchange.declare("delayed", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    channel.queue.declare("delayed")
    channel.queue.bind("delayed", "delayed")
    for body, delay in (("late", 1000), ("soon", 1)):
        channel.basic.publish(body, "", "delayed", properties={"headers": {"x-delay": delay}})
    show(receive(channel, "delayed", 2))


run(globals())
