"""aio-pika: streams."""

import asyncio

from common import run, send, show


async def read(channel, stream, arguments):
    queue = await channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        await send(channel, stream, b"%d" % n, headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    await channel.set_qos(prefetch_count=10)
    messages = asyncio.Queue()
    await queue.consume(messages.put, arguments=arguments)
    show([await messages.get() for _ in range(5)])


async def stream_offset(_connection, channel):
    await read(channel, "stream", {"x-stream-offset": 5})


async def stream_filter(_connection, channel):
    await read(channel, "filtered", {"x-stream-offset": "first", "x-stream-filter": "odd"})


run(globals())
