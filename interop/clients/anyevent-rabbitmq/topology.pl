# AnyEvent::RabbitMQ: queues, exchanges and bindings.
use strict;
use warnings;
use AnyEvent;
use FindBin;
require "$FindBin::Bin/common.pl";

run_with_channel(
    declare => sub {
        my ($channel) = @_;
        queue($channel, 'declared', durable => 1);
        call($channel, 'declare_exchange', exchange => 'declared', type => 'topic', durable => 1);
        bind_queue($channel, 'declared', 'declared', '#');
        $channel->publish(exchange => 'declared', routing_key => 'key', body => '1');
        count($channel, 'declared');
        call($channel, 'declare_exchange', exchange => 'declared', type => 'topic', passive => 1);
        print purge($channel, 'declared'), "\n";
        call($channel, 'unbind_queue', queue => 'declared', exchange => 'declared', routing_key => '#');
        call($channel, 'delete_exchange', exchange => 'declared');
        call($channel, 'delete_queue', queue => 'declared');
    },
    missing => sub {
        my (undef, $connection) = @_;
        my $closed  = AE::cv;
        my $channel = call($connection, 'open_channel', on_close => sub { $closed->send(reason(@_)) });
        eval { count($channel, 'missing') };
        print $closed->recv, "\n";
        hello(open_channel($connection));
    },
    inequivalent => sub {
        my ($channel) = @_;
        queue($channel, 'inequivalent', durable => 1);
        queue($channel, 'inequivalent');
    },
    'float-argument' => sub { print "not offered: Net::AMQP does not send floats\n" },
    'queue-ttl'      => sub {
        my ($channel) = @_;
        queue($channel, 'leased', arguments => { 'x-expires' => 100 });
        while (1) { # a bind does not renew the lease
            bind_queue($channel, 'leased', 'amq.fanout', '');
            select undef, undef, undef, 0.05;
        }
    },
    policy => sub {
        my ($channel) = @_;
        queue($channel, 'limited');
        send_all($channel, 'limited', {}, 1 .. 4);
        print purge($channel, 'limited'), "\n";
    },
);
