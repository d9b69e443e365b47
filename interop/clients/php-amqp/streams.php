<?php
// PHP's extension amqp: streams.

require __DIR__ . '/common.php';

function readStream(AMQPChannel $channel, string $name, array $arguments): void
{
    $queue = queue($channel, $name, ['x-queue-type' => 'stream'], AMQP_DURABLE);
    foreach (range(0, 9) as $n) {
        send($channel, $name, [$n], ['headers' => ['x-stream-filter-value' => $n % 2 ? 'odd' : 'even']]);
    }
    $channel->qos(0, 10);
    $queue->setArguments($arguments); // those of the queue are sent with consume as well
    show(receive($queue, 5, AMQP_NOPARAM));
}

run([
    'stream-offset' => fn($channel) => readStream($channel, 'stream', ['x-stream-offset' => 5]),
    'stream-filter' => fn($channel) =>
        readStream($channel, 'filtered', ['x-stream-offset' => 'first', 'x-stream-filter' => 'odd']),
]);
