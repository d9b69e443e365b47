// watermill-amqp: consuming.
package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

func deadLetter(source, target, expiration string) {
	config := queues(amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})
	config.Consume.NoRequeueOnNack = true
	declare(queues(nil), target)
	declare(config, source)
	properties.Expiration = expiration
	publish(config, source, "bad")
	if expiration == "" {
		(<-subscribe(config, source)).Nack()
		<-deliveries
	}
	<-subscribe(queues(nil), target)
	fmt.Println((<-deliveries).Headers["x-death"].([]any)[0].(amqp091.Table)["reason"])
}

func consuming(name string) {
	config := queues(nil)
	switch name {
	case "cancel":
		subscriber := must(amqp.NewSubscriber(config, watermill.NopLogger{}))
		ctx, cancel := context.WithCancel(context.Background())
		messages := must(subscriber.Subscribe(ctx, "cancel"))
		cancel()
		_, delivered := <-messages
		publish(config, "cancel", "1")
		if !delivered {
			receive(subscribe(config, "cancel"), 1)
		}
	case "dead-letter":
		deadLetter("rejecting", "dead", "")
	case "message-ttl":
		deadLetter("ttl", "expired", "50")
	case "priority":
		config = queues(amqp091.Table{"x-max-priority": 5})
		declare(config, "priority")
		for _, priority := range []uint8{1, 5, 3} {
			properties.Priority = priority
			publish(config, "priority", fmt.Sprint(priority))
		}
		receive(subscribe(config, "priority"), 3)
	case "delayed":
		config = exchanges("delayed", "x-delayed-message", "delayed", amqp091.Table{"x-delayed-type": "fanout"})
		declare(config, "")
		properties.Headers = amqp091.Table{"x-delay": 1000}
		publish(config, "", "late")
		properties.Headers = amqp091.Table{"x-delay": 1}
		publish(config, "", "soon")
		receive(subscribe(config, ""), 2)
	case "prefetch", "requeue":
		fmt.Println("not offered: a subscriber has one message at a time")
	case "broker-cancel":
		fmt.Println("not offered: watermill subscribes again and does not report it")
	}
}
