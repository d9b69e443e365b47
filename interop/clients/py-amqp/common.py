"""How the programs of py-amqp connect, send and receive. `SCENARIO` and output: ../README.md."""

import os
import ssl
import sys
from urllib.parse import unquote, urlsplit

import amqp


def connect(**options):
    url = urlsplit(os.environ["AMQP_URL"])
    if "CA_FILE" in os.environ:
        files = {"ca_certs": os.environ["CA_FILE"], "server_hostname": "localhost", "cert_reqs": ssl.CERT_REQUIRED}
        if "CERT_FILE" in os.environ:
            files |= {"certfile": os.environ["CERT_FILE"], "keyfile": os.environ["KEY_FILE"]}
        options["ssl"] = files
    login = {"userid": url.username, "password": url.password, "virtual_host": unquote(url.path[1:])}
    connection = amqp.Connection(f"{url.hostname}:{url.port}", **login, **options)
    connection.connect()
    return connection


def declare_queue(channel, queue="", **options):
    return channel.queue_declare(queue, auto_delete=False, **options).queue


def send(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic_publish(amqp.Message(body, **properties), routing_key=queue)


def receive(channel, queue, count=1, no_ack=True, **options):
    got = []
    tag = channel.basic_consume(queue, callback=got.append, no_ack=no_ack, **options)
    while len(got) < count:
        channel.connection.drain_events()
    if no_ack:
        channel.basic_cancel(tag)
    return got


def show(messages):
    for message in messages:
        print(message.body)


def hello(channel):
    declare_queue(channel, "hello")
    send(channel, "hello", "Hello World!")
    show(receive(channel, "hello"))


def run(functions, with_channel=True):
    """Do the scenario, and print the error if the broker refuses it."""
    name = sys.argv[1]
    try:
        if name == "version":
            print(amqp.__version__)
        elif with_channel:
            functions[name.replace("-", "_")](connect().channel())
        else:
            functions[name.replace("-", "_")]()
    except amqp.AMQPError as error:
        print(error)
