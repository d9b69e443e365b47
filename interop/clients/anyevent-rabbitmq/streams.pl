# AnyEvent::RabbitMQ: streams.
use strict;
use warnings;
use FindBin;
require "$FindBin::Bin/common.pl";

sub no_offset { print "not offered: Net::AMQP does not read integers of 64 bits, which x-stream-offset is\n" }

run('stream-offset' => \&no_offset, 'stream-filter' => \&no_offset);
