"""How the programs of AMQPStorm connect, send and receive. `SCENARIO` and output: ../README.md."""

import os
import ssl
import sys
from urllib.parse import unquote, urlsplit

import amqpstorm
from amqpstorm import AMQPError, Connection


def connect(**options):
    url = urlsplit(os.environ["AMQP_URL"])
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
        options |= {"ssl": True, "ssl_options": {"context": context, "server_hostname": "localhost"}}
    vhost = unquote(url.path[1:])
    return Connection(url.hostname, url.username, url.password, port=url.port, virtual_host=vhost, **options)


def send(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic.publish(body, queue, properties=properties)


def receive(channel, queue, count=1, no_ack=True, arguments=None):
    got = []
    tag = channel.basic.consume(queue=queue, no_ack=no_ack, arguments=arguments)
    for message in channel.build_inbound_messages():
        got.append(message)
        if len(got) == count:
            break
    if no_ack:
        channel.basic.cancel(tag)
    return got


def show(messages):
    for message in messages:
        print(message.body)


def show_error(error):
    print(error.error_code, error)


def hello(channel):
    channel.queue.declare("hello")
    send(channel, "hello", "Hello World!")
    show(receive(channel, "hello"))


def run(functions, connected=True):
    """Do the scenario, and print the error if the broker refuses it."""
    name = sys.argv[1]
    try:
        if name == "version":
            print(amqpstorm.__version__)
        elif connected:
            with connect() as connection:
                functions[name.replace("-", "_")](connection, connection.channel())
        else:
            functions[name.replace("-", "_")]()
    except AMQPError as error:
        show_error(error)
