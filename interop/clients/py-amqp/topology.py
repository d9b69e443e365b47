"""py-amqp: queues, exchanges and bindings."""

import time

from amqp import Message, NotFound
from common import declare_queue, hello, run, send


def declare(channel):
    declare_queue(channel, "declared", durable=True)
    channel.exchange_declare("declared", "topic", durable=True, auto_delete=False)
    channel.queue_bind("declared", "declared", "#")
    channel.basic_publish(Message("1"), "declared", "key")
    channel.queue_declare("declared", passive=True)
    channel.exchange_declare("declared", "topic", passive=True)
    print(channel.queue_purge("declared"))
    channel.queue_unbind("declared", "declared", "#")
    channel.exchange_delete("declared")
    channel.queue_delete("declared")


def missing(channel):
    try:
        channel.queue_declare("missing", passive=True)
    except NotFound as error:
        print(error)
    hello(channel.connection.channel())


def inequivalent(channel):
    declare_queue(channel, "inequivalent", durable=True)
    declare_queue(channel, "inequivalent", durable=False)


def float_argument(channel):
    declare_queue(channel, "float", arguments={"x-max-length": 10})
    declare_queue(channel, "float", arguments={"x-max-length": 10.0})


def queue_ttl(channel):
    declare_queue(channel, "leased", arguments={"x-expires": 100})
    while True:  # a bind does not renew the lease
        channel.queue_bind("leased", "amq.fanout")
        time.sleep(0.05)


def policy(channel):
    declare_queue(channel, "limited")
    send(channel, "limited", "1", "2", "3", "4")
    print(channel.queue_purge("limited"))


run(globals())
