<?php
// PHP's extension amqp: the scenarios of ../README.md.

const CROSSING = ['text' => 'grüße', 'number' => 42, 'yes' => true, 'array' => [1, 'two'], 'table' => ['a' => 'b']];
const NOT_OFFERED = [
    'blocked' => 'the extension does not report connection.blocked',
    'broker-cancel' => 'the extension waits on when the broker cancels a consumer',
];

function connect(array $options = []): AMQPConnection
{
    $url = parse_url(getenv('AMQP_URL'));
    $login = ['host' => $url['host'], 'port' => $url['port'], 'login' => $url['user'], 'password' => $url['pass']];
    $files = array_filter(['cacert' => getenv('CA_FILE'), 'cert' => getenv('CERT_FILE'), 'key' => getenv('KEY_FILE')]);
    $connection = new AMQPConnection($login + $files + $options + ['vhost' => urldecode(substr($url['path'], 1))]);
    $connection->connect();
    return $connection;
}

function check($condition, $got = null): void
{
    if (!$condition) {
        throw new Exception('Error: got ' . var_export($got, true));
    }
}

function queue(AMQPChannel $channel, string $name = '', array $arguments = [], int $flags = AMQP_NOPARAM): AMQPQueue
{
    $queue = new AMQPQueue($channel);
    if ($name !== '') {
        $queue->setName($name);
    }
    $queue->setFlags($name === '' ? AMQP_EXCLUSIVE : $flags);
    $queue->setArguments($arguments);
    $queue->declareQueue();
    return $queue;
}

function exchange(AMQPChannel $channel, string $name, string $type, array $arguments = [], int $flags = AMQP_NOPARAM): AMQPExchange
{
    $exchange = new AMQPExchange($channel);
    $exchange->setName($name);
    $exchange->setType($type);
    $exchange->setFlags($flags);
    $exchange->setArguments($arguments);
    $exchange->declareExchange();
    return $exchange;
}

function send(AMQPChannel $channel, string $queue, array $bodies, array $properties = [], int $flags = AMQP_NOPARAM): void
{
    $exchange = new AMQPExchange($channel);
    foreach ($bodies as $body) {
        $exchange->publish((string) $body, $queue, $flags, $properties);
    }
}

function receive(AMQPQueue $queue, int $count, int $flags = AMQP_AUTOACK): array
{
    $got = [];
    $queue->consume(function ($message) use (&$got, $count) {
        $got[] = $message;
        return count($got) < $count;
    }, $flags);
    $queue->cancel();
    return $got;
}

function bodies(array $messages): array
{
    return array_map(fn($message) => (string) $message->getBody(), $messages); // false is the body of 0 bytes
}

function refused(int $code, string $text, callable $call): void
{
    try {
        $call();
    } catch (AMQPException $error) {
        check(str_contains($error->getMessage(), $text), $error->getMessage());
        check($error->getCode() === $code, $error->getCode());
        return;
    }
    throw new Exception('Error: not refused');
}

function patterns($channel, string $name, string $type, array $bindings, array $published, array $expected): void
{
    $exchange = exchange($channel, $name, $type);
    $queue = queue($channel);
    foreach ($bindings as $key) {
        $queue->bind($name, $key);
    }
    foreach ($published as $key) {
        $exchange->publish($key, $key);
    }
    $got = bodies(receive($queue, count($expected)));
    check($got === $expected, $got);
}

function fibonacci(int $n): int
{
    return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2);
}

function askFibonacci(AMQPChannel $channel, AMQPQueue $replies): void
{
    $requests = queue($channel, 'rpc_queue');
    $reply = null;
    $requests->consume(null, AMQP_AUTOACK); // starts a consumer and returns
    $replies->consume(null, AMQP_AUTOACK);
    send($channel, 'rpc_queue', ['15'], ['reply_to' => $replies->getName(), 'correlation_id' => '1']);
    $replies->consume(function ($message, $queue) use ($channel, &$reply) { // what arrives for both consumers
        if ($queue->getName() === 'rpc_queue') {
            $properties = ['correlation_id' => $message->getCorrelationId()];
            send($channel, $message->getReplyTo(), [fibonacci((int) $message->getBody())], $properties);
            return true;
        }
        $reply = $message;
        return false;
    }, AMQP_JUST_CONSUME);
    check([$reply->getCorrelationId(), $reply->getBody()] === ['1', '610'], $reply);
}

