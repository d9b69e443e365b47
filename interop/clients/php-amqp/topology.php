<?php
// PHP's extension amqp: queues, exchanges and bindings.

require __DIR__ . '/common.php';

run([
    'declare' => function ($channel) {
        $exchange = exchange($channel, 'declared', 'topic', [], AMQP_DURABLE);
        $queue = queue($channel, 'declared', [], AMQP_DURABLE);
        $queue->bind('declared', '#');
        $exchange->publish('1', 'key');
        $passive = queue($channel, 'declared', [], AMQP_PASSIVE);
        exchange($channel, 'declared', 'topic', [], AMQP_PASSIVE);
        echo $passive->declareQueue(), "\n"; // purge does not return the number of messages
        $queue->purge();
        $queue->unbind('declared', '#');
        $exchange->delete();
        $queue->delete();
    },
    'missing' => function ($channel, $connection) {
        showRefusal(fn() => queue($channel, 'missing', [], AMQP_PASSIVE));
        hello(new AMQPChannel($connection));
    },
    'inequivalent' => function ($channel) {
        queue($channel, 'inequivalent', [], AMQP_DURABLE);
        queue($channel, 'inequivalent');
    },
    'float-argument' => function ($channel) {
        queue($channel, 'float', ['x-max-length' => 10]);
        queue($channel, 'float', ['x-max-length' => 10.0]);
    },
    'queue-ttl' => function ($channel) {
        $queue = queue($channel, 'leased', ['x-expires' => 100]);
        while (true) { // a bind does not renew the lease
            $queue->bind('amq.fanout');
            usleep(50000);
        }
    },
    'policy' => function ($channel) {
        $queue = queue($channel, 'limited');
        send($channel, 'limited', [1, 2, 3, 4]);
        echo $queue->delete(), "\n";
    },
]);
