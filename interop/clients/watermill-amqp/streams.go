// watermill-amqp: streams.
package main

import (
	"strconv"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

func stream(queue string, arguments amqp091.Table) {
	config := queues(amqp091.Table{"x-queue-type": "stream"})
	config.Consume.Arguments = arguments
	declare(config, queue)
	for n := range 10 {
		properties.Headers = amqp091.Table{"x-stream-filter-value": []string{"even", "odd"}[n%2]}
		publish(config, queue, strconv.Itoa(n))
	}
	receive(subscribe(config, queue), 5)
}

func streaming(name string) {
	switch name {
	case "stream-offset":
		stream("stream", amqp091.Table{"x-stream-offset": 5})
	case "stream-filter":
		stream("filtered", amqp091.Table{"x-stream-offset": "first", "x-stream-filter": "odd"})
	}
}
