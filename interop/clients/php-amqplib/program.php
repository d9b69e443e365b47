<?php
// php-amqplib: the scenarios of ../README.md.

require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPSSLConnection;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPConnectionClosedException;
use PhpAmqpLib\Exception\AMQPIOException;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Exception\AMQPTimeoutException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

const CROSSING = ['text' => 'grüße', 'number' => 42, 'yes' => true, 'array' => [1, 'two'], 'table' => ['a' => 'b']];
const NOT_OFFERED = ['float-argument' => 'php-amqplib does not send floats'];

function connect(array $options = [])
{
    $url = parse_url(getenv('AMQP_URL'));
    $login = [$url['host'], $url['port'], $url['user'], $url['pass'], urldecode(substr($url['path'], 1))];
    if (getenv('CA_FILE')) {
        $files = ['cafile' => getenv('CA_FILE'), 'verify_peer' => true];
        if (getenv('CERT_FILE')) {
            $files += ['local_cert' => getenv('CERT_FILE'), 'local_pk' => getenv('KEY_FILE')];
        }
        return new AMQPSSLConnection(...[...$login, $files]);
    }
    return new AMQPStreamConnection(...$login, ...$options);
}

function check($condition, $got = null): void
{
    if (!$condition) {
        throw new Exception('Error: got ' . var_export($got, true));
    }
}

function send($channel, string $queue, array $bodies, array $properties = []): void
{
    foreach ($bodies as $body) {
        $channel->basic_publish(new AMQPMessage((string) $body, $properties), '', $queue);
    }
}

function headers(array $values): array
{
    return ['application_headers' => new AMQPTable($values)];
}

function declareQueue($channel, string $name = '', array $arguments = [], bool $durable = false): string
{
    return $channel->queue_declare($name, false, $durable, $name === '', false, false, new AMQPTable($arguments))[0];
}

function declareExchange($channel, string $name, string $type, array $arguments = []): void
{
    $channel->exchange_declare($name, $type, false, false, false, false, false, new AMQPTable($arguments));
}

function receive($channel, string $queue, int $count, bool $noAck = true, array $arguments = []): array
{
    $got = [];
    $callback = function ($message) use (&$got) {
        $got[] = $message;
    };
    $tag = $channel->basic_consume($queue, '', false, $noAck, false, false, $callback, null, new AMQPTable($arguments));
    while (count($got) < $count) {
        $channel->wait();
    }
    if ($noAck) {
        $channel->basic_cancel($tag);
    }
    return $got;
}

function bodiesOf(array $messages): array
{
    return array_map(fn($message) => $message->body, $messages);
}

function refused(int $code, string $text, callable $call): void
{
    try {
        $call();
    } catch (AMQPProtocolChannelException | AMQPConnectionClosedException $error) {
        check(str_contains($error->getMessage(), $text), $error->getMessage());
        check($error->getCode() === $code, $error->getCode());
        return;
    }
    throw new Exception('Error: not refused');
}

function patterns($channel, string $exchange, string $type, array $bindings, array $published, array $expected): void
{
    declareExchange($channel, $exchange, $type);
    $queue = declareQueue($channel);
    foreach ($bindings as $key) {
        $channel->queue_bind($queue, $exchange, $key);
    }
    foreach ($published as $key) {
        $channel->basic_publish(new AMQPMessage($key), $exchange, $key);
    }
    $got = bodiesOf(receive($channel, $queue, count($expected)));
    check($got === $expected, $got);
}

function fibonacci(int $n): int
{
    return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2);
}

function askFibonacci($channel, string $callback): void
{
    declareQueue($channel, 'rpc_queue');
    $channel->basic_consume('rpc_queue', '', false, true, false, false, function ($request) use ($channel) {
        $properties = ['correlation_id' => $request->get('correlation_id')];
        send($channel, $request->get('reply_to'), [fibonacci((int) $request->body)], $properties);
    });
    $reply = null;
    $channel->basic_consume($callback, '', false, true, false, false, function ($message) use (&$reply) {
        $reply = $message;
    });
    send($channel, 'rpc_queue', ['15'], ['reply_to' => $callback, 'correlation_id' => '1']);
    while ($reply === null) {
        $channel->wait();
    }
    check([$reply->get('correlation_id'), $reply->body] === ['1', '610'], $reply->body);
}

