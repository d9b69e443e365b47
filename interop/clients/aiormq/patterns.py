"""aiormq: the patterns of RabbitMQ's tutorials."""

from common import consume, receive, run, send, show


async def work_queue(channel):
    await channel.queue_declare("tasks", durable=True)
    await channel.basic_qos(prefetch_count=1)
    messages = await consume(channel, "tasks", consumer_tag="a")
    await channel.basic_consume("tasks", messages.put, consumer_tag="b")
    await send(channel, "tasks", *(b"%d" % n for n in range(10)), delivery_mode=2)
    done = []
    while len(done) < 10:
        message = await messages.get()
        done.append((message.body.decode(), message.delivery.consumer_tag))
        await channel.basic_ack(message.delivery.delivery_tag)
    print("".join(sorted(task for task, _worker in done)))
    print(len({worker for _task, worker in done}))


async def publish_subscribe(channel):
    await channel.exchange_declare("logs", exchange_type="fanout")
    queues = [(await channel.queue_declare(exclusive=True)).queue for _subscriber in range(2)]
    for queue in queues:
        await channel.queue_bind(queue, "logs")
    await channel.basic_publish(b"log", exchange="logs")
    for queue in queues:
        show(await receive(channel, queue))


async def subscribe(channel, exchange, kind, *bindings):
    await channel.exchange_declare(exchange, exchange_type=kind)
    queue = (await channel.queue_declare(exclusive=True)).queue
    for key in bindings:
        await channel.queue_bind(queue, exchange, key)
    return queue


async def routing(channel):
    queue = await subscribe(channel, "direct_logs", "direct", "warning", "error")
    for level in ("info", "warning", "error"):
        await channel.basic_publish(level.encode(), exchange="direct_logs", routing_key=level)
    show(await receive(channel, queue, 2))


async def topics(channel):
    queue = await subscribe(channel, "topic_logs", "topic", "*.critical", "kern.#")
    for key in ("kern.critical", "cron.info", "kern.a.b", "cron.critical"):
        await channel.basic_publish(key.encode(), exchange="topic_logs", routing_key=key)
    show(await receive(channel, queue, 3))


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


async def ask(channel, reply_to):
    async def on_request(message):
        request = message.header.properties
        answer = str(fibonacci(int(message.body))).encode()
        await send(channel, request.reply_to, answer, correlation_id=request.correlation_id)

    await channel.queue_declare("rpc_queue")
    await channel.basic_consume("rpc_queue", on_request, no_ack=True)
    replies = await consume(channel, reply_to, no_ack=True)
    await send(channel, "rpc_queue", b"15", reply_to=reply_to, correlation_id="1")
    reply = await replies.get()
    print(reply.header.properties.correlation_id, reply.body.decode())


async def rpc(channel):
    await ask(channel, (await channel.queue_declare(exclusive=True)).queue)


async def direct_reply_to(channel):
    await ask(channel, "amq.rabbitmq.reply-to")


run(globals())
