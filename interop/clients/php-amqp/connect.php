<?php
// PHP's extension amqp: connections.

require __DIR__ . '/common.php';

$connect = function () {
    $connection = connect();
    hello(new AMQPChannel($connection));
    $connection->disconnect();
};

run([
    'connect' => $connect,
    'bad-password' => $connect,
    'bad-vhost' => $connect,
    'tls' => $connect,
    'client-certificate' => $connect,
    'heartbeat' => function () {
        $connection = connect(['heartbeat' => 1, 'read_timeout' => 4]);
        try {
            queue(new AMQPChannel($connection), 'idle')->consume('print_r'); // heartbeats are sent while it waits
        } catch (AMQPQueueException $error) { // after 4 s
        }
        hello(new AMQPChannel($connection));
    },
    'channels' => function () {
        $connection = connect();
        $opened = array_map(fn() => new AMQPChannel($connection), range(1, 100));
        $queue = queue($opened[0], 'channels');
        foreach ($opened as $channel) {
            send($channel, 'channels', ['x']);
        }
        echo count(receive($queue, 100)), "\n";
    },
    'blocked' => function () {
        echo "not offered: the extension does not report connection.blocked\n";
    },
    'reconnect' => function () {
        $connection = connect();
        $channel = new AMQPChannel($connection);
        $queue = queue($channel, 'kept', [], AMQP_DURABLE);
        $channel->confirmSelect();
        send($channel, 'kept', ['kept'], ['delivery_mode' => 2]);
        awaitConfirms($channel, 1);
        $queue->consume(fn() => false); // holds the message, not acked
        echo "ready\n"; // the runner kills the broker and starts it again
        try {
            $queue->consume(fn() => false, AMQP_JUST_CONSUME);
        } catch (AMQPException $error) {
        }
        for ($again = false; !$again; usleep(100000)) {
            try {
                $again = $connection->reconnect();
            } catch (AMQPConnectionException $error) {
            }
        }
        show(receive(queue(new AMQPChannel($connection), 'kept', [], AMQP_DURABLE)));
    },
], connected: false);
