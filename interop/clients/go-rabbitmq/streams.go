// go-rabbitmq: streams.
package main

import (
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/wagslane/go-rabbitmq"
)

func stream(queue string, wanted amqp.Table) {
	options := []consumerOption{durable, arguments(rabbitmq.Table{"x-queue-type": "stream"}), func(options *rabbitmq.ConsumerOptions) {
		options.RabbitConsumerOptions.Args = rabbitmq.Table(wanted)
	}}
	declare(queue, options...)
	for n := range 10 {
		publish(queue, strconv.Itoa(n), headers(rabbitmq.Table{"x-stream-filter-value": []string{"even", "odd"}[n%2]}))
	}
	deliveries, _ := consume(queue, options...)
	receive(deliveries, 5)
}

func streaming(name string) {
	switch name {
	case "stream-offset":
		stream("stream", amqp.Table{"x-stream-offset": 5})
	case "stream-filter":
		stream("filtered", amqp.Table{"x-stream-offset": "first", "x-stream-filter": "odd"})
	}
}
