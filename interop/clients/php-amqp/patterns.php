<?php
// PHP's extension amqp: the patterns of RabbitMQ's tutorials.

require __DIR__ . '/common.php';

function subscribe(AMQPExchange $exchange, array $bindings): AMQPQueue
{
    $queue = queue($exchange->getChannel());
    foreach ($bindings as $key) {
        $queue->bind($exchange->getName(), $key);
    }
    return $queue;
}

function fibonacci(int $n): int
{
    return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2);
}

function ask(AMQPChannel $channel, AMQPQueue $replies): void
{
    queue($channel, 'rpc_queue')->consume(null, AMQP_AUTOACK); // starts a consumer and returns
    $replies->consume(null, AMQP_AUTOACK);
    send($channel, 'rpc_queue', ['15'], ['reply_to' => $replies->getName(), 'correlation_id' => '1']);
    $replies->consume(function ($message, $queue) use ($channel) { // what arrives for both consumers
        if ($queue->getName() === 'rpc_queue') {
            $properties = ['correlation_id' => $message->getCorrelationId()];
            send($channel, $message->getReplyTo(), [fibonacci((int) $message->getBody())], $properties);
            return true;
        }
        echo $message->getCorrelationId(), ' ', $message->getBody(), "\n";
        return false;
    }, AMQP_JUST_CONSUME);
}

run([
    'work-queue' => function ($channel) {
        $done = [];
        $workers = [];
        $channel->qos(0, 1);
        $queue = queue($channel, 'tasks', [], AMQP_DURABLE);
        $other = queue($channel, 'tasks', [], AMQP_DURABLE);
        $queue->consume(null, AMQP_NOPARAM, 'a');
        $other->consume(null, AMQP_NOPARAM, 'b');
        send($channel, 'tasks', range(0, 9), ['delivery_mode' => 2]);
        $queue->consume(function ($message, $queue) use (&$done, &$workers) {
            $done[] = $message->getBody();
            $workers[$message->getConsumerTag()] = true;
            $queue->ack($message->getDeliveryTag());
            return count($done) < 10;
        }, AMQP_JUST_CONSUME);
        sort($done);
        echo implode($done), "\n", count($workers), "\n";
    },
    'publish-subscribe' => function ($channel) {
        $logs = exchange($channel, 'logs', 'fanout');
        $queues = [subscribe($logs, ['']), subscribe($logs, [''])];
        $logs->publish('log');
        foreach ($queues as $queue) {
            show(receive($queue));
        }
    },
    'routing' => function ($channel) {
        $logs = exchange($channel, 'direct_logs', 'direct');
        $queue = subscribe($logs, ['warning', 'error']);
        foreach (['info', 'warning', 'error'] as $level) {
            $logs->publish($level, $level);
        }
        show(receive($queue, 2));
    },
    'topics' => function ($channel) {
        $logs = exchange($channel, 'topic_logs', 'topic');
        $queue = subscribe($logs, ['*.critical', 'kern.#']);
        foreach (['kern.critical', 'cron.info', 'kern.a.b', 'cron.critical'] as $key) {
            $logs->publish($key, $key);
        }
        show(receive($queue, 3));
    },
    'rpc' => fn($channel) => ask($channel, queue($channel)),
    'direct-reply-to' => function ($channel) {
        $replies = new AMQPQueue($channel);
        $replies->setName('amq.rabbitmq.reply-to');
        ask($channel, $replies);
    },
]);
