"""aio-pika: the patterns of RabbitMQ's tutorials."""

import asyncio

from aio_pika import DeliveryMode, ExchangeType, Message
from common import receive, run, send, show


async def work_queue(_connection, channel):
    queue = await channel.declare_queue("tasks", durable=True)
    done = {"a": [], "b": []}
    finished = asyncio.Event()

    async def on_message(message):
        async with message.process():
            done[message.consumer_tag].append(message.body.decode())
        if sum(map(len, done.values())) == 10:
            finished.set()

    await channel.set_qos(prefetch_count=1)
    for worker in done:
        await queue.consume(on_message, consumer_tag=worker)
    await send(channel, "tasks", *(b"%d" % n for n in range(10)), delivery_mode=DeliveryMode.PERSISTENT)
    await finished.wait()
    print("".join(sorted(done["a"] + done["b"])))
    print(sum(map(bool, done.values())))


async def publish_subscribe(_connection, channel):
    logs = await channel.declare_exchange("logs", ExchangeType.FANOUT)
    queues = [await channel.declare_queue(exclusive=True) for _subscriber in range(2)]
    for queue in queues:
        await queue.bind(logs)
    await logs.publish(Message(b"log"), routing_key="")
    for queue in queues:
        show(await receive(queue))


async def subscribe(channel, exchange, *bindings):
    queue = await channel.declare_queue(exclusive=True)
    for key in bindings:
        await queue.bind(exchange, routing_key=key)
    return queue


async def routing(_connection, channel):
    exchange = await channel.declare_exchange("direct_logs", ExchangeType.DIRECT)
    queue = await subscribe(channel, exchange, "warning", "error")
    for level in ("info", "warning", "error"):
        await exchange.publish(Message(level.encode()), routing_key=level)
    show(await receive(queue, 2))


async def topics(_connection, channel):
    exchange = await channel.declare_exchange("topic_logs", ExchangeType.TOPIC)
    queue = await subscribe(channel, exchange, "*.critical", "kern.#")
    for key in ("kern.critical", "cron.info", "kern.a.b", "cron.critical"):
        await exchange.publish(Message(key.encode()), routing_key=key)
    show(await receive(queue, 3))


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


async def ask(channel, callback):
    async def on_request(request):
        answer = str(fibonacci(int(request.body))).encode()
        await send(channel, request.reply_to, answer, correlation_id=request.correlation_id)

    requests = await channel.declare_queue("rpc_queue")
    await requests.consume(on_request, no_ack=True)
    future = asyncio.get_running_loop().create_future()
    await callback.consume(future.set_result, no_ack=True)
    await send(channel, "rpc_queue", b"15", reply_to=callback.name, correlation_id="1")
    reply = await future
    print(reply.correlation_id, reply.body.decode())


async def rpc(_connection, channel):
    await ask(channel, await channel.declare_queue(exclusive=True))


async def direct_reply_to(_connection, channel):
    await ask(channel, await channel.get_queue("amq.rabbitmq.reply-to", ensure=False))


run(globals())
