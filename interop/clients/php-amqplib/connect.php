<?php
// php-amqplib: connections.

require __DIR__ . '/common.php';

use PhpAmqpLib\Exception\AMQPConnectionClosedException;
use PhpAmqpLib\Exception\AMQPIOException;
use PhpAmqpLib\Exception\AMQPTimeoutException;

$connect = function () {
    $connection = connect();
    hello($connection->channel());
    $connection->close();
};

run([
    'connect' => $connect,
    'bad-password' => $connect,
    'bad-vhost' => $connect,
    'tls' => $connect,
    'client-certificate' => $connect,
    'heartbeat' => function () {
        $connection = connect(heartbeat: 1, read_write_timeout: 3);
        for ($n = 0; $n < 8; $n++) {
            $connection->checkHeartBeat();
            try {
                $connection->wait(null, false, 0.5);
            } catch (AMQPTimeoutException $error) {
            }
        }
        hello($connection->channel());
    },
    'channels' => function () {
        $connection = connect();
        $opened = array_map(fn() => $connection->channel(), range(1, 100));
        declareQueue($opened[0], 'channels');
        foreach ($opened as $channel) {
            send($channel, 'channels', ['x']);
        }
        echo count(receive($opened[0], 'channels', 100)), "\n";
    },
    'blocked' => function () {
        $connection = connect();
        $told = [];
        $connection->set_connection_block_handler(function ($reason) use (&$told) {
            $told[] = $reason;
        });
        $connection->set_connection_unblock_handler(function () use (&$told) {
            $told[] = 'unblocked';
        });
        send($connection->channel(), 'nowhere', ['held']);
        while (count($told) < 1) {
            $connection->wait();
        }
        echo "ready\n"; // the runner ends the alarm
        while (count($told) < 2) {
            $connection->wait();
        }
        echo implode("\n", $told), "\n";
    },
    'reconnect' => function () {
        $channel = connect()->channel();
        declareQueue($channel, 'kept', [], true);
        $channel->confirm_select();
        send($channel, 'kept', ['kept'], ['delivery_mode' => 2]);
        $channel->wait_for_pending_acks();
        receive($channel, 'kept', 1, false);
        echo "ready\n"; // the runner kills the broker and starts it again
        try {
            $channel->wait();
        } catch (AMQPConnectionClosedException $error) {
        }
        for ($again = null; $again === null; usleep(100000)) {
            try {
                $again = connect();
            } catch (AMQPIOException | AMQPConnectionClosedException | AMQPTimeoutException $error) {
            }
        }
        show(receive($again->channel(), 'kept'));
        $again->close();
    },
], connected: false);
