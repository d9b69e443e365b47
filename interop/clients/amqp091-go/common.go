// amqp091-go: what the other files share.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func connect() (*amqp.Connection, error) {
	config := amqp.Config{}
	if os.Args[1] == "heartbeat" {
		config.Heartbeat = time.Second
	}
	if ca := os.Getenv("CA_FILE"); ca != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(must(os.ReadFile(ca)))
		config.TLSClientConfig = &tls.Config{RootCAs: pool, ServerName: "localhost"}
		if file := os.Getenv("CERT_FILE"); file != "" {
			config.TLSClientConfig.Certificates = []tls.Certificate{must(tls.LoadX509KeyPair(file, os.Getenv("KEY_FILE")))}
		}
	}
	return amqp.DialConfig(os.Getenv("AMQP_URL"), config)
}

func publish(ch *amqp.Channel, exchange, key string, message amqp.Publishing) {
	check(ch.PublishWithContext(context.Background(), exchange, key, false, false, message))
}

func send(ch *amqp.Channel, queue string, bodies ...string) {
	for _, body := range bodies {
		publish(ch, "", queue, amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent})
	}
}

func declare(ch *amqp.Channel, name string, arguments amqp.Table) string {
	return must(ch.QueueDeclare(name, arguments["x-queue-type"] == "stream", false, name == "", false, arguments)).Name
}

func consume(ch *amqp.Channel, queue string, autoAck bool, arguments amqp.Table) <-chan amqp.Delivery {
	return must(ch.Consume(queue, "", autoAck, false, false, false, arguments))
}

// Prints the bodies of the next deliveries.
func receive(deliveries <-chan amqp.Delivery, count int) {
	for range count {
		fmt.Println(string((<-deliveries).Body))
	}
}

func get(ch *amqp.Channel, queue string) amqp.Delivery {
	delivery, ok, err := ch.Get(queue, false)
	check(err)
	if !ok {
		panic("no message")
	}
	return delivery
}

func purge(ch *amqp.Channel, queue string) { fmt.Println(must(ch.QueuePurge(queue, false))) }

func hello(ch *amqp.Channel) {
	declare(ch, "hello", nil)
	send(ch, "hello", "Hello World!")
	fmt.Println(string(get(ch, "hello").Body))
}

func confirm(ch *amqp.Channel, queue string, count int) {
	must(ch.QueueDeclare(queue, true, false, false, false, nil))
	check(ch.Confirm(false))
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, count))
	for n := range count {
		send(ch, queue, strconv.Itoa(n))
	}
	for range count {
		if !(<-confirms).Ack {
			panic("nacked")
		}
	}
}
