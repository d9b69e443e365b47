<?php
// How the programs of php-amqplib connect, declare, send and receive. `SCENARIO` and output: ../README.md.

require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPSSLConnection;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPConnectionClosedException;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

function connect(...$options)
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

function declareQueue($channel, string $name = '', array $arguments = [], bool $durable = false): string
{
    return $channel->queue_declare($name, false, $durable, $name === '', false, false, new AMQPTable($arguments))[0];
}

function declareExchange($channel, string $name, string $type, array $arguments = []): void
{
    $channel->exchange_declare($name, $type, false, false, false, false, false, new AMQPTable($arguments));
}

function consume($channel, string $queue, callable $callback, bool $noAck = false, array $arguments = []): string
{
    return $channel->basic_consume($queue, '', false, $noAck, false, false, $callback, null, new AMQPTable($arguments));
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

function receive($channel, string $queue, int $count = 1, bool $noAck = true, array $arguments = []): array
{
    $got = [];
    $tag = consume($channel, $queue, function ($message) use (&$got) {
        $got[] = $message;
    }, $noAck, $arguments);
    while (count($got) < $count) {
        $channel->wait();
    }
    if ($noAck) {
        $channel->basic_cancel($tag);
    }
    return $got;
}

function show(array $messages): void
{
    foreach ($messages as $message) {
        echo $message->body, "\n";
    }
}

function hello($channel): void
{
    declareQueue($channel, 'hello');
    send($channel, 'hello', ['Hello World!']);
    show(receive($channel, 'hello'));
}

function showRefusal(callable $call): void
{
    try {
        $call();
    } catch (AMQPProtocolChannelException | AMQPConnectionClosedException $error) {
        echo $error->getCode(), ' ', $error->getMessage(), "\n";
    }
}

// Do the scenario, and print the error if the broker refuses it.
function run(array $scenarios, bool $connected = true): void
{
    $name = $GLOBALS['argv'][1];
    if ($name === 'version') {
        echo PhpAmqpLib\Package::VERSION, "\n";
    } elseif (!$connected) {
        showRefusal($scenarios[$name]);
    } else {
        $connection = connect();
        showRefusal(fn() => $scenarios[$name]($connection->channel(), $connection));
        $connection->close();
    }
}
