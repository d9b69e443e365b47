// go-rabbitmq: the patterns of RabbitMQ's tutorials.
package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/wagslane/go-rabbitmq"
)

func patterns(exchange, kind string, bindings, keys []string, count int) {
	deliveries, _ := consume(exchange, bound(exchange, kind, bindings...)...)
	for _, key := range keys {
		publish(key, key, rabbitmq.WithPublishOptionsExchange(exchange))
	}
	receive(deliveries, count)
}

func fibonacci(n int) int {
	if n < 2 {
		return n
	}
	return fibonacci(n-1) + fibonacci(n-2)
}

func tutorials(name string) {
	switch name {
	case "work-queue":
		a, _ := consume("tasks", durable, rabbitmq.WithConsumerOptionsQOSPrefetch(1))
		b, _ := consume("tasks", durable, rabbitmq.WithConsumerOptionsQOSPrefetch(1))
		for _, task := range strings.Split("0123456789", "") {
			publish("tasks", task, rabbitmq.WithPublishOptionsPersistentDelivery)
		}
		var done []string
		workers := map[string]bool{}
		for len(done) < 10 {
			var delivery rabbitmq.Delivery
			select {
			case delivery = <-a:
			case delivery = <-b:
			}
			workers[delivery.ConsumerTag] = true
			done = append(done, string(delivery.Body))
			check(delivery.Ack(false))
		}
		slices.Sort(done)
		fmt.Printf("%s\n%d\n", strings.Join(done, ""), len(workers))
	case "publish-subscribe":
		a, _ := consume("a", bound("logs", "fanout", "")...)
		b, _ := consume("b", bound("logs", "fanout", "")...)
		publish("", "log", rabbitmq.WithPublishOptionsExchange("logs"))
		receive(a, 1)
		receive(b, 1)
	case "routing":
		levels := []string{"info", "warning", "error"}
		patterns("direct_logs", "direct", levels[1:], levels, 2)
	case "topics":
		keys := []string{"kern.critical", "cron.info", "kern.a.b", "cron.critical"}
		patterns("topic_logs", "topic", []string{"*.critical", "kern.#"}, keys, 3)
	case "rpc":
		requests, _ := consume("rpc_queue")
		replies, _ := consume("replies", rabbitmq.WithConsumerOptionsQueueExclusive)
		publish("rpc_queue", "15", rabbitmq.WithPublishOptionsReplyTo("replies"), rabbitmq.WithPublishOptionsCorrelationID("1"))
		request := <-requests
		result := fibonacci(must(strconv.Atoi(string(request.Body))))
		publish(request.ReplyTo, strconv.Itoa(result), rabbitmq.WithPublishOptionsCorrelationID(request.CorrelationId))
		reply := <-replies
		fmt.Println(reply.CorrelationId, string(reply.Body))
	case "direct-reply-to":
		fmt.Println("not offered: go-rabbitmq publishes and consumes on different channels")
	}
}