function awaitConfirms(AMQPChannel $channel, int $count): void
{
    $confirmed = 0;
    $acked = function ($tag, $multiple) use (&$confirmed, $count) {
        $confirmed = $multiple ? max($confirmed, $tag) : $confirmed + 1;
        return $confirmed < $count;
    };
    $channel->setConfirmCallback($acked, fn() => check(false, 'nack'));
    $channel->waitForConfirm();
}

function reasonOfDeath(AMQPQueue $queue): string
{
    return receive($queue, 1)[0]->getHeader('x-death')[0]['reason'];
}

$deadLettering = fn($queue) => ['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => $queue];

$connects = function ($channel) {
    $queue = queue($channel, 'hello');
    send($channel, 'hello', ['Hello World!']);
    check(bodies(receive($queue, 1)) === ['Hello World!']);
};

$alone = [
    'bad-password' => fn() => refused(403, 'ACCESS_REFUSED', fn() => connect()),
    'bad-vhost' => fn() => refused(530, 'NOT_ALLOWED', fn() => connect()),
    'heartbeat' => function () use ($connects) {
        $connection = connect(['heartbeat' => 1, 'read_timeout' => 4]);
        $channel = new AMQPChannel($connection);
        try {
            queue($channel, 'idle')->consume(fn() => false); // heartbeats are sent while it waits
            check(false, 'a message');
        } catch (AMQPQueueException $error) {
            check($error->getMessage() === 'Consumer timeout exceed', $error->getMessage());
        }
        $connects(new AMQPChannel($connection));
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
        check(bodies(receive(queue(new AMQPChannel($connection), 'kept', [], AMQP_DURABLE), 1)) === ['kept']);
    },
];

$stream = function (AMQPChannel $channel, string $name, array $arguments, array $expected) {
    $queue = queue($channel, $name, ['x-queue-type' => 'stream'], AMQP_DURABLE);
    foreach (range(0, 9) as $n) {
        send($channel, $name, [$n], ['headers' => ['x-stream-filter-value' => $n % 2 ? 'odd' : 'even']]);
    }
    $channel->qos(0, 10);
    $queue->setArguments($arguments); // those of the queue are sent with consume as well
    $got = bodies(receive($queue, count($expected), AMQP_NOPARAM));
    check($got === $expected, $got);
};

$scenarios = [
    'connect' => $connects,
    'tls' => $connects,
    'client-certificate' => $connects,
    'declare' => function ($channel) {
        $exchange = exchange($channel, 'declared', 'topic', [], AMQP_DURABLE);
        $queue = queue($channel, 'declared', [], AMQP_DURABLE);
        $queue->bind('declared', '#');
        $exchange->publish('1', 'key');
        queue($channel, 'declared', [], AMQP_PASSIVE);
        exchange($channel, 'declared', 'topic', [], AMQP_PASSIVE);
        $queue->purge();
        $queue->unbind('declared', '#');
        $exchange->delete();
        check($queue->delete() === 0);
    },
    'missing' => function ($channel, $connection) use ($connects) {
        refused(404, "NOT_FOUND - no queue 'missing'", fn() => queue($channel, 'missing', [], AMQP_PASSIVE));
        $connects(new AMQPChannel($connection));
    },
    'inequivalent' => function ($channel) {
        queue($channel, 'inequivalent', [], AMQP_DURABLE);
        refused(406, "inequivalent arg 'durable'", fn() => queue($channel, 'inequivalent'));
    },
    'float-argument' => function ($channel) {
        queue($channel, 'float', ['x-max-length' => 10]);
        refused(406, 'x-max-length', fn() => queue($channel, 'float', ['x-max-length' => 10.0]));
    },
    'work-queue' => function ($channel, $connection) {
        $done = [];
        $workers = [];
        $channel->qos(0, 1);
        $queue = queue($channel, 'tasks', [], AMQP_DURABLE);
        $other = queue($channel, 'tasks', [], AMQP_DURABLE);
        $queue->consume(null, AMQP_NOPARAM, 'a');
        $other->consume(null, AMQP_NOPARAM, 'b');
        send($channel, 'tasks', range(0, 9), ['delivery_mode' => 2]);
        $queue->consume(function ($message, $queue) use (&$done, &$workers) {
            $done[] = $message->getBody();
            $workers[$message->getConsumerTag()] = true;
            $queue->ack($message->getDeliveryTag());
            return count($done) < 10;
        }, AMQP_JUST_CONSUME);
        sort($done);
        check(implode($done) === '0123456789' && count($workers) === 2, [$done, $workers]);
    },
    'publish-subscribe' => function ($channel) {
        $logs = exchange($channel, 'logs', 'fanout');
        $queues = [queue($channel), queue($channel)];
        foreach ($queues as $queue) {
            $queue->bind('logs');
        }
        $logs->publish('log');
        foreach ($queues as $queue) {
            check(bodies(receive($queue, 1)) === ['log']);
        }
    },
    'routing' => fn($channel) =>
        patterns($channel, 'direct_logs', 'direct', ['warning', 'error'], ['info', 'warning', 'error'], ['warning', 'error']),
    'topics' => function ($channel) {
        $keys = ['kern.critical', 'cron.info', 'kern.a.b', 'cron.critical'];
        patterns($channel, 'topic_logs', 'topic', ['*.critical', 'kern.#'], $keys, [$keys[0], $keys[2], $keys[3]]);
    },
    'rpc' => fn($channel) => askFibonacci($channel, queue($channel)),
    'direct-reply-to' => function ($channel) {
        $replies = new AMQPQueue($channel);
        $replies->setName('amq.rabbitmq.reply-to');
        askFibonacci($channel, $replies);
    },
    'confirm' => function ($channel) {
        queue($channel, 'confirmed', [], AMQP_DURABLE);
        $channel->confirmSelect();
        send($channel, 'confirmed', ['safe'], ['delivery_mode' => 2]);
        awaitConfirms($channel, 1);
    },
    'confirm-batch' => function ($channel) {
        $queue = queue($channel, 'batch', [], AMQP_DURABLE);
        $channel->confirmSelect();
        send($channel, 'batch', range(1, 1000), ['delivery_mode' => 2]);
        awaitConfirms($channel, 1000);
        check($queue->delete() === 1000);
    },
    'mandatory' => function ($channel) {
        $code = null;
        $channel->setReturnCallback(function ($replyCode) use (&$code) {
            $code = $replyCode;
            return false;
        });
        send($channel, 'nowhere', ['lost'], [], AMQP_MANDATORY);
        $channel->waitForBasicReturn();
        check($code === 312, $code);
    },
    'tx' => function ($channel) {
        $queue = queue($channel, 'tx');
        $channel->startTransaction();
        send($channel, 'tx', ['no']);
        $channel->rollbackTransaction();
        send($channel, 'tx', ['yes']);
        $channel->commitTransaction();
        check(bodies(receive($queue, 1)) === ['yes']);
    },
    'headers' => function ($channel) {
        $sent = ['text' => 'grüße', 'yes' => true, 'nothing' => null, 'int' => -5, 'long' => 1 << 40, 'double' => 2.5];
        $sent += ['array' => ['one', 'two'], 'table' => ['a' => ['b' => 'c']]];
        $sent += ['time' => new AMQPTimestamp(1767323045), 'decimal' => new AMQPDecimal(2, 314)];
        $queue = queue($channel, 'headers');
        send($channel, 'headers', [''], ['headers' => $sent]);
        $got = receive($queue, 1)[0]->getHeaders();
        check($got == $sent, $got);
    },
    'bodies' => function ($channel) {
        $queue = queue($channel, 'bodies');
        foreach ([0, 1, 131064, 131065, 1 << 20, 16 << 20] as $size) {
            send($channel, 'bodies', [str_repeat('x', $size)]);
            check(bodies(receive($queue, 1)) === [str_repeat('x', $size)], $size);
        }
    },
    'channels' => function ($channel, $connection) {
        $queue = queue($channel, 'channels');
        $opened = array_map(fn() => new AMQPChannel($connection), range(1, 100));
        foreach ($opened as $each) {
            send($each, 'channels', ['x']);
        }
        receive($queue, 100);
    },
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
        $other = new AMQPQueue(new AMQPChannel($connection));
        $other->setName('prefetch');
        $other->setFlags(AMQP_PASSIVE);
        check($other->declareQueue() === 7);
        $queue->ack($got[2]->getDeliveryTag(), AMQP_MULTIPLE);
        $queue->consume($take, AMQP_JUST_CONSUME);
        check(bodies(array_slice($got, 3)) === ['3', '4', '5'], bodies($got));
    },
    'requeue' => function ($channel) {
        $queue = queue($channel, 'requeue');
        send($channel, 'requeue', [1, 2, 3]);
        $three = fn() => array_map(fn() => $queue->get(), range(1, 3));
        $queue->nack($three()[2]->getDeliveryTag(), AMQP_MULTIPLE | AMQP_REQUEUE);
        $got = $three();
        check(bodies($got) === ['1', '2', '3'] && $got[0]->isRedelivery() && $got[2]->isRedelivery());
        $queue->reject($got[0]->getDeliveryTag());
        $queue->ack($got[2]->getDeliveryTag(), AMQP_MULTIPLE);
        check($queue->get() === false && $queue->delete() === 0);
    },
    'cancel' => function ($channel) {
        $queue = queue($channel, 'cancel');
        $queue->consume(null, AMQP_AUTOACK, 'reader');
        $queue->cancel('reader');
        send($channel, 'cancel', ['stays']);
        check($queue->delete() === 1);
    },
    'dead-letter' => function ($channel) use ($deadLettering) {
        $dead = queue($channel, 'dead');
        $rejecting = queue($channel, 'rejecting', $deadLettering('dead'));
        send($channel, 'rejecting', ['bad']);
        $rejecting->reject($rejecting->get()->getDeliveryTag());
        check(reasonOfDeath($dead) === 'rejected');
    },
    'message-ttl' => function ($channel) use ($deadLettering) {
        $expired = queue($channel, 'expired');
        queue($channel, 'ttl', $deadLettering('expired'));
        send($channel, 'ttl', ['short'], ['expiration' => '50']);
        check(reasonOfDeath($expired) === 'expired');
    },
    'queue-ttl' => function ($channel) {
        $queue = queue($channel, 'leased', ['x-expires' => 100]);
        refused(404, 'NOT_FOUND', function () use ($queue) {
            while (true) { // a bind does not renew the lease
                $queue->bind('amq.fanout');
                usleep(50000);
            }
        });
    },
    'priority' => function ($channel) {
        $queue = queue($channel, 'priority', ['x-max-priority' => 5]);
        foreach ([1, 5, 3] as $level) {
            send($channel, 'priority', [$level], ['priority' => $level]);
        }
        check(bodies(receive($queue, 3)) === ['5', '3', '1']);
    },
    'delayed' => function ($channel) {
        $delayed = exchange($channel, 'delayed', 'x-delayed-message', ['x-delayed-type' => 'fanout']);
        $queue = queue($channel, 'delayed');
        $queue->bind('delayed');
        foreach (['late' => 1000, 'soon' => 1] as $body => $delay) {
            $delayed->publish($body, '', AMQP_NOPARAM, ['headers' => ['x-delay' => $delay]]);
        }
        check(bodies(receive($queue, 2)) === ['soon', 'late']);
    },
    'stream-offset' => fn($channel) => $stream($channel, 'stream', ['x-stream-offset' => 5], ['5', '6', '7', '8', '9']),
    'stream-filter' => fn($channel) =>
        $stream($channel, 'filtered', ['x-stream-offset' => 'first', 'x-stream-filter' => 'odd'], ['1', '3', '5', '7', '9']),
    'policy' => function ($channel) {
        $queue = queue($channel, 'limited');
        send($channel, 'limited', [1, 2, 3, 4]);
        check($queue->delete() === 2);
    },
    'write' => function ($channel) {
        queue($channel, 'crossing');
        $properties = ['content_type' => 'text/plain', 'message_id' => '7', 'headers' => CROSSING];
        send($channel, 'crossing', [implode(array_map('chr', range(0, 255)))], $properties);
    },
    'read' => function ($channel) {
        $queue = new AMQPQueue($channel);
        $queue->setName('crossing');
        $message = receive($queue, 1)[0];
        check($message->getBody() === implode(array_map('chr', range(0, 255))));
        $expected = ['array' => ['two']] + CROSSING; // the extension skips numbers in arrays that it receives
        check($message->getHeaders() == $expected, $message->getHeaders());
        check([$message->getContentType(), $message->getMessageId()] === ['text/plain', '7']);
    },
];

$name = $argv[1];
if ($name === 'version') {
    echo phpversion('amqp'), "\n";
} elseif (isset(NOT_OFFERED[$name])) {
    echo 'not offered: ', NOT_OFFERED[$name], "\n";
} elseif (isset($alone[$name])) {
    $alone[$name]();
    echo "pass\n";
} else {
    $connection = connect();
    $scenarios[$name](new AMQPChannel($connection), $connection);
    $connection->disconnect();
    echo "pass\n";
}
