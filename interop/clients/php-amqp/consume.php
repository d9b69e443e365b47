<?php
// PHP's extension amqp: acks, dead letters, priorities and delays.

require __DIR__ . '/common.php';

function declareDeadLettering(AMQPChannel $channel, string $name, string $target): array
{
    $arguments = ['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => $target];
    return [queue($channel, $name, $arguments), queue($channel, $target)];
}

function showReason(AMQPQueue $queue): void
{
    echo receive($queue)[0]->getHeader('x-death')[0]['reason'], "\n";
}

run([
    'prefetch' => function ($channel, $connection) {
        $queue = queue($channel, 'prefetch');
        send($channel, 'prefetch', range(0, 9));
        $channel->qos(0, 3);
        $got = [];
        $take = function ($message) use (&$got) {
            $got[] = $message;
            return count($got) % 3 > 0;
        };
        $queue->consume($take);
        $passive = queue(new AMQPChannel($connection), 'prefetch', [], AMQP_PASSIVE);
        echo $passive->declareQueue(), "\n";
        $queue->ack($got[2]->getDeliveryTag(), AMQP_MULTIPLE);
        $queue->consume($take, AMQP_JUST_CONSUME);
        show(array_slice($got, 3));
    },
    'requeue' => function ($channel) {
        $queue = queue($channel, 'requeue');
        send($channel, 'requeue', [1, 2, 3]);
        $three = fn() => array_map(fn() => $queue->get(), range(1, 3));
        $queue->nack($three()[2]->getDeliveryTag(), AMQP_MULTIPLE | AMQP_REQUEUE);
        $got = $three();
        foreach ($got as $message) {
            echo $message->getBody(), ' ', json_encode($message->isRedelivery()), "\n";
        }
        $queue->reject($got[0]->getDeliveryTag());
        $queue->ack($got[2]->getDeliveryTag(), AMQP_MULTIPLE);
        echo $queue->delete(), "\n";
    },
    'cancel' => function ($channel) {
        $queue = queue($channel, 'cancel');
        $queue->consume(null, AMQP_AUTOACK, 'reader');
        $queue->cancel('reader');
        send($channel, 'cancel', ['stays']);
        echo $queue->delete(), "\n";
    },
    'broker-cancel' => function () {
        echo "not offered: the extension waits on when the broker cancels a consumer\n";
    },
    'dead-letter' => function ($channel) {
        [$queue, $dead] = declareDeadLettering($channel, 'rejecting', 'dead');
        send($channel, 'rejecting', ['bad']);
        $queue->reject($queue->get()->getDeliveryTag());
        showReason($dead);
    },
    'message-ttl' => function ($channel) {
        [, $expired] = declareDeadLettering($channel, 'ttl', 'expired');
        send($channel, 'ttl', ['short'], ['expiration' => '50']);
        showReason($expired);
    },
    'priority' => function ($channel) {
        $queue = queue($channel, 'priority', ['x-max-priority' => 5]);
        foreach ([1, 5, 3] as $level) {
            send($channel, 'priority', [$level], ['priority' => $level]);
        }
        show(receive($queue, 3));
    },
    'delayed' => function ($channel) {
        $delayed = exchange($channel, 'delayed', 'x-delayed-message', ['x-delayed-type' => 'fanout']);
        $queue = queue($channel, 'delayed');
        $queue->bind('delayed');
        foreach (['late' => 1000, 'soon' => 1] as $body => $delay) {
            $delayed->publish($body, '', AMQP_NOPARAM, ['headers' => ['x-delay' => $delay]]);
        }
        show(receive($queue, 2));
    },
]);
