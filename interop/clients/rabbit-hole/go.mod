module rabbit-hole-program

go 1.22

require (
	github.com/michaelklishin/rabbit-hole/v2 v2.12.0
	github.com/rabbitmq/amqp091-go v1.16.0
)
