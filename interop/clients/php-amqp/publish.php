<?php
// PHP's extension amqp: confirms, returns, transactions, headers and bodies.

require __DIR__ . '/common.php';

const CROSSING = ['text' => 'grüße', 'number' => 42, 'yes' => true, 'array' => [1, 'two'], 'table' => ['a' => 'b']];
const RECEIVED = ['array' => ['two']] + CROSSING; // the extension skips numbers in arrays that it receives

function publishConfirmed(AMQPChannel $channel, string $name, array $bodies): void
{
    $queue = queue($channel, $name, [], AMQP_DURABLE);
    $channel->confirmSelect();
    send($channel, $name, $bodies, ['delivery_mode' => 2]);
    awaitConfirms($channel, count($bodies));
    echo $queue->delete(), "\n";
}

run([
    'confirm' => fn($channel) => publishConfirmed($channel, 'confirmed', ['safe']),
    'confirm-batch' => fn($channel) => publishConfirmed($channel, 'batch', range(1, 1000)),
    'mandatory' => function ($channel) {
        $channel->setReturnCallback(function ($replyCode) {
            echo "$replyCode\n";
            return false;
        });
        send($channel, 'nowhere', ['lost'], [], AMQP_MANDATORY);
        $channel->waitForBasicReturn();
    },
    'tx' => function ($channel) {
        $queue = queue($channel, 'tx');
        $channel->startTransaction();
        send($channel, 'tx', ['no']);
        $channel->rollbackTransaction();
        send($channel, 'tx', ['yes']);
        $channel->commitTransaction();
        show(receive($queue));
    },
    'headers' => function ($channel) {
        $sent = ['text' => 'grüße', 'yes' => true, 'nothing' => null, 'int' => -5, 'long' => 1 << 40, 'double' => 2.5];
        $sent += ['array' => ['one', 'two'], 'table' => ['a' => ['b' => 'c']]];
        $sent += ['time' => new AMQPTimestamp(1767323045), 'decimal' => new AMQPDecimal(2, 314)];
        $queue = queue($channel, 'headers');
        send($channel, 'headers', [''], ['headers' => $sent]);
        $got = receive($queue)[0]->getHeaders();
        echo $got == $sent ? 'pass' : var_export($got, true), "\n";
    },
    'bodies' => function ($channel) {
        $queue = queue($channel, 'bodies');
        foreach ([0, 1, 131064, 131065, 1 << 20, 16 << 20] as $size) {
            send($channel, 'bodies', [str_repeat('x', $size)]);
            echo substr_count((string) receive($queue)[0]->getBody(), 'x'), "\n"; // false is the body of 0 bytes
        }
    },
    'write' => function ($channel) {
        queue($channel, 'crossing');
        $properties = ['content_type' => 'text/plain', 'message_id' => '7', 'headers' => CROSSING];
        send($channel, 'crossing', [implode(array_map('chr', range(0, 255)))], $properties);
        echo "pass\n";
    },
    'read' => function ($channel) {
        $queue = new AMQPQueue($channel);
        $queue->setName('crossing');
        $message = receive($queue)[0];
        $same = $message->getBody() === implode(array_map('chr', range(0, 255))) && $message->getHeaders() == RECEIVED
            && [$message->getContentType(), $message->getMessageId()] === ['text/plain', '7'];
        echo $same ? 'pass' : var_export($message->getHeaders(), true), "\n";
    },
]);
