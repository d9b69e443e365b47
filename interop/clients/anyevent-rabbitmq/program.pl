#!/usr/bin/perl
# AnyEvent::RabbitMQ: the scenarios of ../README.md.
use strict;
use warnings;
use AnyEvent;
use AnyEvent::RabbitMQ;
use JSON::PP ();

my %NOT_OFFERED = (
    blocked          => 'AnyEvent::RabbitMQ does not ask for connection.blocked',
    'float-argument' => 'Net::AMQP does not send floats',
    (map { $_ => 'Net::AMQP does not read integers of 64 bits, which x-death has' } 'dead-letter', 'message-ttl'),
    (map { $_ => 'Net::AMQP does not read integers of 64 bits, which x-stream-offset is' } 'stream-offset', 'stream-filter'),
);
my $TRUE = Net::AMQP::Value::true();
my %CROSSING = (
    text  => 'grüße', number => Net::AMQP::Value::Integer->new(42), yes => $TRUE,
    array => [1, 'two'], table => { a => 'b' },
);
my $closed = ''; # why the broker closed the channel
my $BYTES = join '', map { chr } 0 .. 255;

sub reason { # of what a callback for failures gets: a frame or a text
    my ($why) = @_;
    return "@_" if !ref $why || !$why->can('method_frame');
    my $close = $why->method_frame;
    return join ' ', grep { defined } $close->can('reply_code') && $close->reply_code, $close->reply_text;
}

sub call { # METHOD ARGUMENTS: call it and wait for its answer
    my ($object, $method, %arguments) = @_;
    my $answer = AE::cv;
    my $failed = sub { $answer->croak(reason(@_)) };
    $object->$method(%arguments, on_success => sub { $answer->send(@_) }, on_failure => $failed);
    return $answer->recv;
}

sub connect_broker {
    my (%more) = @_;
    my ($user, $pass, $host, $port, $vhost) = $ENV{AMQP_URL} =~ m{//(.*?):(.*?)\@(.*?):(\d+)/(.*)} or die 'AMQP_URL';
    $vhost =~ s/%(..)/chr hex $1/ge;
    my %tls = $ENV{CA_FILE} ? (ca_file => $ENV{CA_FILE}, verify => 1, verify_peername => 'https') : ();
    @tls{qw(cert_file key_file)} = @ENV{qw(CERT_FILE KEY_FILE)} if $ENV{CERT_FILE};
    my $connection = AnyEvent::RabbitMQ->new->load_xml_spec;
    my $answer     = AE::cv;
    my $failed     = sub { $answer->croak(reason(@_)) };
    $connection->connect(
        host => $host, port => $port, user => $user, pass => $pass, vhost => $vhost, timeout => 10,
        (%tls ? (tls => 1, tls_ctx => \%tls) : ()),
        on_success => sub { $answer->send }, on_failure => $failed, on_close => $failed, %more,
    );
    $answer->recv;
    return $connection;
}

sub check {
    my ($got, $expected) = @_;
    my $json = JSON::PP->new->canonical->allow_nonref->convert_blessed->allow_blessed;
    ($got, $expected) = map { ref $_ ? $json->encode(plain($_)) : $_ } $got, $expected;
    die "Error: got $got, expected $expected\n" if $got ne $expected;
}

sub plain { # a value without its AMQP type
    my ($value) = @_;
    return { map { $_ => plain($value->{$_}) } keys %$value } if ref $value eq 'HASH';
    return [map { plain($_) } @$value] if ref $value eq 'ARRAY';
    return defined $value ? "$value" : undef;
}

sub queue {
    my ($channel, $name, %more) = @_;
    my $declared = call($channel, 'declare_queue', queue => $name, exclusive => $name eq '' ? 1 : 0, %more);
    return $declared->method_frame->queue;
}

sub count { call($_[0], 'declare_queue', queue => $_[1], passive => 1)->method_frame->message_count }
sub purge { call($_[0], 'purge_queue', queue => $_[1])->method_frame->message_count }
sub bind_queue { my ($channel, $queue, $exchange, $key) = @_; call($channel, 'bind_queue', queue => $queue, exchange => $exchange, routing_key => $key) }

sub send_all {
    my ($channel, $queue, $header, @bodies) = @_;
    $channel->publish(routing_key => $queue, header => {%$header}, body => $_) for @bodies;
}

sub consume { # returns a function that returns the next delivery, and the consumer's tag
    my ($channel, $queue, %more) = @_;
    my (@deliveries, $arrival);
    my $on_consume = sub { push @deliveries, $_[0]; $arrival->send if $arrival };
    my $consuming = call($channel, 'consume', queue => $queue, on_consume => $on_consume, %more);
    my $next = sub {
        until (@deliveries) {
            $arrival = AE::cv;
            $arrival->recv;
        }
        return shift @deliveries;
    };
    return ($next, $consuming->method_frame->consumer_tag);
}

sub body { $_[0]{body} ? $_[0]{body}->payload : '' }
sub tag { ($_[0]{deliver} || $_[0]{ok})->method_frame->delivery_tag }
sub redelivered { ($_[0]{deliver} || $_[0]{ok})->method_frame->redelivered ? 1 : 0 }
sub take { my ($next, $count) = @_; return [map { body($next->()) } 1 .. $count] }

sub receive {
    my ($channel, $queue, $count) = @_;
    my ($next, $tag) = consume($channel, $queue);
    my $bodies = take($next, $count);
    call($channel, 'cancel', consumer_tag => $tag);
    return $bodies;
}

sub refused {
    my ($text, $code) = @_;
    die "Error: not refused\n" if eval { $code->(); 1 };
    die "Error: $@ $closed" if index("$@ $closed", $text) < 0;
}

sub connects {
    my ($channel) = @_;
    queue($channel, 'hello');
    send_all($channel, 'hello', {}, 'Hello World!');
    check(receive($channel, 'hello', 1), ['Hello World!']);
}

sub patterns {
    my ($channel, $exchange, $type, $bindings, $published, $expected) = @_;
    call($channel, 'declare_exchange', exchange => $exchange, type => $type);
    my $queue = queue($channel, '');
    bind_queue($channel, $queue, $exchange, $_) for @$bindings;
    $channel->publish(exchange => $exchange, routing_key => $_, body => $_) for @$published;
    check(receive($channel, $queue, scalar @$expected), $expected);
}

sub fibonacci { my ($n) = @_; return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2) }

