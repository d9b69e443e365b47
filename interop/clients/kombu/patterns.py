"""kombu: the patterns of RabbitMQ's tutorials."""

from common import declare_queue, receive, run, send, show
from kombu import Consumer, Exchange, Producer, Queue


def work_queue(connection):
    queue = declare_queue(connection.default_channel, "tasks", durable=True)
    done = []

    def on_message(body, message):
        done.append((body, message.channel))
        message.ack()

    for _worker in range(2):
        Consumer(connection.channel(), [queue], callbacks=[on_message], prefetch_count=1).consume()
    send(queue, *"0123456789")
    while len(done) < 10:
        connection.drain_events()
    print("".join(sorted(task for task, _channel in done)))
    print(len({channel for _task, channel in done}))


def publish_subscribe(connection):
    channel = connection.default_channel
    logs = Exchange("logs", "fanout", durable=False)(channel)
    queues = [declare_queue(channel, f"logs-{n}", logs, exclusive=True) for n in range(2)]
    Producer(channel, logs).publish("log")
    for queue in queues:
        show(receive(queue))


def routing(connection):
    exchange = Exchange("direct_logs", "direct", durable=False)(connection.default_channel)
    queue = declare_queue(exchange.channel, "levels", exchange, "warning", exclusive=True)
    queue.bind_to(exchange, "error")
    for level in ("info", "warning", "error"):
        Producer(exchange.channel, exchange).publish(level, routing_key=level)
    show(receive(queue, 2))


def topics(connection):
    exchange = Exchange("topic_logs", "topic", durable=False)(connection.default_channel)
    queue = declare_queue(exchange.channel, "topics", exchange, "*.critical", exclusive=True)
    queue.bind_to(exchange, "kern.#")
    for key in ("kern.critical", "cron.info", "kern.a.b", "cron.critical"):
        Producer(exchange.channel, exchange).publish(key, routing_key=key)
    show(receive(queue, 3))


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def on_request(body, request):
    reply_to, correlation_id = request.properties["reply_to"], request.properties["correlation_id"]
    Producer(request.channel).publish(fibonacci(body), routing_key=reply_to, correlation_id=correlation_id)


def ask(connection, callback):
    requests = declare_queue(connection.default_channel, "rpc_queue")
    Consumer(requests.channel, [requests], callbacks=[on_request], no_ack=True).consume()
    replies = []
    Consumer(requests.channel, [callback], on_message=replies.append, no_ack=True, auto_declare=False).consume()
    Producer(requests.channel).publish(15, routing_key="rpc_queue", reply_to=callback.name, correlation_id="1")
    while not replies:
        connection.drain_events()
    print(replies[0].properties["correlation_id"], replies[0].payload)


def rpc(connection):
    ask(connection, declare_queue(connection.default_channel, "replies", exclusive=True))


def direct_reply_to(connection):
    ask(connection, Queue("amq.rabbitmq.reply-to", no_declare=True)(connection.default_channel))


run(globals())
