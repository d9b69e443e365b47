# AnyEvent::RabbitMQ: the patterns of RabbitMQ's tutorials.
use strict;
use warnings;
use AnyEvent;
use FindBin;
require "$FindBin::Bin/common.pl";

sub subscribe {
    my ($channel, $exchange, $type, @bindings) = @_;
    call($channel, 'declare_exchange', exchange => $exchange, type => $type);
    my $queue = queue($channel, '');
    bind_queue($channel, $queue, $exchange, $_) for @bindings;
    return $queue;
}

sub fibonacci { my ($n) = @_; return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2) }

sub ask {
    my ($channel, $reply_to) = @_;
    queue($channel, 'rpc_queue');
    my ($requests) = consume($channel, 'rpc_queue');
    my ($replies)  = consume($channel, $reply_to);
    send_all($channel, 'rpc_queue', { reply_to => $reply_to, correlation_id => '1' }, '15');
    my $request = $requests->();
    my $header  = { correlation_id => $request->{header}->correlation_id };
    send_all($channel, $request->{header}->reply_to, $header, fibonacci(body($request)));
    my $reply = $replies->();
    print $reply->{header}->correlation_id, ' ', body($reply), "\n";
}

run_with_channel(
    'work-queue' => sub {
        my ($channel) = @_;
        queue($channel, 'tasks', durable => 1);
        call($channel, 'qos', prefetch_count => 1);
        my ($finished, @done, %workers) = AE::cv;
        for my $worker ('a', 'b') {
            my $work = sub {
                push @done, body($_[0]);
                $workers{$worker} = 1;
                $channel->ack(delivery_tag => $_[0]{deliver}->method_frame->delivery_tag);
                $finished->send if @done == 10;
            };
            call($channel, 'consume', queue => 'tasks', no_ack => 0, on_consume => $work);
        }
        send_all($channel, 'tasks', { delivery_mode => 2 }, 0 .. 9);
        $finished->recv;
        print join('', sort @done), "\n", scalar(keys %workers), "\n";
    },
    'publish-subscribe' => sub {
        my ($channel) = @_;
        my @queues = map { subscribe($channel, 'logs', 'fanout', '') } 1 .. 2;
        $channel->publish(exchange => 'logs', routing_key => '', body => 'log');
        receive($channel, $_) for @queues;
    },
    routing => sub {
        my ($channel) = @_;
        my $queue = subscribe($channel, 'direct_logs', 'direct', 'warning', 'error');
        $channel->publish(exchange => 'direct_logs', routing_key => $_, body => $_) for 'info', 'warning', 'error';
        receive($channel, $queue, 2);
    },
    topics => sub {
        my ($channel) = @_;
        my $queue = subscribe($channel, 'topic_logs', 'topic', '*.critical', 'kern.#');
        $channel->publish(exchange => 'topic_logs', routing_key => $_, body => $_)
            for 'kern.critical', 'cron.info', 'kern.a.b', 'cron.critical';
        receive($channel, $queue, 3);
    },
    rpc               => sub { ask($_[0], queue($_[0], '')) },
    'direct-reply-to' => sub { ask($_[0], 'amq.rabbitmq.reply-to') },
);
