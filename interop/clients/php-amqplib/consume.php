<?php
// php-amqplib: acks, dead letters, priorities and delays.

require __DIR__ . '/common.php';

use PhpAmqpLib\Exception\AMQPBasicCancelException;
use PhpAmqpLib\Message\AMQPMessage;

function declareDeadLettering($channel, string $queue, string $target): void
{
    declareQueue($channel, $target);
    declareQueue($channel, $queue, ['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => $target]);
}

function showReason($channel, string $queue): void
{
    $headers = receive($channel, $queue)[0]->get('application_headers')->getNativeData();
    echo $headers['x-death'][0]['reason'], "\n";
}

run([
    'prefetch' => function ($channel) {
        declareQueue($channel, 'prefetch');
        send($channel, 'prefetch', range(0, 9));
        $channel->basic_qos(0, 3, false);
        $got = [];
        consume($channel, 'prefetch', function ($message) use (&$got) {
            $got[] = $message;
        });
        while (count($got) < 3) {
            $channel->wait();
        }
        echo $channel->queue_declare('prefetch', true)[1], "\n";
        $channel->basic_ack($got[2]->getDeliveryTag(), true);
        while (count($got) < 6) {
            $channel->wait();
        }
        show(array_slice($got, 3));
    },
    'requeue' => function ($channel) {
        declareQueue($channel, 'requeue');
        send($channel, 'requeue', [1, 2, 3]);
        $three = fn() => array_map(fn() => $channel->basic_get('requeue'), range(1, 3));
        $channel->basic_nack($three()[2]->getDeliveryTag(), true, true);
        $got = $three();
        foreach ($got as $message) {
            echo $message->body, ' ', json_encode($message->isRedelivered()), "\n";
        }
        $channel->basic_reject($got[0]->getDeliveryTag(), false);
        $channel->basic_ack($got[2]->getDeliveryTag(), true);
        echo $channel->queue_purge('requeue'), "\n";
    },
    'cancel' => function ($channel) {
        declareQueue($channel, 'cancel');
        $tag = consume($channel, 'cancel', fn() => exit('delivered after the cancel'), true);
        $channel->basic_cancel($tag);
        send($channel, 'cancel', ['stays']);
        echo $channel->queue_purge('cancel'), "\n";
    },
    'broker-cancel' => function ($channel, $connection) {
        declareQueue($channel, 'cancelled');
        consume($channel, 'cancelled', 'print_r');
        $connection->channel()->queue_delete('cancelled');
        try {
            $channel->wait();
        } catch (AMQPBasicCancelException $error) {
            echo "cancelled\n";
        }
    },
    'dead-letter' => function ($channel) {
        declareDeadLettering($channel, 'rejecting', 'dead');
        send($channel, 'rejecting', ['bad']);
        $channel->basic_get('rejecting')->reject(false);
        showReason($channel, 'dead');
    },
    'message-ttl' => function ($channel) {
        declareDeadLettering($channel, 'ttl', 'expired');
        send($channel, 'ttl', ['short'], ['expiration' => '50']);
        showReason($channel, 'expired');
    },
    'priority' => function ($channel) {
        declareQueue($channel, 'priority', ['x-max-priority' => 5]);
        foreach ([1, 5, 3] as $level) {
            send($channel, 'priority', [$level], ['priority' => $level]);
        }
        show(receive($channel, 'priority', 3));
    },
    'delayed' => function ($channel) {
        declareExchange($channel, 'delayed', 'x-delayed-message', ['x-delayed-type' => 'fanout']);
        declareQueue($channel, 'delayed');
        $channel->queue_bind('delayed', 'delayed');
        $channel->basic_publish(new AMQPMessage('late', headers(['x-delay' => 1000])), 'delayed');
        $channel->basic_publish(new AMQPMessage('soon', headers(['x-delay' => 1])), 'delayed');
        show(receive($channel, 'delayed', 2));
    },
]);
