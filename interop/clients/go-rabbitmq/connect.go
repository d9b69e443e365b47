// go-rabbitmq: connections.
package main

import (
	"fmt"
	"time"

	"github.com/wagslane/go-rabbitmq"
)

func connecting(name string) {
	switch name {
	case "connect", "tls", "client-certificate":
		hello()
	case "heartbeat":
		time.Sleep(4 * time.Second)
		hello()
	case "reconnect":
		deliveries, _ := consume("kept", durable)
		publish("kept", "kept", rabbitmq.WithPublishOptionsPersistentDelivery)
		<-deliveries
		fmt.Println("ready") // the runner kills the broker and starts it again; the consumer connects again by itself
		receive(deliveries, 1)
	case "channels":
		fmt.Println("not offered: go-rabbitmq opens channels itself")
	case "blocked":
		fmt.Println("not offered: a blocked Publish fails; the reason and the end are not reported")
	}
}
