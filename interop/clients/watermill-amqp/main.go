// watermill-amqp: the scenarios of ../README.md. A topic is a queue, or a routing key of an exchange; a subscriber gets
// one message at a time.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

var notOffered = map[string]string{
	"declare":         "watermill declares when it subscribes; it has no purge, unbind or delete",
	"missing":         "watermill has no passive declare",
	"direct-reply-to": "watermill publishes and subscribes on different connections",
	"confirm-batch":   "a publisher waits for the confirm of each message",
	"mandatory":       "watermill does not report returned messages",
	"tx":              "a publisher commits each Publish, and has no rollback of its own",
	"channels":        "watermill opens channels itself",
	"prefetch":        "a subscriber has one message at a time",
	"requeue":         "a subscriber has one message at a time",
	"broker-cancel":   "watermill subscribes again and does not report it",
	"blocked":         "watermill does not report it",
	"queue-ttl":       "watermill declares the queue again when it looks for it",
}

// What amqp091-go 1.10 says when a login is refused.
var refusals = map[string]string{
	"bad-password": `Exception (403) Reason: "username or password not allowed"`,
	"bad-vhost":    `Exception (403) Reason: "no access to this vhost"`,
}

var crossing = amqp091.Table{"text": "grüße", "number": int32(42), "yes": true,
	"array": []any{int32(1), "two"}, "table": amqp091.Table{"a": "b"}}

// The properties of the next messages, and the messages that arrived, as amqp091-go has them.
var properties amqp091.Publishing
var deliveries = make(chan amqp091.Delivery, 1000)

type marshaler struct{ amqp.DefaultMarshaler }

func (marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	publishing := properties
	publishing.Body, publishing.DeliveryMode = msg.Payload, amqp091.Persistent
	return publishing, nil
}

func (marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	deliveries <- delivery
	return message.NewMessage(delivery.MessageId, delivery.Body), nil
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func connection(heartbeat time.Duration) amqp.ConnectionConfig {
	config := amqp091.Config{Heartbeat: heartbeat}
	if ca := os.Getenv("CA_FILE"); ca != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(must(os.ReadFile(ca)))
		config.TLSClientConfig = &tls.Config{RootCAs: pool}
		if file := os.Getenv("CERT_FILE"); file != "" {
			config.TLSClientConfig.Certificates = []tls.Certificate{must(tls.LoadX509KeyPair(file, os.Getenv("KEY_FILE")))}
		}
	}
	reconnect := amqp.ReconnectConfig{BackoffInitialInterval: 100 * time.Millisecond, BackoffMaxInterval: time.Second}
	return amqp.ConnectionConfig{AmqpURI: os.Getenv("AMQP_URL"), AmqpConfig: &config, Reconnect: &reconnect}
}

func queues(arguments amqp091.Table) amqp.Config {
	config := amqp.NewDurableQueueConfig("")
	config.Connection, config.Marshaler = connection(0), marshaler{}
	config.Queue.Arguments = arguments
	return config
}

func exchanges(exchange, kind, queue string, arguments amqp091.Table) amqp.Config {
	config := amqp.NewDurableTopicConfig("", exchange, queue)
	config.Connection, config.Marshaler = connection(0), marshaler{}
	config.Exchange.Type, config.Exchange.Arguments = kind, arguments
	return config
}

func declare(config amqp.Config, topics ...string) {
	subscriber := must(amqp.NewSubscriber(config, watermill.NopLogger{}))
	for _, topic := range topics {
		check(subscriber.SubscribeInitialize(topic))
	}
	check(subscriber.Close())
}

func publish(config amqp.Config, topic string, bodies ...string) {
	publisher := must(amqp.NewPublisher(config, watermill.NopLogger{}))
	for _, body := range bodies {
		check(publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), []byte(body))))
	}
	check(publisher.Close())
}

func subscribe(config amqp.Config, topic string) <-chan *message.Message {
	subscriber := must(amqp.NewSubscriber(config, watermill.NopLogger{}))
	return must(subscriber.Subscribe(context.Background(), topic))
}

// Prints and acks the first messages, and returns the last one.
func receive(messages <-chan *message.Message, count int) (last amqp091.Delivery) {
	for range count {
		msg := <-messages
		last = <-deliveries
		fmt.Println(string(msg.Payload))
		msg.Ack()
	}
	return
}

func connects(config amqp.Config) {
	declare(config, "hello")
	publish(config, "hello", "Hello World!")
	receive(subscribe(config, "hello"), 1)
}

