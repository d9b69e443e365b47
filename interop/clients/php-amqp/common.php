<?php
// How the programs of PHP's extension amqp connect, declare, send and receive. `SCENARIO` and output: ../README.md.

function connect(array $options = []): AMQPConnection
{
    $url = parse_url(getenv('AMQP_URL'));
    $login = ['host' => $url['host'], 'port' => $url['port'], 'login' => $url['user'], 'password' => $url['pass']];
    $files = array_filter(['cacert' => getenv('CA_FILE'), 'cert' => getenv('CERT_FILE'), 'key' => getenv('KEY_FILE')]);
    $connection = new AMQPConnection($login + $files + $options + ['vhost' => urldecode(substr($url['path'], 1))]);
    $connection->connect();
    return $connection;
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

function receive(AMQPQueue $queue, int $count = 1, int $flags = AMQP_AUTOACK): array
{
    $got = [];
    $queue->consume(function ($message) use (&$got, $count) {
        $got[] = $message;
        return count($got) < $count;
    }, $flags);
    $queue->cancel();
    return $got;
}

function awaitConfirms(AMQPChannel $channel, int $count): void
{
    $confirmed = 0;
    $channel->setConfirmCallback(function ($tag, $multiple) use (&$confirmed, $count) {
        $confirmed = $multiple ? max($confirmed, $tag) : $confirmed + 1;
        return $confirmed < $count;
    }, fn() => exit('nack'));
    $channel->waitForConfirm();
}

function show(array $messages): void
{
    foreach ($messages as $message) {
        echo $message->getBody(), "\n";
    }
}

function hello(AMQPChannel $channel): void
{
    $queue = queue($channel, 'hello');
    send($channel, 'hello', ['Hello World!']);
    show(receive($queue));
}

function showRefusal(callable $call): void
{
    try {
        $call();
    } catch (AMQPException $error) {
        echo $error->getCode(), ' ', $error->getMessage(), "\n";
    }
}

// Do the scenario, and print the error if the broker refuses it.
function run(array $scenarios, bool $connected = true): void
{
    $name = $GLOBALS['argv'][1];
    if ($name === 'version') {
        echo phpversion('amqp'), "\n";
    } elseif (!$connected) {
        showRefusal($scenarios[$name]);
    } else {
        $connection = connect();
        showRefusal(fn() => $scenarios[$name](new AMQPChannel($connection), $connection));
        $connection->disconnect();
    }
}
