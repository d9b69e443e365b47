# AnyEvent::RabbitMQ: confirms, returns, transactions, headers and bodies.
use strict;
use warnings;
use AnyEvent;
use FindBin;
use JSON::PP ();
require "$FindBin::Bin/common.pl";

my %CROSSING = (
    text  => 'grüße', number => Net::AMQP::Value::Integer->new(42), yes => Net::AMQP::Value::true(),
    array => [1, 'two'], table => { a => 'b' },
);
my $BYTES = join '', map { chr } 0 .. 255;

sub plain { # a value without its AMQP type
    my ($value) = @_;
    return { map { $_ => plain($value->{$_}) } keys %$value } if ref $value eq 'HASH';
    return [map { plain($_) } @$value] if ref $value eq 'ARRAY';
    return defined $value ? "$value" : undef;
}

sub show_same {
    my ($got, $expected) = map { JSON::PP->new->canonical->encode(plain($_)) } @_;
    print $got eq $expected ? "pass\n" : "$got\n";
}

run_with_channel(
    confirm => sub {
        my ($channel) = @_;
        publish_safely($channel, 'confirmed', 'safe');
        print purge($channel, 'confirmed'), "\n";
    },
    'confirm-batch' => sub {
        my ($channel) = @_;
        publish_safely($channel, 'batch', 1 .. 1000);
        print purge($channel, 'batch'), "\n";
    },
    mandatory => sub {
        my ($channel) = @_;
        my $returned = AE::cv;
        call($channel, 'confirm');
        my $on_return = sub { $returned->send($_[0]->method_frame->reply_code) };
        $channel->publish(routing_key => 'nowhere', mandatory => 1, body => 'lost', on_return => $on_return);
        print $returned->recv, "\n";
    },
    tx => sub {
        my ($channel) = @_;
        queue($channel, 'tx');
        call($channel, 'select_tx');
        send_all($channel, 'tx', {}, 'no');
        call($channel, 'rollback_tx');
        send_all($channel, 'tx', {}, 'yes');
        call($channel, 'commit_tx');
        receive($channel, 'tx');
    },
    headers => sub {
        my ($channel) = @_;
        my %sent = (
            %CROSSING, array => [1, { three => 3 }], table => { a => { b => 'c' } },
            negative => Net::AMQP::Value::Integer->new(-32), time => Net::AMQP::Value::Timestamp->new(1767323045),
        );
        queue($channel, 'headers');
        send_all($channel, 'headers', { headers => \%sent }, '');
        my ($next) = consume($channel, 'headers');
        show_same($next->()->{header}->headers, { %sent, yes => 1 });
    },
    bodies => sub {
        my ($channel) = @_;
        queue($channel, 'bodies');
        for my $size (0, 1, 131_064, 131_065, 1 << 20, 16 << 20) {
            send_all($channel, 'bodies', {}, 'x' x $size);
            print body(call($channel, 'get', queue => 'bodies')) =~ tr/x//, "\n";
        }
    },
    write => sub {
        my ($channel) = @_;
        queue($channel, 'crossing');
        my %header = (content_type => 'text/plain', message_id => '7', headers => {%CROSSING});
        send_all($channel, 'crossing', \%header, $BYTES);
        count($channel, 'crossing'); # the broker has the message when it answers
        print "pass\n";
    },
    read => sub {
        my ($next) = consume($_[0], 'crossing');
        my $got    = $next->();
        my $header = $got->{header};
        my @got    = (body($got), $header->content_type, $header->message_id, $header->headers);
        show_same(\@got, [$BYTES, 'text/plain', '7', { %CROSSING, yes => 1 }]);
    },
);
