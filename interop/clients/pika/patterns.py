"""pika's BlockingConnection: the patterns of RabbitMQ's tutorials."""

from common import receive, run, send, show


def work_queue(channel):
    channel.queue_declare("tasks", durable=True)
    done = {"a": [], "b": []}

    def on_message(channel, method, _properties, body):
        done[method.consumer_tag].append(body.decode())
        channel.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=1)
    for worker in done:
        channel.basic_consume("tasks", on_message, consumer_tag=worker)
    send(channel, "tasks", *"0123456789", delivery_mode=2)
    while sum(map(len, done.values())) < 10:
        channel.connection.process_data_events(1)
    print("".join(sorted(done["a"] + done["b"])))
    print(sum(map(bool, done.values())))


def publish_subscribe(channel):
    channel.exchange_declare("logs", "fanout")
    queues = [channel.queue_declare("", exclusive=True).method.queue for _subscriber in range(2)]
    for queue in queues:
        channel.queue_bind(queue, "logs")
    channel.basic_publish("logs", "", b"log")
    for queue in queues:
        show(receive(channel, queue))


def subscribe(channel, exchange, kind, *bindings):
    channel.exchange_declare(exchange, kind)
    queue = channel.queue_declare("", exclusive=True).method.queue
    for key in bindings:
        channel.queue_bind(queue, exchange, key)
    return queue


def routing(channel):
    queue = subscribe(channel, "direct_logs", "direct", "warning", "error")
    for level in ("info", "warning", "error"):
        channel.basic_publish("direct_logs", level, level)
    show(receive(channel, queue, 2))


def topics(channel):
    queue = subscribe(channel, "topic_logs", "topic", "*.critical", "kern.#")
    for key in ("kern.critical", "cron.info", "kern.a.b", "cron.critical"):
        channel.basic_publish("topic_logs", key, key)
    show(receive(channel, queue, 3))


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def on_request(channel, _method, properties, body):
    answer = str(fibonacci(int(body)))
    send(channel, properties.reply_to, answer, correlation_id=properties.correlation_id)


def ask(channel, reply_to):
    channel.queue_declare("rpc_queue")
    channel.basic_consume("rpc_queue", on_request, auto_ack=True)
    replies = []
    channel.basic_consume(reply_to, lambda *reply: replies.append(reply), auto_ack=True)
    send(channel, "rpc_queue", b"15", reply_to=reply_to, correlation_id="1")
    while not replies:
        channel.connection.process_data_events(1)
    [(_channel, _method, properties, body)] = replies
    print(properties.correlation_id, body.decode())


def rpc(channel):
    ask(channel, channel.queue_declare("", exclusive=True).method.queue)


def direct_reply_to(channel):
    ask(channel, "amq.rabbitmq.reply-to")


run(globals())
