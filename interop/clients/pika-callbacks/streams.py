"""pika's connections with callbacks: streams."""

from common import call, receive, run, send, show


async def read(channel, stream, arguments):
    await call(channel.queue_declare, stream, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        send(channel, stream, b"%d" % n, headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    await call(channel.basic_qos, prefetch_count=10)
    show(await receive(channel, stream, 5, auto_ack=False, arguments=arguments))


async def stream_offset(channel):
    await read(channel, "stream", {"x-stream-offset": 5})


async def stream_filter(channel):
    await read(channel, "filtered", {"x-stream-offset": "first", "x-stream-filter": "odd"})


run(globals())
