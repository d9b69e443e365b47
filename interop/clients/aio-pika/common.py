"""How the programs of aio-pika connect, send and receive. `SCENARIO` and output: ../README.md."""

import asyncio
import os
import ssl
import sys

import aio_pika
from aio_pika import Message
from aio_pika.exceptions import (
    AMQPError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ProbableAuthenticationError,
)

CODES = {ProbableAuthenticationError: 403, ChannelNotFoundEntity: 404, ChannelPreconditionFailed: 406}
"""aio-pika has a class for each reply code."""


async def connect(robust=False, **options):
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
        options["ssl_context"] = context
    return await (aio_pika.connect_robust if robust else aio_pika.connect)(os.environ["AMQP_URL"], **options)


async def send(channel, queue, *bodies, **properties):
    for body in bodies:
        await channel.default_exchange.publish(Message(body, **properties), routing_key=queue)


async def receive(queue, count=1):
    got = []
    async with queue.iterator(no_ack=True) as messages:
        async for message in messages:
            got.append(message)
            if len(got) == count:
                return got


def show(messages):
    for message in messages:
        print(message.body.decode())


def show_error(error):
    print(CODES.get(type(error), ""), error)


async def hello(channel):
    queue = await channel.declare_queue("hello")
    await send(channel, "hello", b"Hello World!")
    show(await receive(queue))


async def call(function):
    async with await connect() as connection:
        await function(connection, await connection.channel())


def run(functions, connected=True):
    """Do the scenario, and print the error if the broker refuses it."""
    name = sys.argv[1]
    try:
        if name == "version":
            print(aio_pika.__version__)
        elif connected:
            asyncio.run(call(functions[name.replace("-", "_")]))
        else:
            asyncio.run(functions[name.replace("-", "_")]())
    except (AMQPError, ConnectionError) as error:
        show_error(error)
