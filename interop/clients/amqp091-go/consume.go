// amqp091-go: consuming.
package main

import (
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

func deadLetter(ch *amqp.Channel, source, target, expiration string) {
	declare(ch, target, nil)
	declare(ch, source, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})
	publish(ch, "", source, amqp.Publishing{Expiration: expiration})
	if expiration == "" {
		check(get(ch, source).Reject(false))
	}
	fmt.Println((<-consume(ch, target, true, nil)).Headers["x-death"].([]any)[0].(amqp.Table)["reason"])
}

func consuming(name string, connection *amqp.Connection, ch *amqp.Channel) {
	switch name {
	case "prefetch":
		declare(ch, "prefetch", nil)
		send(ch, "prefetch", strings.Split("0123456789", "")...)
		check(ch.Qos(3, 0, false))
		deliveries := consume(ch, "prefetch", false, nil)
		<-deliveries
		<-deliveries
		third := <-deliveries
		fmt.Println(must(ch.QueueDeclarePassive("prefetch", false, false, false, false, nil)).Messages)
		check(third.Ack(true))
		receive(deliveries, 3)
	case "requeue":
		declare(ch, "requeue", nil)
		send(ch, "requeue", "1", "2", "3")
		get(ch, "requeue")
		get(ch, "requeue")
		check(get(ch, "requeue").Nack(true, true))
		got := []amqp.Delivery{get(ch, "requeue"), get(ch, "requeue"), get(ch, "requeue")}
		for _, each := range got {
			fmt.Println(string(each.Body), each.Redelivered)
		}
		check(got[0].Reject(false))
		check(got[2].Ack(true))
		purge(ch, "requeue")
	case "cancel":
		declare(ch, "cancel", nil)
		deliveries := must(ch.Consume("cancel", "reader", true, false, false, false, nil))
		check(ch.Cancel("reader", false))
		send(ch, "cancel", "stays")
		for range deliveries {
			fmt.Println("delivered")
		}
		purge(ch, "cancel")
	case "broker-cancel":
		told := ch.NotifyCancel(make(chan string, 1))
		declare(ch, "cancelled", nil)
		must(ch.Consume("cancelled", "cancelled", false, false, false, false, nil))
		must(must(connection.Channel()).QueueDelete("cancelled", false, false, false))
		fmt.Println(<-told) // the consumer's tag
	case "dead-letter":
		deadLetter(ch, "rejecting", "dead", "")
	case "message-ttl":
		deadLetter(ch, "ttl", "expired", "50")
	case "priority":
		declare(ch, "priority", amqp.Table{"x-max-priority": 5})
		for _, level := range []uint8{1, 5, 3} {
			publish(ch, "", "priority", amqp.Publishing{Body: []byte(strconv.Itoa(int(level))), Priority: level})
		}
		receive(consume(ch, "priority", true, nil), 3)
	case "delayed":
		arguments := amqp.Table{"x-delayed-type": "fanout"}
		check(ch.ExchangeDeclare("delayed", "x-delayed-message", false, false, false, false, arguments))
		declare(ch, "delayed", nil)
		check(ch.QueueBind("delayed", "", "delayed", false, nil))
		publish(ch, "delayed", "", amqp.Publishing{Body: []byte("late"), Headers: amqp.Table{"x-delay": 1000}})
		publish(ch, "delayed", "", amqp.Publishing{Body: []byte("soon"), Headers: amqp.Table{"x-delay": 1}})
		receive(consume(ch, "delayed", true, nil), 2)
	}
}
