"""pika's connections with callbacks: the patterns of RabbitMQ's tutorials."""

from common import call, receive, run, send, show
from loop import Callback


async def work_queue(channel):
    await call(channel.queue_declare, "tasks", durable=True)
    await call(channel.basic_qos, prefetch_count=1)
    done = {"a": [], "b": []}

    def start(finish):
        def on_message(channel, method, _properties, body):
            done[method.consumer_tag].append(body.decode())
            channel.basic_ack(method.delivery_tag)
            if sum(map(len, done.values())) == 10:
                finish()

        for worker in done:
            channel.basic_consume("tasks", on_message, consumer_tag=worker)
        send(channel, "tasks", *"0123456789", delivery_mode=2)

    await Callback(start)
    print("".join(sorted(done["a"] + done["b"])))
    print(sum(map(bool, done.values())))


async def exclusive_queue(channel):
    return (await call(channel.queue_declare, "", exclusive=True)).method.queue


async def publish_subscribe(channel):
    await call(channel.exchange_declare, "logs", "fanout")
    queues = [await exclusive_queue(channel), await exclusive_queue(channel)]
    for queue in queues:
        await call(channel.queue_bind, queue, "logs")
    channel.basic_publish("logs", "", b"log")
    for queue in queues:
        show(await receive(channel, queue))


async def subscribe(channel, exchange, kind, *bindings):
    await call(channel.exchange_declare, exchange, kind)
    queue = await exclusive_queue(channel)
    for key in bindings:
        await call(channel.queue_bind, queue, exchange, key)
    return queue


async def routing(channel):
    queue = await subscribe(channel, "direct_logs", "direct", "warning", "error")
    for level in ("info", "warning", "error"):
        channel.basic_publish("direct_logs", level, level)
    show(await receive(channel, queue, 2))


async def topics(channel):
    queue = await subscribe(channel, "topic_logs", "topic", "*.critical", "kern.#")
    for key in ("kern.critical", "cron.info", "kern.a.b", "cron.critical"):
        channel.basic_publish("topic_logs", key, key)
    show(await receive(channel, queue, 3))


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def on_request(channel, _method, properties, body):
    answer = str(fibonacci(int(body)))
    send(channel, properties.reply_to, answer, correlation_id=properties.correlation_id)


async def ask(channel, reply_to):
    await call(channel.queue_declare, "rpc_queue")
    await call(channel.basic_consume, "rpc_queue", on_request, auto_ack=True)

    def start(done):
        channel.basic_consume(reply_to, done, auto_ack=True)
        send(channel, "rpc_queue", b"15", reply_to=reply_to, correlation_id="1")

    _channel, _method, properties, body = await Callback(start)
    print(properties.correlation_id, body.decode())


async def rpc(channel):
    await ask(channel, await exclusive_queue(channel))


async def direct_reply_to(channel):
    await ask(channel, "amq.rabbitmq.reply-to")


run(globals())
