"""pika's BlockingConnection: queues, exchanges and bindings."""

import time

from common import hello, run, send
from pika.exceptions import ChannelClosedByBroker


def declare(channel):
    channel.queue_declare("declared", durable=True)
    channel.exchange_declare("declared", "topic", durable=True)
    channel.queue_bind("declared", "declared", "#")
    channel.basic_publish("declared", "key", b"1")
    channel.queue_declare("declared", passive=True)
    channel.exchange_declare("declared", passive=True)
    print(channel.queue_purge("declared").method.message_count)
    channel.queue_unbind("declared", "declared", "#")
    channel.exchange_delete("declared")
    channel.queue_delete("declared")


def missing(channel):
    try:
        channel.queue_declare("missing", passive=True)
    except ChannelClosedByBroker as error:
        print(error)
    hello(channel.connection.channel())


def inequivalent(channel):
    channel.queue_declare("inequivalent", durable=True)
    channel.queue_declare("inequivalent", durable=False)


def float_argument(_channel):
    print("not offered: pika does not send floats")


def queue_ttl(channel):
    channel.queue_declare("leased", arguments={"x-expires": 100})
    while True:  # a bind does not renew the lease
        channel.queue_bind("leased", "amq.fanout")
        time.sleep(0.05)


def policy(channel):
    channel.queue_declare("limited")
    send(channel, "limited", b"1", b"2", b"3", b"4")
    print(channel.queue_purge("limited").method.message_count)


run(globals())
