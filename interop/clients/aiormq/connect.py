"""aiormq: connections."""

import asyncio

import common
from aiormq import AMQPError


async def connect():
    connection = await common.connect()
    await common.hello(await connection.channel())
    await connection.close()


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
    await opened[0].queue_declare("channels")
    for channel in opened:
        await common.send(channel, "channels", b"x")
    print(len(await common.receive(opened[0], "channels", 100)))


async def blocked():
    print("not offered: aiormq has no callback for connection.blocked")


async def reconnect():
    connection = await common.connect()
    channel = await connection.channel()
    await channel.queue_declare("kept", durable=True)
    await common.send(channel, "kept", b"kept", delivery_mode=2)
    await channel.basic_get("kept")
    print("ready", flush=True)  # the runner kills the broker and starts it again
    await asyncio.wait([connection.closing])
    connection = None
    while connection is None:
        try:
            connection = await common.connect()
        except (AMQPError, OSError):
            await asyncio.sleep(0.1)
    common.show(await common.receive(await connection.channel(), "kept"))


common.run(globals(), with_channel=False)
