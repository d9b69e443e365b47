<?php
// php-amqplib: queues, exchanges and bindings.

require __DIR__ . '/common.php';

use PhpAmqpLib\Message\AMQPMessage;

run([
    'declare' => function ($channel) {
        declareQueue($channel, 'declared', [], true);
        $channel->exchange_declare('declared', 'topic', false, true, false);
        $channel->queue_bind('declared', 'declared', '#');
        $channel->basic_publish(new AMQPMessage('1'), 'declared', 'key');
        $channel->queue_declare('declared', true);
        $channel->exchange_declare('declared', 'topic', true);
        echo $channel->queue_purge('declared'), "\n";
        $channel->queue_unbind('declared', 'declared', '#');
        $channel->exchange_delete('declared');
        $channel->queue_delete('declared');
    },
    'missing' => function ($channel, $connection) {
        showRefusal(fn() => $channel->queue_declare('missing', true));
        hello($connection->channel());
    },
    'inequivalent' => function ($channel) {
        declareQueue($channel, 'inequivalent', [], true);
        declareQueue($channel, 'inequivalent');
    },
    'float-argument' => function () {
        echo "not offered: php-amqplib does not send floats\n";
    },
    'queue-ttl' => function ($channel) {
        declareQueue($channel, 'leased', ['x-expires' => 100]);
        while (true) { // a bind does not renew the lease
            $channel->queue_bind('leased', 'amq.fanout');
            usleep(50000);
        }
    },
    'policy' => function ($channel) {
        declareQueue($channel, 'limited');
        send($channel, 'limited', [1, 2, 3, 4]);
        echo $channel->queue_purge('limited'), "\n";
    },
]);
