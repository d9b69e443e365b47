"""aio-pika: connections."""

import asyncio

import common
from aio_pika import DeliveryMode
from aio_pika.exceptions import AMQPError


async def connect():
    async with await common.connect() as connection:
        await common.hello(await connection.channel())


bad_password = tls = client_certificate = connect


async def bad_vhost():
    try:
        await common.connect()
    except AMQPError as error:
        print("pass" if "Connection.Close" in str(error) else error)  # aiormq does not show the text


async def heartbeat():
    connection = await common.connect(heartbeat=1)
    await asyncio.sleep(4)
    await common.hello(await connection.channel())


async def channels():
    connection = await common.connect()
    opened = [await connection.channel() for _ in range(100)]
    queue = await opened[0].declare_queue("channels")
    for channel in opened:
        await common.send(channel, "channels", b"x")
    print(len(await common.receive(queue, 100)))


async def blocked():
    print("not offered: aio-pika has no callback for connection.blocked")


async def reconnect():
    connection = await common.connect(robust=True, reconnect_interval=0.1)
    channel = await connection.channel()
    queue = await channel.declare_queue("kept", durable=True)
    await common.send(channel, "kept", b"kept", delivery_mode=DeliveryMode.PERSISTENT)
    messages = asyncio.Queue()
    await queue.consume(messages.put)
    await messages.get()
    print("ready", flush=True)  # the runner kills the broker; the robust connection restores the consumer
    message = await messages.get()
    common.show([message] if message.redelivered else [])


common.run(globals(), connected=False)
