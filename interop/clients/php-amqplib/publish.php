<?php
// php-amqplib: confirms, returns, transactions, headers and bodies.

require __DIR__ . '/common.php';

use PhpAmqpLib\Message\AMQPMessage;

const CROSSING = ['text' => 'grüße', 'number' => 42, 'yes' => true, 'array' => [1, 'two'], 'table' => ['a' => 'b']];

function publishConfirmed($channel, string $queue, array $bodies): void
{
    declareQueue($channel, $queue, [], true);
    $channel->confirm_select();
    $channel->set_nack_handler(fn() => exit('nack'));
    send($channel, $queue, $bodies, ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT]);
    $channel->wait_for_pending_acks();
    echo $channel->queue_purge($queue), "\n";
}

run([
    'confirm' => fn($channel) => publishConfirmed($channel, 'confirmed', ['safe']),
    'confirm-batch' => fn($channel) => publishConfirmed($channel, 'batch', range(1, 1000)),
    'mandatory' => function ($channel) {
        $code = null;
        $channel->set_return_listener(function ($replyCode) use (&$code) {
            $code = $replyCode;
        });
        $channel->basic_publish(new AMQPMessage('lost'), '', 'nowhere', true);
        while ($code === null) {
            $channel->wait();
        }
        echo "$code\n";
    },
    'tx' => function ($channel) {
        declareQueue($channel, 'tx');
        $channel->tx_select();
        send($channel, 'tx', ['no']);
        $channel->tx_rollback();
        send($channel, 'tx', ['yes']);
        $channel->tx_commit();
        show(receive($channel, 'tx'));
    },
    'headers' => function ($channel) {
        $sent = CROSSING + ['nothing' => null, 'long' => 1 << 40, 'negative' => -5, 'deep' => ['a' => ['b' => ['c']]]];
        $sent += ['time' => new DateTime('@1767323045')];
        declareQueue($channel, 'headers');
        send($channel, 'headers', [''], headers($sent));
        $got = receive($channel, 'headers')[0]->get('application_headers')->getNativeData();
        echo $got == $sent ? 'pass' : var_export($got, true), "\n";
    },
    'bodies' => function ($channel) {
        declareQueue($channel, 'bodies');
        foreach ([0, 1, 131064, 131065, 1 << 20, 16 << 20] as $size) {
            send($channel, 'bodies', [str_repeat('x', $size)]);
            echo substr_count(receive($channel, 'bodies')[0]->body, 'x'), "\n";
        }
    },
    'write' => function ($channel) {
        declareQueue($channel, 'crossing');
        $properties = ['content_type' => 'text/plain', 'message_id' => '7'] + headers(CROSSING);
        send($channel, 'crossing', [implode(array_map('chr', range(0, 255)))], $properties);
        echo "pass\n";
    },
    'read' => function ($channel) {
        $message = receive($channel, 'crossing')[0];
        $headers = $message->get('application_headers')->getNativeData();
        $same = $message->body === implode(array_map('chr', range(0, 255))) && $headers == CROSSING
            && [$message->get('content_type'), $message->get('message_id')] === ['text/plain', '7'];
        echo $same ? 'pass' : var_export($headers, true), "\n";
    },
]);
