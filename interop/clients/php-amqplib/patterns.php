<?php
// php-amqplib: the patterns of RabbitMQ's tutorials.

require __DIR__ . '/common.php';

use PhpAmqpLib\Message\AMQPMessage;

function subscribe($channel, string $exchange, string $type, array $bindings): string
{
    declareExchange($channel, $exchange, $type);
    $queue = declareQueue($channel);
    foreach ($bindings as $key) {
        $channel->queue_bind($queue, $exchange, $key);
    }
    return $queue;
}

function fibonacci(int $n): int
{
    return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2);
}

function ask($channel, string $replyTo): void
{
    declareQueue($channel, 'rpc_queue');
    consume($channel, 'rpc_queue', function ($request) use ($channel) {
        $properties = ['correlation_id' => $request->get('correlation_id')];
        send($channel, $request->get('reply_to'), [fibonacci((int) $request->body)], $properties);
    }, true);
    $reply = null;
    consume($channel, $replyTo, function ($message) use (&$reply) {
        $reply = $message;
    }, true);
    send($channel, 'rpc_queue', ['15'], ['reply_to' => $replyTo, 'correlation_id' => '1']);
    while ($reply === null) {
        $channel->wait();
    }
    echo $reply->get('correlation_id'), ' ', $reply->body, "\n";
}

run([
    'work-queue' => function ($channel) {
        declareQueue($channel, 'tasks', [], true);
        $channel->basic_qos(0, 1, false);
        $done = [];
        $workers = [];
        $work = function ($message) use (&$done, &$workers) {
            $done[] = $message->body;
            $workers[$message->getConsumerTag()] = true;
            $message->ack();
        };
        consume($channel, 'tasks', $work);
        consume($channel, 'tasks', $work);
        send($channel, 'tasks', range(0, 9), ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT]);
        while (count($done) < 10) {
            $channel->wait();
        }
        sort($done);
        echo implode($done), "\n", count($workers), "\n";
    },
    'publish-subscribe' => function ($channel) {
        $queues = [subscribe($channel, 'logs', 'fanout', ['']), subscribe($channel, 'logs', 'fanout', [''])];
        $channel->basic_publish(new AMQPMessage('log'), 'logs');
        foreach ($queues as $queue) {
            show(receive($channel, $queue));
        }
    },
    'routing' => function ($channel) {
        $queue = subscribe($channel, 'direct_logs', 'direct', ['warning', 'error']);
        foreach (['info', 'warning', 'error'] as $level) {
            $channel->basic_publish(new AMQPMessage($level), 'direct_logs', $level);
        }
        show(receive($channel, $queue, 2));
    },
    'topics' => function ($channel) {
        $queue = subscribe($channel, 'topic_logs', 'topic', ['*.critical', 'kern.#']);
        foreach (['kern.critical', 'cron.info', 'kern.a.b', 'cron.critical'] as $key) {
            $channel->basic_publish(new AMQPMessage($key), 'topic_logs', $key);
        }
        show(receive($channel, $queue, 3));
    },
    'rpc' => fn($channel) => ask($channel, declareQueue($channel)),
    'direct-reply-to' => fn($channel) => ask($channel, 'amq.rabbitmq.reply-to'),
]);
