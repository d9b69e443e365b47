# AnyEvent::RabbitMQ: acks, priorities and delays.
use strict;
use warnings;
use AnyEvent;
use FindBin;
require "$FindBin::Bin/common.pl";

sub tag { ($_[0]{deliver} || $_[0]{ok})->method_frame->delivery_tag }
sub no_deaths { print "not offered: Net::AMQP does not read integers of 64 bits, which x-death has\n" }

run_with_channel(
    prefetch => sub {
        my ($channel) = @_;
        queue($channel, 'prefetch');
        send_all($channel, 'prefetch', {}, 0 .. 9);
        call($channel, 'qos', prefetch_count => 3);
        my ($next) = consume($channel, 'prefetch', no_ack => 0);
        my @got = map { $next->() } 1 .. 3;
        print count($channel, 'prefetch'), "\n";
        $channel->ack(delivery_tag => tag($got[2]), multiple => 1);
        show($next, 3);
    },
    requeue => sub {
        my ($channel) = @_;
        queue($channel, 'requeue');
        send_all($channel, 'requeue', {}, 1, 2, 3);
        my $get_three = sub { map { call($channel, 'get', queue => 'requeue', no_ack => 0) } 1 .. 3 };
        $get_three->();
        call($channel, 'recover'); # there is no nack
        my @got = $get_three->();
        print body($_), ' ', $_->{ok}->method_frame->redelivered ? 'true' : 'false', "\n" for @got;
        $channel->reject(delivery_tag => tag($got[0]));
        $channel->ack(delivery_tag => tag($got[2]), multiple => 1);
        print purge($channel, 'requeue'), "\n";
    },
    cancel => sub {
        my ($channel) = @_;
        queue($channel, 'cancel');
        my (undef, $tag) = consume($channel, 'cancel', on_consume => sub { die 'a message' });
        call($channel, 'cancel', consumer_tag => $tag);
        send_all($channel, 'cancel', {}, 'stays');
        print purge($channel, 'cancel'), "\n";
    },
    'broker-cancel' => sub {
        my ($channel, $connection) = @_;
        queue($channel, 'cancelled');
        my $cancelled = AE::cv;
        my $on_cancel = sub { $cancelled->send($_[0]->method_frame->consumer_tag) };
        consume($channel, 'cancelled', consumer_tag => 'cancelled', on_cancel => $on_cancel);
        call(open_channel($connection), 'delete_queue', queue => 'cancelled');
        print $cancelled->recv, "\n";
    },
    'dead-letter' => \&no_deaths,
    'message-ttl' => \&no_deaths,
    priority      => sub {
        my ($channel) = @_;
        queue($channel, 'priority', arguments => { 'x-max-priority' => 5 });
        send_all($channel, 'priority', { priority => $_ }, $_) for 1, 5, 3;
        receive($channel, 'priority', 3);
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
        receive($channel, 'delayed', 2);
    },
);
