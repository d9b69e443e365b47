module amqpd/interop/clients/go-rabbitmq

go 1.22.6

require (
	github.com/rabbitmq/amqp091-go v1.10.0
	github.com/wagslane/go-rabbitmq v0.15.0
)
