// go-rabbitmq: what the other files share. A consumer declares its queue, exchange and bindings.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/wagslane/go-rabbitmq"
)

type consumerOption = func(*rabbitmq.ConsumerOptions)
type publishOption = func(*rabbitmq.PublishOptions)

var durable = rabbitmq.WithConsumerOptionsQueueDurable
var conn *rabbitmq.Conn

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Consumer.Run returns when the consumer ends; that it has started is only logged.
type logger struct{ started chan struct{} }

func (logger) Fatalf(string, ...any) {}
func (logger) Errorf(string, ...any) {}
func (logger) Warnf(string, ...any)  {}
func (logger) Debugf(string, ...any) {}

func (l logger) Infof(format string, _ ...any) {
	if l.started != nil && strings.HasPrefix(format, "Processing messages") {
		l.started <- struct{}{}
	}
}

func connect() *rabbitmq.Conn {
	config := rabbitmq.Config{}
	if os.Args[1] == "heartbeat" {
		config.Heartbeat = time.Second
	}
	if ca := os.Getenv("CA_FILE"); ca != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(must(os.ReadFile(ca)))
		config.TLSClientConfig = &tls.Config{RootCAs: pool}
		if file := os.Getenv("CERT_FILE"); file != "" {
			config.TLSClientConfig.Certificates = []tls.Certificate{must(tls.LoadX509KeyPair(file, os.Getenv("KEY_FILE")))}
		}
	}
	return must(rabbitmq.NewConn(os.Getenv("AMQP_URL"), rabbitmq.WithConnectionOptionsConfig(config),
		rabbitmq.WithConnectionOptionsReconnectInterval(100*time.Millisecond),
		rabbitmq.WithConnectionOptionsLogger(logger{})))
}

func arguments(table rabbitmq.Table) consumerOption {
	return rabbitmq.WithConsumerOptionsQueueArgs(table)
}

func headers(table rabbitmq.Table) publishOption { return rabbitmq.WithPublishOptionsHeaders(table) }

// Starts a consumer, and returns its deliveries and what closes it. The handler leaves acks to the reader.
func consume(queue string, options ...consumerOption) (<-chan rabbitmq.Delivery, func()) {
	started := make(chan struct{}, 9)
	options = append(options, func(options *rabbitmq.ConsumerOptions) { options.Logger = logger{started} })
	consumer := must(rabbitmq.NewConsumer(conn, queue, options...))
	deliveries := make(chan rabbitmq.Delivery, 1000)
	failed := make(chan error, 1)
	go func() {
		failed <- consumer.Run(func(delivery rabbitmq.Delivery) rabbitmq.Action {
			deliveries <- delivery
			return rabbitmq.Manual
		})
	}()
	select {
	case err := <-failed:
		panic(err)
	case <-started:
	}
	return deliveries, consumer.Close
}

func declare(queue string, options ...consumerOption) {
	_, stop := consume(queue, append(options, rabbitmq.WithConsumerOptionsQOSPrefetch(1))...)
	stop()
}

func publisher(options ...func(*rabbitmq.PublisherOptions)) *rabbitmq.Publisher {
	return must(rabbitmq.NewPublisher(conn, append(options, rabbitmq.WithPublisherOptionsLogger(logger{}))...))
}

func publish(key, body string, options ...publishOption) {
	channel := publisher(rabbitmq.WithPublisherOptionsConfirm)
	confirms := must(channel.PublishWithDeferredConfirmWithContext(context.Background(), []byte(body), []string{key}, options...))
	confirms[0].Wait()
	channel.Close()
}

// Prints and acks the first deliveries, and returns the last one.
func receive(deliveries <-chan rabbitmq.Delivery, count int) (last rabbitmq.Delivery) {
	for range count {
		last = <-deliveries
		fmt.Println(string(last.Body))
		check(last.Ack(false))
	}
	return
}

func hello() {
	declare("hello")
	publish("hello", "Hello World!")
	deliveries, _ := consume("hello")
	receive(deliveries, 1)
}

func bound(exchange, kind string, keys ...string) []consumerOption {
	options := []consumerOption{rabbitmq.WithConsumerOptionsExchangeName(exchange),
		rabbitmq.WithConsumerOptionsExchangeKind(kind), rabbitmq.WithConsumerOptionsExchangeDeclare}
	for _, key := range keys {
		options = append(options, rabbitmq.WithConsumerOptionsRoutingKey(key))
	}
	return options
}
