// amqp091-go: streams.
package main

import (
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
)

func stream(ch *amqp.Channel, name string, arguments amqp.Table) {
	declare(ch, name, amqp.Table{"x-queue-type": "stream"})
	for n := range 10 {
		headers := amqp.Table{"x-stream-filter-value": []string{"even", "odd"}[n%2]}
		publish(ch, "", name, amqp.Publishing{Body: []byte(strconv.Itoa(n)), Headers: headers})
	}
	check(ch.Qos(10, 0, false))
	receive(consume(ch, name, false, arguments), 5)
}

func streaming(name string, ch *amqp.Channel) {
	switch name {
	case "stream-offset":
		stream(ch, "stream", amqp.Table{"x-stream-offset": 5})
	case "stream-filter":
		stream(ch, "filtered", amqp.Table{"x-stream-offset": "first", "x-stream-filter": "odd"})
	}
}