sub rpc {
    my ($channel, $callback) = @_;
    queue($channel, 'rpc_queue');
    my ($requests) = consume($channel, 'rpc_queue');
    my ($replies)  = consume($channel, $callback);
    send_all($channel, 'rpc_queue', { reply_to => $callback, correlation_id => 'one' }, '15');
    my $request = $requests->();
    my $header  = { correlation_id => $request->{header}->correlation_id };
    send_all($channel, $request->{header}->reply_to, $header, fibonacci(body($request)));
    my $reply = $replies->();
    check([$reply->{header}->correlation_id, body($reply)], ['one', '610']);
}

sub publish_safely { # returns when all are confirmed
    my ($channel, $queue, @bodies) = @_;
    call($channel, 'confirm');
    my $confirmed = AE::cv;
    for my $body (@bodies) {
        $confirmed->begin;
        $channel->publish(
            routing_key => $queue, header => { delivery_mode => 2 }, body => $body,
            on_ack => sub { $confirmed->end }, on_nack => sub { $confirmed->croak('nack') },
        );
    }
    $confirmed->recv;
}

my %ALONE = (
    'bad-password' => sub { refused('', \&connect_broker) }, # the broker gives no reason to this client
    'bad-vhost'    => sub { refused('NOT_ALLOWED', \&connect_broker) },
    heartbeat      => sub {
        my $connection = connect_broker(tune => { heartbeat => 1 });
        my $idle = AE::cv;
        my $timer = AE::timer 4, 0, sub { $idle->send };
        $idle->recv;
        connects(call($connection, 'open_channel'));
    },
    reconnect => sub {
        my $lost       = AE::cv;
        my $connection = connect_broker(on_close => sub { $lost->send });
        my $channel    = call($connection, 'open_channel');
        queue($channel, 'kept', durable => 1);
        publish_safely($channel, 'kept', 'kept');
        my ($next) = consume($channel, 'kept', no_ack => 0);
        $next->();
        print "ready\n"; # the runner kills the broker and starts it again
        $lost->recv;
        my $again;
        until ($again = eval { connect_broker() }) { select undef, undef, undef, 0.1 }
        check(receive(call($again, 'open_channel'), 'kept', 1), ['kept']);
    },
);

