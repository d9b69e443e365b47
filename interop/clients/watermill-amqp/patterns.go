// watermill-amqp: the patterns of RabbitMQ's tutorials.
package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

func patterns(config amqp.Config, bindings, keys []string, count int) {
	declare(config, bindings...)
	for _, key := range keys {
		publish(config, key, key)
	}
	receive(subscribe(config, bindings[0]), count)
}

func fibonacci(n int) int {
	if n < 2 {
		return n
	}
	return fibonacci(n-1) + fibonacci(n-2)
}

func tutorials(name string) {
	config := queues(nil)
	switch name {
	case "work-queue":
		a, b := subscribe(config, "tasks"), subscribe(config, "tasks")
		publish(config, "tasks", strings.Split("0123456789", "")...)
		var done []string
		workers := map[string]bool{}
		for len(done) < 10 {
			var msg *message.Message
			select {
			case msg = <-a:
			case msg = <-b:
			}
			workers[(<-deliveries).ConsumerTag] = true
			done = append(done, string(msg.Payload))
			msg.Ack()
		}
		slices.Sort(done)
		fmt.Printf("%s\n%d\n", strings.Join(done, ""), len(workers))
	case "publish-subscribe":
		a, b := exchanges("logs", "fanout", "a", nil), exchanges("logs", "fanout", "b", nil)
		declare(a, "")
		declare(b, "")
		publish(a, "", "log")
		receive(subscribe(a, ""), 1)
		receive(subscribe(b, ""), 1)
	case "routing":
		levels := []string{"info", "warning", "error"}
		patterns(exchanges("direct_logs", "direct", "levels", nil), levels[1:], levels, 2)
	case "topics":
		keys := []string{"kern.critical", "cron.info", "kern.a.b", "cron.critical"}
		patterns(exchanges("topic_logs", "topic", "facilities", nil), []string{"*.critical", "kern.#"}, keys, 3)
	case "rpc":
		requests, replies := subscribe(config, "rpc_queue"), subscribe(config, "replies")
		properties = amqp091.Publishing{ReplyTo: "replies", CorrelationId: "1"}
		publish(config, "rpc_queue", "15")
		n := must(strconv.Atoi(string((<-requests).Payload)))
		request := <-deliveries
		properties = amqp091.Publishing{CorrelationId: request.CorrelationId}
		publish(config, request.ReplyTo, strconv.Itoa(fibonacci(n)))
		reply := <-replies
		fmt.Println((<-deliveries).CorrelationId, string(reply.Payload))
	case "direct-reply-to":
		fmt.Println("not offered: watermill publishes and subscribes on different connections")
	}
}
