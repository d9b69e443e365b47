"""How the programs of pika's BlockingConnection connect, send and receive. `SCENARIO` and output: ../README.md."""

import os
import ssl
import sys

import pika
from pika.exceptions import AMQPError


def connect(**changes):
    parameters = pika.URLParameters(os.environ["AMQP_URL"])
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
        parameters.ssl_options = pika.SSLOptions(context, "localhost")
    for name, value in changes.items():
        setattr(parameters, name, value)
    return pika.BlockingConnection(parameters)


def send(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def receive(channel, queue, count=1, auto_ack=True, arguments=None):
    """Return so many messages, each as method, properties and body."""
    got = []
    for message in channel.consume(queue, auto_ack=auto_ack, arguments=arguments):
        got.append(message)
        if len(got) == count:
            break
    if auto_ack:
        channel.cancel()
    return got


def show(messages):
    for _method, _properties, body in messages:
        print(body.decode())


def hello(channel):
    channel.queue_declare("hello")
    send(channel, "hello", b"Hello World!")
    show(receive(channel, "hello"))


def run(functions, with_channel=True):
    """Do the scenario, and print the error if the broker refuses it."""
    name = sys.argv[1]
    try:
        if name == "version":
            print(pika.__version__)
        elif with_channel:
            functions[name.replace("-", "_")](connect().channel())
        else:
            functions[name.replace("-", "_")]()
    except AMQPError as error:
        print(error)
