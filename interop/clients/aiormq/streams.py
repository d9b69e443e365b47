"""aiormq: streams."""

from common import consume, run, send, show


async def read(channel, stream, arguments):
    await channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        await send(channel, stream, b"%d" % n, headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    await channel.basic_qos(prefetch_count=10)
    messages = await consume(channel, stream, arguments=arguments)
    show([await messages.get() for _ in range(5)])


async def stream_offset(channel):
    await read(channel, "stream", {"x-stream-offset": 5})


async def stream_filter(channel):
    await read(channel, "filtered", {"x-stream-offset": "first", "x-stream-filter": "odd"})


run(globals())