func patterns(config amqp.Config, bindings, keys []string, count int) {
	declare(config, bindings...)
	for _, key := range keys {
		publish(config, key, key)
	}
	receive(subscribe(config, bindings[0]), count)
}

func stream(queue string, arguments amqp091.Table) {
	config := queues(amqp091.Table{"x-queue-type": "stream"})
	config.Consume.Arguments = arguments
	declare(config, queue)
	for n := range 10 {
		properties.Headers = amqp091.Table{"x-stream-filter-value": []string{"even", "odd"}[n%2]}
		publish(config, queue, strconv.Itoa(n))
	}
	receive(subscribe(config, queue), 5)
}

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

func fibonacci(n int) int {
	if n < 2 {
		return n
	}
	return fibonacci(n-1) + fibonacci(n-2)
}

func run(name string) {
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
	case "inequivalent":
		declare(config, name)
		config.Queue.Durable = false
		declare(config, name)
	case "float-argument":
		declare(queues(amqp091.Table{"x-max-length": 10}), name)
		declare(queues(amqp091.Table{"x-max-length": 10.0}), name)
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
	case "confirm":
		config.Publish.ConfirmDelivery = true
		declare(config, "confirmed")
		publish(config, "confirmed", "1")
		receive(subscribe(config, "confirmed"), 1)
	case "headers":
		properties.Headers = amqp091.Table{"byte": byte(200), "int16": int16(-16), "int64": int64(1) << 40, "double": 2.5,
			"text": "grüße", "bytes": []byte{0, 255}, "nothing": nil, "time": time.Unix(1_767_323_045, 0),
			"array": []any{int32(1), "two"}, "table": amqp091.Table{"a": amqp091.Table{"b": "c"}}}
		declare(config, "headers")
		publish(config, "headers", "pass")
		messages := subscribe(config, "headers")
		if got := <-deliveries; !reflect.DeepEqual(got.Headers, properties.Headers) {
			panic(fmt.Sprint(got.Headers))
		}
		fmt.Println(string((<-messages).Payload))
	case "bodies":
		declare(config, "bodies")
		messages := subscribe(config, "bodies")
		for _, size := range []int{0, 1, 131_064, 131_065, 1 << 20, 16 << 20} {
			body := bytes.Repeat([]byte("x"), size)
			publish(config, "bodies", string(body))
			msg := <-messages
			if bytes.Equal(msg.Payload, body) {
				fmt.Println(len(msg.Payload))
			}
			msg.Ack()
		}
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
	case "stream-offset":
		stream("stream", amqp091.Table{"x-stream-offset": 5})
	case "stream-filter":
		stream("filtered", amqp091.Table{"x-stream-offset": "first", "x-stream-filter": "odd"})
	case "policy":
		declare(config, "limited")
		publish(config, "limited", "4", "3", "2", "1") // the policy keeps the last two
		(<-subscribe(config, "limited")).Ack()
		fmt.Println(string((<-deliveries).Body))
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
	case "write":
		config.Queue.Durable = false
		declare(config, "crossing")
		body := make([]byte, 256)
		for value := range body {
			body[value] = byte(value)
		}
		properties = amqp091.Publishing{ContentType: "text/plain", MessageId: "7", Headers: crossing}
		publish(config, "crossing", string(body))
		fmt.Println("pass")
	case "read":
		config.Queue.Durable = false
		(<-subscribe(config, "crossing")).Ack()
		got := <-deliveries
		if len(got.Body) == 256 && got.Body[255] == 255 && got.ContentType == "text/plain" && got.MessageId == "7" &&
			fmt.Sprint(got.Headers) == fmt.Sprint(crossing) {
			fmt.Println("pass")
		}
	default:
		panic("unknown scenario: " + name)
	}
}

func main() {
	name := os.Args[1]
	if name == "version" {
		info, _ := debug.ReadBuildInfo()
		for _, module := range info.Deps {
			if strings.Contains(module.Path, "watermill-amqp") {
				fmt.Println(module.Version)
			}
		}
		return
	}
	if reason, ok := notOffered[name]; ok {
		fmt.Println("not offered:", reason)
		return
	}
	defer func() {
		if failure := recover(); failure != nil {
			fmt.Println(failure)
			if refusal := refusals[name]; refusal != "" && strings.Contains(fmt.Sprint(failure), refusal) {
				fmt.Println("pass")
			}
		}
	}()
	run(name)
}
