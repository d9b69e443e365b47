// watermill-amqp: queues, exchanges and bindings.
package main

import (
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

func topology(name string) {
	config := queues(nil)
	switch name {
	case "inequivalent":
		declare(config, name)
		config.Queue.Durable = false
		declare(config, name)
	case "float-argument":
		declare(queues(amqp091.Table{"x-max-length": 10}), name)
		declare(queues(amqp091.Table{"x-max-length": 10.0}), name)
	case "policy":
		declare(config, "limited")
		publish(config, "limited", "4", "3", "2", "1") // the policy keeps the last two
		(<-subscribe(config, "limited")).Ack()
		fmt.Println(string((<-deliveries).Body))
	case "declare":
		fmt.Println("not offered: watermill declares when it subscribes; it has no purge, unbind or delete")
	case "missing":
		fmt.Println("not offered: watermill has no passive declare")
	case "queue-ttl":
		fmt.Println("not offered: watermill declares the queue again when it looks for it")
	}
}