function stream($channel, string $name, array $arguments, array $expected): void
{
    declareQueue($channel, $name, ['x-queue-type' => 'stream'], true);
    for ($n = 0; $n < 10; $n++) {
        send($channel, $name, [$n], headers(['x-stream-filter-value' => $n % 2 ? 'odd' : 'even']));
    }
    $channel->basic_qos(0, 10, false);
    $got = bodiesOf(receive($channel, $name, count($expected), false, $arguments));
    check($got === $expected, $got);
}

function reasonOfDeath($channel, string $queue): string
{
    return receive($channel, $queue, 1)[0]->get('application_headers')->getNativeData()['x-death'][0]['reason'];
}

$connects = function ($channel) {
    declareQueue($channel, 'hello');
    send($channel, 'hello', ['Hello World!']);
    check(bodiesOf(receive($channel, 'hello', 1)) === ['Hello World!']);
};

$alone = [
    'bad-password' => fn() => refused(403, 'ACCESS_REFUSED', fn() => connect()),
    'bad-vhost' => fn() => refused(530, 'NOT_ALLOWED', fn() => connect()),
    'heartbeat' => function () use ($connects) {
        $connection = connect(['heartbeat' => 1, 'read_write_timeout' => 3]);
        for ($n = 0; $n < 8; $n++) {
            $connection->checkHeartBeat();
            try {
                $connection->wait(null, false, 0.5);
            } catch (AMQPTimeoutException $error) {
            }
        }
        $connects($connection->channel());
    },
];

