// go-rabbitmq: queues, exchanges and bindings.
package main

import (
	"fmt"
	"time"

	"github.com/wagslane/go-rabbitmq"
)

func topology(name string) {
	switch name {
	case "missing":
		func() {
			defer func() { fmt.Println(recover()) }()
			consume("missing", rabbitmq.WithConsumerOptionsQueuePassive)
		}()
		hello()
	case "inequivalent":
		declare(name, durable)
		declare(name)
	case "float-argument":
		declare(name, arguments(rabbitmq.Table{"x-max-length": 10}))
		declare(name, arguments(rabbitmq.Table{"x-max-length": 10.0}))
	case "queue-ttl":
		declare("leased", arguments(rabbitmq.Table{"x-expires": 100}))
		for {
			time.Sleep(500 * time.Millisecond)
			declare("leased", rabbitmq.WithConsumerOptionsQueuePassive)
		}
	case "policy":
		declare("limited")
		for _, body := range []string{"4", "3", "2", "1"} { // the policy keeps the last two
			publish("limited", body)
		}
		deliveries, _ := consume("limited")
		fmt.Println(string((<-deliveries).Body))
	case "declare":
		fmt.Println("not offered: go-rabbitmq declares for its consumers and publishers; it has no purge, unbind or delete")
	}
}
