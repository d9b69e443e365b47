<?php
// php-amqplib: streams.

require __DIR__ . '/common.php';

function readStream($channel, string $name, array $arguments): void
{
    declareQueue($channel, $name, ['x-queue-type' => 'stream'], true);
    foreach (range(0, 9) as $n) {
        send($channel, $name, [$n], headers(['x-stream-filter-value' => $n % 2 ? 'odd' : 'even']));
    }
    $channel->basic_qos(0, 10, false);
    show(receive($channel, $name, 5, false, $arguments));
}

run([
    'stream-offset' => fn($channel) => readStream($channel, 'stream', ['x-stream-offset' => 5]),
    'stream-filter' => fn($channel) =>
        readStream($channel, 'filtered', ['x-stream-offset' => 'first', 'x-stream-filter' => 'odd']),
]);
