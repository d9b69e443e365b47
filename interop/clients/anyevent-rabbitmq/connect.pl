# AnyEvent::RabbitMQ: connections.
use strict;
use warnings;
use AnyEvent;
use FindBin;
require "$FindBin::Bin/common.pl";

sub connects {
    my $connection = connect_broker();
    hello(open_channel($connection));
    call($connection, 'close');
}

run(
    connect              => \&connects,
    tls                  => \&connects,
    'client-certificate' => \&connects,
    'bad-password'       => sub { print eval { connect_broker() } ? "not refused\n" : "pass\n" }, # there is no reason
    'bad-vhost'          => sub {
        eval { connect_broker() };
        print $@ =~ /NOT_ALLOWED/ ? "pass\n" : "$@\n";
    },
    heartbeat => sub {
        my $connection = connect_broker(tune => { heartbeat => 1 });
        my $idle = AE::cv;
        my $timer = AE::timer 4, 0, sub { $idle->send };
        $idle->recv;
        hello(open_channel($connection));
    },
    channels => sub {
        my $connection = connect_broker();
        my @opened = map { open_channel($connection) } 1 .. 100;
        queue($opened[0], 'channels');
        send_all($_, 'channels', {}, 'x') for @opened;
        my ($next) = consume($opened[0], 'channels');
        print scalar(map { $next->() } @opened), "\n";
    },
    blocked   => sub { print "not offered: AnyEvent::RabbitMQ does not ask for connection.blocked\n" },
    reconnect => sub {
        my $lost       = AE::cv;
        my $connection = connect_broker(on_close => sub { $lost->send });
        my $channel    = open_channel($connection);
        publish_safely($channel, 'kept', 'kept');
        my ($next) = consume($channel, 'kept', no_ack => 0);
        $next->();
        print "ready\n"; # the runner kills the broker and starts it again
        $lost->recv;
        my $again;
        until ($again = eval { connect_broker() }) { select undef, undef, undef, 0.1 }
        receive(open_channel($again), 'kept');
    },
);
