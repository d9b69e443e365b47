"""How the programs of kombu connect, send and receive. `SCENARIO` and output: ../README.md."""

import os
import ssl
import sys

import kombu
from kombu import Connection, Consumer, Producer, Queue
from kombu.exceptions import KombuError


def connect(**options):
    if "CA_FILE" in os.environ:
        files = {"ca_certs": os.environ["CA_FILE"], "server_hostname": "localhost", "cert_reqs": ssl.CERT_REQUIRED}
        if "CERT_FILE" in os.environ:
            files |= {"certfile": os.environ["CERT_FILE"], "keyfile": os.environ["KEY_FILE"]}
        options["ssl"] = files
    url = os.environ["AMQP_URL"].replace("amqps:", "amqp:")
    connection = Connection(url, transport_options={"confirm_publish": True}, **options)
    connection.connect()
    return connection


def declare_queue(channel, name="", exchange=None, routing_key="", durable=False, **options):
    queue = Queue(name, exchange, routing_key, durable=durable, **options)(channel)
    queue.declare()
    return queue


def send(queue, *bodies, **properties):
    for body in bodies:
        Producer(queue.channel).publish(body, routing_key=queue.name, delivery_mode=2, **properties)


def receive(queue, count=1, no_ack=True, prefetch=0):
    got = []
    consumer = Consumer(queue.channel, [queue], on_message=got.append, no_ack=no_ack)
    consumer.qos(prefetch_count=prefetch)
    consumer.consume()
    while len(got) < count:
        queue.channel.connection.client.drain_events()
    if no_ack:
        consumer.cancel()
    return got


def show(messages):
    for message in messages:
        print(message.payload)


def hello(connection):
    queue = declare_queue(connection.default_channel, "hello")
    send(queue, "Hello World!")
    show(receive(queue))


def run(functions, connected=True):
    """Do the scenario, and print the error if the broker refuses it."""
    name = sys.argv[1]
    try:
        if name == "version":
            print(kombu.__version__)
        elif connected:
            functions[name.replace("-", "_")](connect())
        else:
            functions[name.replace("-", "_")]()
    except (*Connection().connection_errors, *Connection().channel_errors, KombuError) as error:
        print(error)
