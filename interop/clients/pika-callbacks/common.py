"""How the programs of pika's connections with callbacks connect, send and receive. Arguments: ADAPTER SCENARIO."""

import os
import ssl
import sys

import pika
from loop import LOOP, Callback
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
    opened = Callback(
        lambda done: LOOP.connection_class(
            parameters,
            on_open_callback=done,
            on_open_error_callback=lambda _connection, error: LOOP.throw(opened, error),
            on_close_callback=LOOP.fail,
            custom_ioloop=LOOP.ioloop,
        )
    )
    return opened


def call(method, *args, **kwargs):
    return Callback(lambda done: method(*args, callback=done, **kwargs))


async def open_channel(connection):
    channel = await Callback(lambda done: connection.channel(on_open_callback=done))
    channel.add_on_close_callback(LOOP.fail)
    return channel


def send(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


async def receive(channel, queue, count=1, auto_ack=True, arguments=None):
    """Return so many messages, each as method, properties and body."""
    got = []

    def start(done):
        def on_message(_channel, *message):
            got.append(message)
            if len(got) == count:
                done()

        channel.basic_consume(queue, on_message, auto_ack=auto_ack, arguments=arguments, consumer_tag=f"of {queue}")

    await Callback(start)
    await call(channel.basic_cancel, f"of {queue}")
    return got


async def publish_confirmed(channel, queue, *bodies):
    """Return when all are confirmed."""
    await call(channel.queue_declare, queue, durable=True)

    def start(done):
        def on_confirm(frame):
            assert isinstance(frame.method, pika.spec.Basic.Ack), frame
            if frame.method.delivery_tag == len(bodies):
                done()

        channel.confirm_delivery(on_confirm)
        send(channel, queue, *bodies, delivery_mode=2)

    await Callback(start)


def show(messages):
    for _method, _properties, body in messages:
        print(body.decode())


async def hello(channel):
    await call(channel.queue_declare, "hello")
    send(channel, "hello", b"Hello World!")
    show(await receive(channel, "hello"))


async def start(function, with_channel):
    await function(*[await open_channel(await connect())] * with_channel)


def run(functions, with_channel=True):
    """Do the scenario, and print the error if the broker refuses it."""
    name = sys.argv[2]
    try:
        if name == "version":
            print(pika.__version__)
        else:
            LOOP.run(start(functions[name.replace("-", "_")], with_channel))
    except AMQPError as error:
        print(error)
