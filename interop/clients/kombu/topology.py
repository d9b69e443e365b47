"""kombu: queues, exchanges and bindings."""

import time

from common import declare_queue, hello, run, send
from kombu import Exchange, Queue


def declare(connection):
    exchange = Exchange("declared", "topic")(connection.default_channel)
    queue = declare_queue(connection.default_channel, "declared", exchange, "#", durable=True)
    exchange.publish(exchange.Message(b"1"), routing_key="key")
    queue.queue_declare(passive=True)
    exchange.declare(passive=True)
    print(queue.purge())
    queue.unbind_from(exchange, "#")
    exchange.delete()
    queue.delete()


def missing(connection):
    try:
        Queue("missing")(connection.channel()).queue_declare(passive=True)
    except connection.channel_errors as error:
        print(error)
    hello(connection)


def inequivalent(connection):
    declare_queue(connection.default_channel, "inequivalent", durable=True)
    declare_queue(connection.default_channel, "inequivalent", durable=False)


def float_argument(connection):
    declare_queue(connection.default_channel, "float", queue_arguments={"x-max-length": 10})
    declare_queue(connection.default_channel, "float", queue_arguments={"x-max-length": 10.0})


def queue_ttl(connection):
    queue = declare_queue(connection.default_channel, "leased", expires=0.1)
    while True:  # a bind does not renew the lease
        queue.bind_to("amq.fanout")
        time.sleep(0.05)


def policy(connection):
    queue = declare_queue(connection.default_channel, "limited")
    send(queue, "1", "2", "3", "4")
    print(queue.purge())


run(globals())
