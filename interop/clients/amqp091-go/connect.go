// amqp091-go: connections.
package main

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func connecting(name string, connection *amqp.Connection, ch *amqp.Channel) {
	switch name {
	case "connect", "tls", "client-certificate":
		hello(ch)
	case "heartbeat":
		time.Sleep(4 * time.Second)
		hello(ch)
	case "channels":
		declare(ch, "channels", nil)
		var opened []*amqp.Channel
		for range 100 {
			opened = append(opened, must(connection.Channel()))
		}
		for _, each := range opened {
			send(each, "channels", "x")
		}
		deliveries := consume(ch, "channels", true, nil)
		for range 99 {
			<-deliveries
		}
		fmt.Println((<-deliveries).DeliveryTag)
	case "blocked":
		told := connection.NotifyBlocked(make(chan amqp.Blocking, 2))
		send(ch, "nowhere", "held")
		fmt.Printf("%s\nready\n", (<-told).Reason) // the runner ends the alarm
		if !(<-told).Active {
			fmt.Println("unblocked")
		}
	case "reconnect":
		closed := connection.NotifyClose(make(chan *amqp.Error, 1))
		confirm(ch, "kept", 1)
		get(ch, "kept")
		fmt.Println("ready") // the runner kills the broker and starts it again
		<-closed
		again, err := connect()
		for err != nil {
			time.Sleep(100 * time.Millisecond)
			again, err = connect()
		}
		if kept := <-consume(must(again.Channel()), "kept", true, nil); kept.Redelivered && string(kept.Body) == "0" {
			fmt.Println("kept")
		}
	}
}
