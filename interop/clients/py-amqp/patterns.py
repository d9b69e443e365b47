"""py-amqp: the patterns of RabbitMQ's tutorials."""

from amqp import Message
from common import declare_queue, receive, run, send, show


def work_queue(channel):
    declare_queue(channel, "tasks", durable=True)
    done = {"a": [], "b": []}

    def on_message(message):
        done[message.delivery_info["consumer_tag"]].append(message.body)
        message.channel.basic_ack(message.delivery_tag)

    channel.basic_qos(0, 1, a_global=False)
    for worker in done:
        channel.basic_consume("tasks", worker, callback=on_message)
    send(channel, "tasks", *"0123456789", delivery_mode=2)
    while sum(map(len, done.values())) < 10:
        channel.connection.drain_events()
    print("".join(sorted(done["a"] + done["b"])))
    print(sum(map(bool, done.values())))


def publish_subscribe(channel):
    channel.exchange_declare("logs", "fanout")
    queues = [declare_queue(channel, exclusive=True) for _subscriber in range(2)]
    for queue in queues:
        channel.queue_bind(queue, "logs")
    channel.basic_publish(Message("log"), "logs")
    for queue in queues:
        show(receive(channel, queue))


def subscribe(channel, exchange, kind, *bindings):
    channel.exchange_declare(exchange, kind)
    queue = declare_queue(channel, exclusive=True)
    for key in bindings:
        channel.queue_bind(queue, exchange, key)
    return queue


def routing(channel):
    queue = subscribe(channel, "direct_logs", "direct", "warning", "error")
    for level in ("info", "warning", "error"):
        channel.basic_publish(Message(level), "direct_logs", level)
    show(receive(channel, queue, 2))


def topics(channel):
    queue = subscribe(channel, "topic_logs", "topic", "*.critical", "kern.#")
    for key in ("kern.critical", "cron.info", "kern.a.b", "cron.critical"):
        channel.basic_publish(Message(key), "topic_logs", key)
    show(receive(channel, queue, 3))


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def on_request(request):
    answer = Message(str(fibonacci(int(request.body))), correlation_id=request.properties["correlation_id"])
    request.channel.basic_publish(answer, routing_key=request.properties["reply_to"])


def ask(channel, reply_to):
    declare_queue(channel, "rpc_queue")
    channel.basic_consume("rpc_queue", callback=on_request, no_ack=True)
    replies = []
    channel.basic_consume(reply_to, callback=replies.append, no_ack=True)
    send(channel, "rpc_queue", "15", reply_to=reply_to, correlation_id="1")
    while not replies:
        channel.connection.drain_events()
    print(replies[0].properties["correlation_id"], replies[0].body)


def rpc(channel):
    ask(channel, declare_queue(channel, exclusive=True))


def direct_reply_to(channel):
    ask(channel, "amq.rabbitmq.reply-to")


run(globals())
