// go-rabbitmq: consuming.
package main

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/wagslane/go-rabbitmq"
)

func deadLetter(source, target string, options ...publishOption) {
	declare(target)
	rejecting := arguments(rabbitmq.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})
	declare(source, rejecting)
	publish(source, "bad", options...)
	if len(options) == 0 {
		deliveries, _ := consume(source, rejecting)
		check((<-deliveries).Reject(false))
	}
	deliveries, _ := consume(target)
	fmt.Println((<-deliveries).Headers["x-death"].([]any)[0].(amqp.Table)["reason"])
}

func consuming(name string) {
	switch name {
	case "prefetch":
		deliveries, _ := consume("prefetch", rabbitmq.WithConsumerOptionsQOSPrefetch(3))
		for _, body := range strings.Split("0123456789", "") {
			publish("prefetch", body)
		}
		<-deliveries
		<-deliveries
		third := <-deliveries
		time.Sleep(200 * time.Millisecond)
		fmt.Println(7 - len(deliveries)) // go-rabbitmq does not show how many are left in the queue
		check(third.Ack(true))
		for range 3 {
			fmt.Println(string((<-deliveries).Body))
		}
	case "requeue":
		deliveries, _ := consume("requeue", rabbitmq.WithConsumerOptionsQOSPrefetch(3))
		for _, body := range []string{"1", "2", "3"} {
			publish("requeue", body)
		}
		<-deliveries
		<-deliveries
		check((<-deliveries).Nack(true, true))
		first, second, third := <-deliveries, <-deliveries, <-deliveries
		for _, each := range []rabbitmq.Delivery{first, second, third} {
			fmt.Println(string(each.Body), each.Redelivered)
		}
		check(first.Reject(false))
		check(third.Ack(true))
		publish("requeue", "0") // the rejected one is gone, so this one is next
		fmt.Println(string((<-deliveries).Body))
	case "cancel":
		deliveries, stop := consume("cancel")
		stop()
		publish("cancel", "1")
		time.Sleep(200 * time.Millisecond)
		if len(deliveries) == 0 {
			deliveries, _ = consume("cancel")
			receive(deliveries, 1)
		}
	case "dead-letter":
		deadLetter("rejecting", "dead")
	case "message-ttl":
		deadLetter("ttl", "expired", rabbitmq.WithPublishOptionsExpiration("50"))
	case "priority":
		limit := arguments(rabbitmq.Table{"x-max-priority": 5})
		declare("priority", limit)
		for _, priority := range []uint8{1, 5, 3} {
			publish("priority", fmt.Sprint(priority), rabbitmq.WithPublishOptionsPriority(priority))
		}
		deliveries, _ := consume("priority", limit)
		receive(deliveries, 3)
	case "delayed":
		kind := rabbitmq.WithConsumerOptionsExchangeArgs(rabbitmq.Table{"x-delayed-type": "fanout"})
		deliveries, _ := consume("delayed", append(bound("delayed", "x-delayed-message", ""), kind)...)
		exchange := rabbitmq.WithPublishOptionsExchange("delayed")
		publish("", "late", exchange, headers(rabbitmq.Table{"x-delay": 1000}))
		publish("", "soon", exchange, headers(rabbitmq.Table{"x-delay": 1}))
		receive(deliveries, 2)
	case "broker-cancel":
		fmt.Println("not offered: go-rabbitmq consumes again and does not report it")
	}
}