my %SCENARIOS = (
    (map { $_ => \&connects } 'connect', 'tls', 'client-certificate'),
    declare => sub {
        my ($channel) = @_;
        queue($channel, 'declared', durable => 1);
        call($channel, 'declare_exchange', exchange => 'declared', type => 'topic', durable => 1);
        bind_queue($channel, 'declared', 'declared', '#');
        $channel->publish(exchange => 'declared', routing_key => 'key', body => '1');
        count($channel, 'declared');
        call($channel, 'declare_exchange', exchange => 'declared', type => 'topic', passive => 1);
        check(purge($channel, 'declared'), 1);
        call($channel, 'unbind_queue', queue => 'declared', exchange => 'declared', routing_key => '#');
        call($channel, 'delete_exchange', exchange => 'declared');
        call($channel, 'delete_queue', queue => 'declared');
    },
    missing => sub {
        my ($channel, $connection) = @_;
        refused("404 NOT_FOUND - no queue 'missing'", sub { count($channel, 'missing') });
        connects(call($connection, 'open_channel'));
    },
    inequivalent => sub {
        my ($channel) = @_;
        queue($channel, 'inequivalent', durable => 1);
        refused("inequivalent arg 'durable'", sub { queue($channel, 'inequivalent') });
    },
    'work-queue' => sub {
        my ($channel) = @_;
        queue($channel, 'tasks', durable => 1);
        call($channel, 'qos', prefetch_count => 1);
        my ($finished, @done, %workers) = AE::cv;
        for my $worker ('a', 'b') {
            my $work = sub {
                push @done, body($_[0]);
                $workers{$worker} = 1;
                $channel->ack(delivery_tag => tag($_[0]));
                $finished->send if @done == 10;
            };
            call($channel, 'consume', queue => 'tasks', no_ack => 0, on_consume => $work);
        }
        send_all($channel, 'tasks', { delivery_mode => 2 }, 0 .. 9);
        $finished->recv;
        check([sort(@done), sort keys %workers], [0 .. 9, 'a', 'b']);
    },
    'publish-subscribe' => sub {
        my ($channel) = @_;
        call($channel, 'declare_exchange', exchange => 'logs', type => 'fanout');
        my @queues = (queue($channel, ''), queue($channel, ''));
        bind_queue($channel, $_, 'logs', '') for @queues;
        $channel->publish(exchange => 'logs', routing_key => '', body => 'log');
        check(receive($channel, $_, 1), ['log']) for @queues;
    },
    routing => sub { patterns($_[0], 'direct_logs', 'direct', ['warning', 'error'], ['info', 'warning', 'error'], ['warning', 'error']) },
    topics => sub {
        my @keys = ('kern.critical', 'cron.info', 'kern.a.b', 'cron.critical');
        patterns($_[0], 'topic_logs', 'topic', ['*.critical', 'kern.#'], \@keys, [@keys[0, 2, 3]]);
    },
    rpc               => sub { rpc($_[0], queue($_[0], '')) },
    'direct-reply-to' => sub { rpc($_[0], 'amq.rabbitmq.reply-to') },
    confirm           => sub {
        my ($channel) = @_;
        queue($channel, 'confirmed', durable => 1);
        publish_safely($channel, 'confirmed', 'safe');
    },
    'confirm-batch' => sub {
        my ($channel) = @_;
        queue($channel, 'batch', durable => 1);
        publish_safely($channel, 'batch', 1 .. 1000);
        check(purge($channel, 'batch'), 1000);
    },
    mandatory => sub {
        my ($channel) = @_;
        my $returned = AE::cv;
        call($channel, 'confirm');
        my $on_return = sub { $returned->send($_[0]->method_frame->reply_code) };
        $channel->publish(routing_key => 'nowhere', mandatory => 1, body => 'lost', on_return => $on_return);
        check($returned->recv, 312);
    },
    tx => sub {
        my ($channel) = @_;
        queue($channel, 'tx');
        call($channel, 'select_tx');
        send_all($channel, 'tx', {}, 'no');
        call($channel, 'rollback_tx');
        send_all($channel, 'tx', {}, 'yes');
        call($channel, 'commit_tx');
        check(receive($channel, 'tx', 1), ['yes']);
    },
    headers => sub {
        my ($channel) = @_;
        my %sent = (
            text => 'grüße', yes => $TRUE, int => Net::AMQP::Value::Integer->new(-32),
            array => [1, { three => 3 }], table => { a => { b => 'c' } }, time => Net::AMQP::Value::Timestamp->new(1767323045),
        );
        queue($channel, 'headers');
        send_all($channel, 'headers', { headers => \%sent }, '');
        my ($next) = consume($channel, 'headers');
        check($next->()->{header}->headers, { %sent, yes => 1 });
    },
    bodies => sub {
        my ($channel) = @_;
        queue($channel, 'bodies');
        for my $size (0, 1, 131_064, 131_065, 1 << 20, 16 << 20) {
            send_all($channel, 'bodies', {}, 'x' x $size);
            my $got = body(call($channel, 'get', queue => 'bodies'));
            check(length $got, $size);
            check($got =~ tr/x//, $size);
        }
    },
    channels => sub {
        my ($channel, $connection) = @_;
        queue($channel, 'channels');
        send_all($_, 'channels', {}, 'x') for map { call($connection, 'open_channel') } 1 .. 100;
        receive($channel, 'channels', 100);
    },
    prefetch => sub {
        my ($channel) = @_;
        queue($channel, 'prefetch');
        send_all($channel, 'prefetch', {}, 0 .. 9);
        call($channel, 'qos', prefetch_count => 3);
        my ($next) = consume($channel, 'prefetch', no_ack => 0);
        take($next, 2);
        my $third = $next->();
        check(count($channel, 'prefetch'), 7);
        $channel->ack(delivery_tag => tag($third), multiple => 1);
        check(take($next, 3), [3, 4, 5]);
    },
    requeue => sub {
        my ($channel) = @_;
        queue($channel, 'requeue');
        send_all($channel, 'requeue', {}, 1, 2, 3);
        my $get_three = sub { map { call($channel, 'get', queue => 'requeue', no_ack => 0) } 1 .. 3 };
        $get_three->();
        call($channel, 'recover'); # there is no nack
        my @got = $get_three->();
        check([map { body($_), redelivered($_) } @got], [1, 1, 2, 1, 3, 1]);
        $channel->reject(delivery_tag => tag($got[0]));
        $channel->ack(delivery_tag => tag($got[2]), multiple => 1);
        check(purge($channel, 'requeue'), 0);
    },
    cancel => sub {
        my ($channel) = @_;
        queue($channel, 'cancel');
        my (undef, $tag) = consume($channel, 'cancel', on_consume => sub { die 'a message' });
        call($channel, 'cancel', consumer_tag => $tag);
        send_all($channel, 'cancel', {}, 'stays');
        check(purge($channel, 'cancel'), 1);
    },
    'broker-cancel' => sub {
        my ($channel, $connection) = @_;
        queue($channel, 'cancelled');
        my $cancelled = AE::cv;
        my $on_cancel = sub { $cancelled->send($_[0]->method_frame->consumer_tag) };
        consume($channel, 'cancelled', consumer_tag => 'reader', on_cancel => $on_cancel);
        call(call($connection, 'open_channel'), 'delete_queue', queue => 'cancelled');
        check($cancelled->recv, 'reader');
    },
    'queue-ttl' => sub {
        my ($channel) = @_;
        queue($channel, 'leased', arguments => { 'x-expires' => 100 });
        refused('404 NOT_FOUND', sub {
            while (1) { # a bind does not renew the lease
                bind_queue($channel, 'leased', 'amq.fanout', '');
                select undef, undef, undef, 0.05;
            }
        });
    },
    priority => sub {
        my ($channel) = @_;
        queue($channel, 'priority', arguments => { 'x-max-priority' => 5 });
        send_all($channel, 'priority', { priority => $_ }, $_) for 1, 5, 3;
        check(receive($channel, 'priority', 3), [5, 3, 1]);
    },
    delayed => sub {
        my ($channel) = @_;
        my $arguments = { 'x-delayed-type' => 'fanout' };
        call($channel, 'declare_exchange', exchange => 'delayed', type => 'x-delayed-message', arguments => $arguments);
        queue($channel, 'delayed');
        bind_queue($channel, 'delayed', 'delayed', '');
        for (['late', 1000], ['soon', 1]) {
            my $headers = { 'x-delay' => Net::AMQP::Value::Integer->new($_->[1]) };
            $channel->publish(exchange => 'delayed', routing_key => '', header => { headers => $headers }, body => $_->[0]);
        }
        check(receive($channel, 'delayed', 2), ['soon', 'late']);
    },
    policy => sub {
        my ($channel) = @_;
        queue($channel, 'limited');
        send_all($channel, 'limited', {}, 1 .. 4);
        check(purge($channel, 'limited'), 2);
    },
    write => sub {
        my ($channel) = @_;
        queue($channel, 'crossing');
        send_all($channel, 'crossing', { content_type => 'text/plain', message_id => '7', headers => {%CROSSING} }, $BYTES);
        count($channel, 'crossing'); # the broker has the message when it answers
    },
    read => sub {
        my ($next) = consume($_[0], 'crossing');
        my $got = $next->();
        check(body($got), $BYTES);
        check([$got->{header}->content_type, $got->{header}->message_id], ['text/plain', '7']);
        check($got->{header}->headers, { %CROSSING, yes => 1 });
    },
);

$| = 1;
my $name = shift or die "usage: program.pl SCENARIO\n";
if ($name eq 'version') {
    print AnyEvent::RabbitMQ->VERSION, "\n";
    exit;
}
if ($NOT_OFFERED{$name}) {
    print "not offered: $NOT_OFFERED{$name}\n";
    exit;
}
if ($ALONE{$name}) {
    $ALONE{$name}->();
} else {
    my $connection = connect_broker();
    my $channel = call($connection, 'open_channel', on_close => sub { $closed = reason(@_) });
    $SCENARIOS{$name}->($channel, $connection);
    call($connection, 'close');
}
print "pass\n";
