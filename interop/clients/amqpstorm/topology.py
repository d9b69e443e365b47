"""AMQPStorm: queues, exchanges and bindings."""

import time

from amqpstorm import AMQPChannelError
from common import hello, run, send, show_error


def declare(_connection, channel):
    channel.queue.declare("declared", durable=True)
    channel.exchange.declare("declared", "topic", durable=True)
    channel.queue.bind("declared", "declared", "#")
    channel.basic.publish("1", "key", "declared")
    channel.queue.declare("declared", passive=True)
    channel.exchange.declare("declared", passive=True)
    print(channel.queue.purge("declared")["message_count"])
    channel.queue.unbind("declared", "declared", "#")
    channel.exchange.delete("declared")
    channel.queue.delete("declared")


def missing(connection, channel):
    try:
        channel.queue.declare("missing", passive=True)
    except AMQPChannelError as error:
        show_error(error)
    hello(connection.channel())


def inequivalent(_connection, channel):
    channel.queue.declare("inequivalent", durable=True)
    channel.queue.declare("inequivalent", durable=False)


def float_argument(_connection, channel):
    channel.queue.declare("float", arguments={"x-max-length": 10})
    channel.queue.declare("float", arguments={"x-max-length": 10.0})


def queue_ttl(_connection, channel):
    channel.queue.declare("leased", arguments={"x-expires": 100})
    while True:  # a bind does not renew the lease
        channel.queue.bind("leased", "amq.fanout")
        time.sleep(0.05)


def policy(_connection, channel):
    channel.queue.declare("limited")
    send(channel, "limited", "1", "2", "3", "4")
    print(channel.queue.purge("limited")["message_count"])


run(globals())
