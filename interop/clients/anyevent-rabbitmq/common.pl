# How the programs of AnyEvent::RabbitMQ connect, send and receive. `SCENARIO` and output: ../README.md.
use strict;
use warnings;
use AnyEvent;
use AnyEvent::RabbitMQ;

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

sub open_channel { call($_[0], 'open_channel') }

sub queue {
    my ($channel, $name, %more) = @_;
    my $declared = call($channel, 'declare_queue', queue => $name, exclusive => $name eq '' ? 1 : 0, %more);
    return $declared->method_frame->queue;
}

sub count { call($_[0], 'declare_queue', queue => $_[1], passive => 1)->method_frame->message_count }
sub purge { call($_[0], 'purge_queue', queue => $_[1])->method_frame->message_count }

sub bind_queue {
    my ($channel, $queue, $exchange, $key) = @_;
    call($channel, 'bind_queue', queue => $queue, exchange => $exchange, routing_key => $key);
}

sub send_all {
    my ($channel, $queue, $header, @bodies) = @_;
    $channel->publish(routing_key => $queue, header => {%$header}, body => $_) for @bodies;
}

sub publish_safely { # returns when all are confirmed
    my ($channel, $queue, @bodies) = @_;
    queue($channel, $queue, durable => 1);
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

sub show {
    my ($next, $count) = @_;
    print body($next->()), "\n" for 1 .. $count || 1;
}

sub receive { # shows so many messages
    my ($channel, $queue, $count) = @_;
    my ($next, $tag) = consume($channel, $queue);
    show($next, $count);
    call($channel, 'cancel', consumer_tag => $tag);
}

sub hello {
    my ($channel) = @_;
    queue($channel, 'hello');
    send_all($channel, 'hello', {}, 'Hello World!');
    receive($channel, 'hello');
}

sub run { # does the scenario
    my (%scenarios) = @_;
    $| = 1;
    return $scenarios{$ARGV[0]}->() if $ARGV[0] ne 'version';
    print AnyEvent::RabbitMQ->VERSION, "\n";
}

sub run_with_channel { # does the scenario on a channel, and prints the error if the broker refuses it
    my ($name, %scenarios) = ($ARGV[0], @_);
    return run() if $name eq 'version';
    my $closed     = '';
    my $connection = connect_broker();
    my $channel    = call($connection, 'open_channel', on_close => sub { $closed = reason(@_) });
    run($name => sub {
        eval { $scenarios{$name}->($channel, $connection); 1 } or print "$@ $closed\n" =~ s/\n(?=.)/ /gr;
    });
    call($connection, 'close');
}

1;