$scenarios = [
    'connect' => $connects,
    'tls' => $connects,
    'client-certificate' => $connects,
    'declare' => function ($channel) {
        declareQueue($channel, 'declared', [], true);
        $channel->exchange_declare('declared', 'topic', false, true, false);
        $channel->queue_bind('declared', 'declared', '#');
        $channel->basic_publish(new AMQPMessage('1'), 'declared', 'key');
        $channel->queue_declare('declared', true);
        $channel->exchange_declare('declared', 'topic', true);
        check($channel->queue_purge('declared') === 1);
        $channel->queue_unbind('declared', 'declared', '#');
        $channel->exchange_delete('declared');
        $channel->queue_delete('declared');
    },
    'missing' => function ($channel, $connection) use ($connects) {
        refused(404, "NOT_FOUND - no queue 'missing'", fn() => $channel->queue_declare('missing', true));
        $connects($connection->channel());
    },
    'inequivalent' => function ($channel) {
        declareQueue($channel, 'inequivalent', [], true);
        refused(406, "inequivalent arg 'durable'", fn() => declareQueue($channel, 'inequivalent'));
    },
    'work-queue' => function ($channel) {
        declareQueue($channel, 'tasks', [], true);
        $channel->basic_qos(0, 1, false);
        $done = [];
        $workers = [];
        $work = function ($message) use (&$done, &$workers) {
            $done[] = $message->body;
            $workers[$message->getConsumerTag()] = true;
            $message->ack();
        };
        $channel->basic_consume('tasks', 'a', false, false, false, false, $work);
        $channel->basic_consume('tasks', 'b', false, false, false, false, $work);
        send($channel, 'tasks', range(0, 9), ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT]);
        while (count($done) < 10) {
            $channel->wait();
        }
        sort($done);
        check(implode($done) === '0123456789' && count($workers) === 2, $done);
    },
    'publish-subscribe' => function ($channel) {
        declareExchange($channel, 'logs', 'fanout');
        $queues = [declareQueue($channel), declareQueue($channel)];
        foreach ($queues as $queue) {
            $channel->queue_bind($queue, 'logs');
        }
        $channel->basic_publish(new AMQPMessage('log'), 'logs');
        foreach ($queues as $queue) {
            check(bodiesOf(receive($channel, $queue, 1)) === ['log']);
        }
    },
    'routing' => fn($channel) =>
        patterns($channel, 'direct_logs', 'direct', ['warning', 'error'], ['info', 'warning', 'error'], ['warning', 'error']),
    'topics' => function ($channel) {
        $keys = ['kern.critical', 'cron.info', 'kern.a.b', 'cron.critical'];
        patterns($channel, 'topic_logs', 'topic', ['*.critical', 'kern.#'], $keys, [$keys[0], $keys[2], $keys[3]]);
    },
    'rpc' => fn($channel) => askFibonacci($channel, declareQueue($channel)),
    'direct-reply-to' => fn($channel) => askFibonacci($channel, 'amq.rabbitmq.reply-to'),
    'confirm' => function ($channel) {
        declareQueue($channel, 'confirmed', [], true);
        $channel->confirm_select();
        $channel->set_nack_handler(fn() => check(false, 'nack'));
        send($channel, 'confirmed', ['safe'], ['delivery_mode' => 2]);
        $channel->wait_for_pending_acks();
    },
    'confirm-batch' => function ($channel) {
        declareQueue($channel, 'batch', [], true);
        $channel->confirm_select();
        send($channel, 'batch', range(1, 1000), ['delivery_mode' => 2]);
        $channel->wait_for_pending_acks();
        check($channel->queue_purge('batch') === 1000);
    },
    'mandatory' => function ($channel) {
        $code = null;
        $channel->set_return_listener(function ($replyCode) use (&$code) {
            $code = $replyCode;
        });
        $channel->basic_publish(new AMQPMessage('lost'), '', 'nowhere', true);
        while ($code === null) {
            $channel->wait();
        }
        check($code === 312, $code);
    },
    'tx' => function ($channel) {
        declareQueue($channel, 'tx');
        $channel->tx_select();
        send($channel, 'tx', ['no']);
        $channel->tx_rollback();
        send($channel, 'tx', ['yes']);
        $channel->tx_commit();
        check(bodiesOf(receive($channel, 'tx', 1)) === ['yes']);
    },
    'headers' => function ($channel) {
        $sent = ['text' => 'grüße', 'yes' => true, 'nothing' => null, 'int' => -5, 'long' => 1 << 40, 'array' => [1, 'two']];
        $sent += ['table' => ['a' => ['b' => 'c']], 'time' => new DateTime('@1767323045')];
        declareQueue($channel, 'headers');
        send($channel, 'headers', [''], headers($sent));
        $got = receive($channel, 'headers', 1)[0]->get('application_headers')->getNativeData();
        check($got == $sent, $got);
    },
    'bodies' => function ($channel) {
        declareQueue($channel, 'bodies');
        foreach ([0, 1, 131064, 131065, 1 << 20, 16 << 20] as $size) {
            send($channel, 'bodies', [str_repeat('x', $size)]);
            check(receive($channel, 'bodies', 1)[0]->body === str_repeat('x', $size), $size);
        }
    },
    'channels' => function ($channel, $connection) {
        declareQueue($channel, 'channels');
        $opened = array_map(fn() => $connection->channel(), range(1, 100));
        foreach ($opened as $each) {
            send($each, 'channels', ['x']);
        }
        receive($channel, 'channels', 100);
    },
    'prefetch' => function ($channel) {
        declareQueue($channel, 'prefetch');
        send($channel, 'prefetch', range(0, 9));
        $channel->basic_qos(0, 3, false);
        $got = [];
        $channel->basic_consume('prefetch', '', false, false, false, false, function ($message) use (&$got) {
            $got[] = $message;
        });
        while (count($got) < 3) {
            $channel->wait();
        }
        check($channel->queue_declare('prefetch', true)[1] === 7);
        $channel->basic_ack($got[2]->getDeliveryTag(), true);
        while (count($got) < 6) {
            $channel->wait();
        }
        check(bodiesOf(array_slice($got, 3)) === ['3', '4', '5']);
    },
    'requeue' => function ($channel) {
        declareQueue($channel, 'requeue');
        send($channel, 'requeue', [1, 2, 3]);
        $three = fn() => array_map(fn() => $channel->basic_get('requeue'), range(1, 3));
        $channel->basic_nack($three()[2]->getDeliveryTag(), true, true);
        $got = $three();
        check(bodiesOf($got) === ['1', '2', '3'] && $got[0]->isRedelivered() && $got[2]->isRedelivered());
        $channel->basic_reject($got[0]->getDeliveryTag(), false);
        $channel->basic_ack($got[2]->getDeliveryTag(), true);
        check($channel->queue_purge('requeue') === 0);
    },
    'cancel' => function ($channel) {
        declareQueue($channel, 'cancel');
        $tag = $channel->basic_consume('cancel', '', false, true, false, false, fn() => check(false, 'a message'));
        $channel->basic_cancel($tag);
        send($channel, 'cancel', ['stays']);
        check($channel->queue_purge('cancel') === 1);
    },
    'broker-cancel' => function ($channel, $connection) {
        declareQueue($channel, 'cancelled');
        $channel->basic_consume('cancelled', 'reader');
        $connection->channel()->queue_delete('cancelled');
        try {
            $channel->wait();
        } catch (PhpAmqpLib\Exception\AMQPBasicCancelException $error) {
            check($error->consumerTag === 'reader', $error->consumerTag);
            return;
        }
        throw new Exception('Error: not cancelled');
    },
    'blocked' => function ($channel, $connection) {
        $told = [];
        $connection->set_connection_block_handler(function ($reason) use (&$told) {
            $told[] = $reason;
        });
        $connection->set_connection_unblock_handler(function () use (&$told) {
            $told[] = 'unblocked';
        });
        send($channel, 'nowhere', ['held']);
        while ($told !== ['low on memory']) {
            $connection->wait();
        }
        echo "ready\n"; // the runner ends the alarm
        while ($told !== ['low on memory', 'unblocked']) {
            $connection->wait();
        }
    },
    'dead-letter' => function ($channel) {
        declareQueue($channel, 'dead');
        declareQueue($channel, 'rejecting', ['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => 'dead']);
        send($channel, 'rejecting', ['bad']);
        $channel->basic_get('rejecting')->reject(false);
        check(reasonOfDeath($channel, 'dead') === 'rejected');
    },
    'message-ttl' => function ($channel) {
        declareQueue($channel, 'expired');
        declareQueue($channel, 'ttl', ['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => 'expired']);
        send($channel, 'ttl', ['short'], ['expiration' => '50']);
        check(reasonOfDeath($channel, 'expired') === 'expired');
    },
    'queue-ttl' => function ($channel) {
        declareQueue($channel, 'leased', ['x-expires' => 100]);
        refused(404, 'NOT_FOUND', function () use ($channel) {
            while (true) { // a bind does not renew the lease
                $channel->queue_bind('leased', 'amq.fanout');
                usleep(50000);
            }
        });
    },
    'priority' => function ($channel) {
        declareQueue($channel, 'priority', ['x-max-priority' => 5]);
        foreach ([1, 5, 3] as $level) {
            send($channel, 'priority', [$level], ['priority' => $level]);
        }
        check(bodiesOf(receive($channel, 'priority', 3)) === ['5', '3', '1']);
    },
    'delayed' => function ($channel) {
        declareExchange($channel, 'delayed', 'x-delayed-message', ['x-delayed-type' => 'fanout']);
        declareQueue($channel, 'delayed');
        $channel->queue_bind('delayed', 'delayed');
        $channel->basic_publish(new AMQPMessage('late', headers(['x-delay' => 1000])), 'delayed');
        $channel->basic_publish(new AMQPMessage('soon', headers(['x-delay' => 1])), 'delayed');
        check(bodiesOf(receive($channel, 'delayed', 2)) === ['soon', 'late']);
    },
    'stream-offset' => fn($channel) => stream($channel, 'stream', ['x-stream-offset' => 5], ['5', '6', '7', '8', '9']),
    'stream-filter' => fn($channel) =>
        stream($channel, 'filtered', ['x-stream-offset' => 'first', 'x-stream-filter' => 'odd'], ['1', '3', '5', '7', '9']),
    'policy' => function ($channel) {
        declareQueue($channel, 'limited');
        send($channel, 'limited', [1, 2, 3, 4]);
        check($channel->queue_purge('limited') === 2);
    },
    'reconnect' => function ($channel) {
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
        check(bodiesOf(receive($again->channel(), 'kept', 1)) === ['kept']);
        $again->close();
    },
    'write' => function ($channel) {
        declareQueue($channel, 'crossing');
        $properties = ['content_type' => 'text/plain', 'message_id' => '7'] + headers(CROSSING);
        send($channel, 'crossing', [implode(array_map('chr', range(0, 255)))], $properties);
    },
    'read' => function ($channel) {
        $message = receive($channel, 'crossing', 1)[0];
        $headers = $message->get('application_headers')->getNativeData();
        check($message->body === implode(array_map('chr', range(0, 255))) && $headers == CROSSING, $headers);
        check([$message->get('content_type'), $message->get('message_id')] === ['text/plain', '7']);
    },
];

$name = $argv[1];
if ($name === 'version') {
    echo PhpAmqpLib\Package::VERSION, "\n";
} elseif (isset(NOT_OFFERED[$name])) {
    echo 'not offered: ', NOT_OFFERED[$name], "\n";
} elseif (isset($alone[$name])) {
    $alone[$name]();
    echo "pass\n";
} else {
    $connection = connect();
    $scenarios[$name]($connection->channel(), $connection);
    if ($name !== 'reconnect') {
        $connection->close();
    }
    echo "pass\n";
}
