"""How the programs of aiormq connect, send and receive. `SCENARIO` and output: ../README.md."""

import asyncio
import os
import ssl
import sys
from importlib.metadata import version

import aiormq
from aiormq import AMQPError, spec
from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed, ProbableAuthenticationError
from yarl import URL

CODES = {ProbableAuthenticationError: 403, ChannelNotFoundEntity: 404, ChannelPreconditionFailed: 406}
"""aiormq has a class for each reply code."""


async def connect(**query):
    url = URL(os.environ["AMQP_URL"]).update_query(query)
    context = None
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
    connection = aiormq.Connection(url, context=context)
    await connection.connect()
    return connection


async def send(channel, queue, *bodies, **properties):
    for body in bodies:
        await channel.basic_publish(body, routing_key=queue, properties=spec.Basic.Properties(**properties))


async def consume(channel, queue, **options):
    messages = asyncio.Queue()
    await channel.basic_consume(queue, messages.put, **options)
    return messages


async def receive(channel, queue, count=1):
    messages = await consume(channel, queue, no_ack=True, consumer_tag=f"of {queue}")
    got = [await messages.get() for _ in range(count)]
    await channel.basic_cancel(f"of {queue}")
    return got


def show(messages):
    for message in messages:
        print(message.body.decode())


def show_error(error):
    print(CODES.get(type(error), ""), error)


async def hello(channel):
    await channel.queue_declare("hello")
    await send(channel, "hello", b"Hello World!")
    show(await receive(channel, "hello"))


async def call(function):
    connection = await connect()
    await function(await connection.channel())
    await connection.close()


def run(functions, with_channel=True):
    """Do the scenario, and print the error if the broker refuses it."""
    name = sys.argv[1]
    try:
        if name == "version":
            print(version("aiormq"))
        elif with_channel:
            asyncio.run(call(functions[name.replace("-", "_")]))
        else:
            asyncio.run(functions[name.replace("-", "_")]())
    except (AMQPError, ConnectionError) as error:
        show_error(error)
