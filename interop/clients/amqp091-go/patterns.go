// amqp091-go: the patterns of RabbitMQ's tutorials.
package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

func patterns(ch *amqp.Channel, exchange, kind string, bindings, published []string, count int) {
	check(ch.ExchangeDeclare(exchange, kind, false, false, false, false, nil))
	queue := declare(ch, "", nil)
	for _, key := range bindings {
		check(ch.QueueBind(queue, key, exchange, false, nil))
	}
	for _, key := range published {
		publish(ch, exchange, key, amqp.Publishing{Body: []byte(key)})
	}
	receive(consume(ch, queue, true, nil), count)
}

func fibonacci(n int) int {
	if n < 2 {
		return n
	}
	return fibonacci(n-1) + fibonacci(n-2)
}

func rpc(ch *amqp.Channel, callback string) {
	requests := consume(ch, declare(ch, "rpc_queue", nil), true, nil)
	replies := consume(ch, callback, true, nil)
	publish(ch, "", "rpc_queue", amqp.Publishing{Body: []byte("15"), ReplyTo: callback, CorrelationId: "1"})
	request := <-requests
	result := strconv.Itoa(fibonacci(must(strconv.Atoi(string(request.Body)))))
	publish(ch, "", request.ReplyTo, amqp.Publishing{Body: []byte(result), CorrelationId: request.CorrelationId})
	reply := <-replies
	fmt.Println(reply.CorrelationId, string(reply.Body))
}

func tutorials(name string, connection *amqp.Connection, ch *amqp.Channel) {
	switch name {
	case "work-queue":
		must(ch.QueueDeclare("tasks", true, false, false, false, nil))
		check(ch.Qos(1, 0, false))
		a, b := consume(ch, "tasks", false, nil), consume(ch, "tasks", false, nil)
		send(ch, "tasks", strings.Split("0123456789", "")...)
		var done []string
		workers := map[string]bool{}
		for len(done) < 10 {
			var delivery amqp.Delivery
			select {
			case delivery = <-a:
			case delivery = <-b:
			}
			done = append(done, string(delivery.Body))
			workers[delivery.ConsumerTag] = true
			check(delivery.Ack(false))
		}
		slices.Sort(done)
		fmt.Printf("%s\n%d\n", strings.Join(done, ""), len(workers))
	case "publish-subscribe":
		check(ch.ExchangeDeclare("logs", "fanout", false, false, false, false, nil))
		queues := []string{declare(ch, "", nil), declare(ch, "", nil)}
		for _, queue := range queues {
			check(ch.QueueBind(queue, "", "logs", false, nil))
		}
		publish(ch, "logs", "", amqp.Publishing{Body: []byte("log")})
		for _, queue := range queues {
			receive(consume(ch, queue, true, nil), 1)
		}
	case "routing":
		levels := []string{"info", "warning", "error"}
		patterns(ch, "direct_logs", "direct", levels[1:], levels, 2)
	case "topics":
		keys := []string{"kern.critical", "cron.info", "kern.a.b", "cron.critical"}
		patterns(ch, "topic_logs", "topic", []string{"*.critical", "kern.#"}, keys, 3)
	case "rpc":
		rpc(ch, declare(ch, "", nil))
	case "direct-reply-to":
		rpc(ch, "amq.rabbitmq.reply-to")
	}
}
