// amqp091-go: queues, exchanges and bindings.
package main

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func topology(name string, connection *amqp.Connection, ch *amqp.Channel) {
	switch name {
	case "declare":
		must(ch.QueueDeclare("declared", true, false, false, false, nil))
		check(ch.ExchangeDeclare("declared", "topic", true, false, false, false, nil))
		check(ch.QueueBind("declared", "#", "declared", false, nil))
		publish(ch, "declared", "key", amqp.Publishing{Body: []byte("1")})
		must(ch.QueueDeclarePassive("declared", true, false, false, false, nil))
		check(ch.ExchangeDeclarePassive("declared", "topic", true, false, false, false, nil))
		purge(ch, "declared")
		check(ch.QueueUnbind("declared", "#", "declared", nil))
		check(ch.ExchangeDelete("declared", false, false))
		must(ch.QueueDelete("declared", false, false, false))
	case "missing":
		_, err := ch.QueueDeclarePassive("missing", false, false, false, false, nil)
		fmt.Println(err)
		hello(must(connection.Channel()))
	case "inequivalent":
		must(ch.QueueDeclare("inequivalent", true, false, false, false, nil))
		must(ch.QueueDeclare("inequivalent", false, false, false, false, nil))
	case "float-argument":
		declare(ch, "float", amqp.Table{"x-max-length": 10})
		declare(ch, "float", amqp.Table{"x-max-length": int16(10)})
		_, err := ch.QueueDeclare("float", false, false, false, false, amqp.Table{"x-max-length": 10.0})
		fmt.Println(err)
	case "queue-ttl":
		declare(ch, "leased", amqp.Table{"x-expires": 100})
		for { // a bind does not renew the lease
			check(ch.QueueBind("leased", "", "amq.fanout", false, nil))
			time.Sleep(50 * time.Millisecond)
		}
	case "policy":
		declare(ch, "limited", nil)
		send(ch, "limited", "1", "2", "3", "4")
		purge(ch, "limited")
	}
}
