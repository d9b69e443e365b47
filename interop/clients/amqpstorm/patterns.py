"""AMQPStorm: the patterns of RabbitMQ's tutorials."""

from common import receive, run, send, show


def work_queue(_connection, channel):
    channel.queue.declare("tasks", durable=True)
    done = {"a": [], "b": []}
    channel.basic.qos(1)
    for worker in done:
        channel.basic.consume(queue="tasks", consumer_tag=worker)
    send(channel, "tasks", *"0123456789", delivery_mode=2)
    for message in channel.build_inbound_messages():
        done[message.method["consumer_tag"]].append(message.body)
        message.ack()
        if sum(map(len, done.values())) == 10:
            break
    print("".join(sorted(done["a"] + done["b"])))
    print(sum(map(bool, done.values())))


def publish_subscribe(_connection, channel):
    channel.exchange.declare("logs", "fanout")
    queues = [channel.queue.declare(exclusive=True)["queue"] for _subscriber in range(2)]
    for queue in queues:
        channel.queue.bind(queue, "logs")
    channel.basic.publish("log", "", "logs")
    for queue in queues:
        show(receive(channel, queue))


def subscribe(channel, exchange, kind, *bindings):
    channel.exchange.declare(exchange, kind)
    queue = channel.queue.declare(exclusive=True)["queue"]
    for key in bindings:
        channel.queue.bind(queue, exchange, key)
    return queue


def routing(_connection, channel):
    queue = subscribe(channel, "direct_logs", "direct", "warning", "error")
    for level in ("info", "warning", "error"):
        channel.basic.publish(level, level, "direct_logs")
    show(receive(channel, queue, 2))


def topics(_connection, channel):
    queue = subscribe(channel, "topic_logs", "topic", "*.critical", "kern.#")
    for key in ("kern.critical", "cron.info", "kern.a.b", "cron.critical"):
        channel.basic.publish(key, key, "topic_logs")
    show(receive(channel, queue, 3))


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def on_request(request):
    answer = str(fibonacci(int(request.body)))
    send(request.channel, request.reply_to, answer, correlation_id=request.correlation_id)


def ask(channel, reply_to):
    channel.queue.declare("rpc_queue")
    channel.basic.consume(on_request, "rpc_queue", no_ack=True)
    replies = []
    channel.basic.consume(replies.append, reply_to, no_ack=True)
    send(channel, "rpc_queue", "15", reply_to=reply_to, correlation_id="1")
    while not replies:
        channel.process_data_events()
    print(replies[0].correlation_id, replies[0].body)


def rpc(_connection, channel):
    ask(channel, channel.queue.declare(exclusive=True)["queue"])


def direct_reply_to(_connection, channel):
    ask(channel, "amq.rabbitmq.reply-to")


run(globals())
