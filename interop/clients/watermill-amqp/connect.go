// watermill-amqp: connections.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
)

func connects(config amqp.Config) {
	declare(config, "hello")
	publish(config, "hello", "Hello World!")
	receive(subscribe(config, "hello"), 1)
}

func connecting(name string) {
	config := queues(nil)
	switch name {
	case "connect", "bad-password", "bad-vhost", "tls", "client-certificate":
		connects(config)
	case "heartbeat":
		config.Connection = connection(time.Second)
		subscriber := must(amqp.NewSubscriber(config, watermill.NopLogger{}))
		messages := must(subscriber.Subscribe(context.Background(), "hello"))
		time.Sleep(4 * time.Second)
		publish(config, "hello", "Hello World!")
		receive(messages, 1)
	case "reconnect":
		subscriber := must(amqp.NewSubscriber(config, watermill.NopLogger{}))
		messages := must(subscriber.Subscribe(context.Background(), "kept"))
		publish(config, "kept", "kept")
		msg := <-messages
		fmt.Println("ready") // the runner kills the broker and starts it again
		for subscriber.IsConnected() {
			time.Sleep(10 * time.Millisecond)
		}
		msg.Ack() // too late; now the subscriber connects again by itself
		fmt.Println(string((<-messages).Payload))
	case "channels":
		fmt.Println("not offered: watermill opens channels itself")
	case "blocked":
		fmt.Println("not offered: watermill does not report it")
	}
}
