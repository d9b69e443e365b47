// watermill-amqp: what the other files share. A topic is a queue, or a routing key of an exchange; a subscriber gets one
// message at a time.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

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
