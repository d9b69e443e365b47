// go-rabbitmq: the scenarios of ../README.md. A consumer declares its queue, exchange and bindings.
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

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/wagslane/go-rabbitmq"
)

var notOffered = map[string]string{
	"declare":         "go-rabbitmq declares for its consumers and publishers; it has no purge, unbind or delete",
	"direct-reply-to": "go-rabbitmq publishes and consumes on different channels",
	"tx":              "go-rabbitmq has no transactions",
	"channels":        "go-rabbitmq opens channels itself",
	"broker-cancel":   "go-rabbitmq consumes again and does not report it",
	"blocked":         "a blocked Publish fails; the reason and the end are not reported",
}

type consumerOption = func(*rabbitmq.ConsumerOptions)
type publishOption = func(*rabbitmq.PublishOptions)

// What amqp091-go 1.10 says when a login is refused.
var refusals = map[string]string{
	"bad-password": `Exception (403) Reason: "username or password not allowed"`,
	"bad-vhost":    `Exception (403) Reason: "no access to this vhost"`,
}

var crossing = rabbitmq.Table{"text": "grüße", "number": int32(42), "yes": true,
	"array": []any{int32(1), "two"}, "table": amqp.Table{"a": "b"}}

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

func connect(heartbeat time.Duration) *rabbitmq.Conn {
	config := rabbitmq.Config{Heartbeat: heartbeat}
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

func connects() {
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

func patterns(exchange, kind string, bindings, keys []string, count int) {
	deliveries, _ := consume(exchange, bound(exchange, kind, bindings...)...)
	for _, key := range keys {
		publish(key, key, rabbitmq.WithPublishOptionsExchange(exchange))
	}
	receive(deliveries, count)
}

func confirm(queue string, count int) {
	declare(queue)
	channel := publisher(rabbitmq.WithPublisherOptionsConfirm)
	var confirms []rabbitmq.PublisherConfirmation
	for range count {
		confirms = append(confirms, must(channel.PublishWithDeferredConfirmWithContext(context.Background(),
			[]byte("x"), []string{queue}, rabbitmq.WithPublishOptionsPersistentDelivery)))
	}
	for _, each := range confirms {
		if !each[0].Wait() {
			panic("nacked")
		}
	}
	deliveries, _ := consume(queue, rabbitmq.WithConsumerOptionsQOSPrefetch(count))
	for range count - 1 {
		<-deliveries
	}
	fmt.Println((<-deliveries).DeliveryTag)
}

func stream(queue string, wanted amqp.Table) {
	options := []consumerOption{durable, arguments(rabbitmq.Table{"x-queue-type": "stream"}), func(options *rabbitmq.ConsumerOptions) {
		options.RabbitConsumerOptions.Args = rabbitmq.Table(wanted)
	}}
	declare(queue, options...)
	for n := range 10 {
		publish(queue, strconv.Itoa(n), headers(rabbitmq.Table{"x-stream-filter-value": []string{"even", "odd"}[n%2]}))
	}
	deliveries, _ := consume(queue, options...)
	receive(deliveries, 5)
}

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

func fibonacci(n int) int {
	if n < 2 {
		return n
	}
	return fibonacci(n-1) + fibonacci(n-2)
}

func run(name string) {
	switch name {
	case "connect", "tls", "client-certificate":
		connects()
	case "heartbeat":
		time.Sleep(4 * time.Second)
		connects()
	case "missing":
		func() {
			defer func() { fmt.Println(recover()) }()
			consume("missing", rabbitmq.WithConsumerOptionsQueuePassive)
		}()
		connects()
	case "inequivalent":
		declare(name, durable)
		declare(name)
	case "float-argument":
		declare(name, arguments(rabbitmq.Table{"x-max-length": 10}))
		declare(name, arguments(rabbitmq.Table{"x-max-length": 10.0}))
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
	case "confirm":
		confirm("confirmed", 1)
	case "confirm-batch":
		confirm("batch", 1000)
	case "mandatory":
		channel := publisher()
		returns := make(chan rabbitmq.Return, 1000)
		channel.NotifyReturn(func(returned rabbitmq.Return) { returns <- returned })
		for len(returns) == 0 { // NotifyReturn registers the handler later
			check(channel.Publish([]byte("lost"), []string{"nowhere"}, rabbitmq.WithPublishOptionsMandatory))
			time.Sleep(100 * time.Millisecond)
		}
		fmt.Println((<-returns).ReplyCode)
	case "headers":
		sent := rabbitmq.Table{"byte": byte(200), "int8": int8(-8), "int16": int16(-16), "int32": int32(-32),
			"int64": int64(1) << 40, "float": float32(1.5), "double": 2.5, "text": "grüße", "bytes": []byte{0, 255},
			"yes": true, "nothing": nil, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "time": time.Unix(1_767_323_045, 0),
			"array": []any{int32(1), "two", amqp.Table{"three": int32(3)}}, "table": amqp.Table{"a": amqp.Table{"b": "c"}}}
		deliveries, _ := consume("headers")
		publish("headers", "pass", headers(sent))
		got := <-deliveries
		if !reflect.DeepEqual(got.Headers, amqp.Table(sent)) {
			panic(fmt.Sprint(got.Headers))
		}
		fmt.Println(string(got.Body))
	case "bodies":
		deliveries, _ := consume("bodies")
		for _, size := range []int{0, 1, 131_064, 131_065, 1 << 20, 16 << 20} {
			body := bytes.Repeat([]byte("x"), size)
			publish("bodies", string(body))
			got := <-deliveries
			if bytes.Equal(got.Body, body) {
				fmt.Println(len(got.Body))
			}
			check(got.Ack(false))
		}
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
	case "queue-ttl":
		declare("leased", arguments(rabbitmq.Table{"x-expires": 100}))
		for {
			time.Sleep(500 * time.Millisecond)
			declare("leased", rabbitmq.WithConsumerOptionsQueuePassive)
		}
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
	case "stream-offset":
		stream("stream", amqp.Table{"x-stream-offset": 5})
	case "stream-filter":
		stream("filtered", amqp.Table{"x-stream-offset": "first", "x-stream-filter": "odd"})
	case "policy":
		declare("limited")
		for _, body := range []string{"4", "3", "2", "1"} { // the policy keeps the last two
			publish("limited", body)
		}
		deliveries, _ := consume("limited")
		fmt.Println(string((<-deliveries).Body))
	case "reconnect":
		deliveries, _ := consume("kept", durable)
		publish("kept", "kept", rabbitmq.WithPublishOptionsPersistentDelivery)
		<-deliveries
		fmt.Println("ready") // the runner kills the broker and starts it again; the consumer connects again by itself
		receive(deliveries, 1)
	case "write":
		declare("crossing")
		body := make([]byte, 256)
		for value := range body {
			body[value] = byte(value)
		}
		publish("crossing", string(body), rabbitmq.WithPublishOptionsContentType("text/plain"),
			rabbitmq.WithPublishOptionsMessageID("7"), headers(crossing))
		fmt.Println("pass")
	case "read":
		deliveries, _ := consume("crossing")
		got := <-deliveries
		check(got.Ack(false))
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
			if strings.HasSuffix(module.Path, "/go-rabbitmq") {
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
	heartbeat := time.Duration(0)
	if name == "heartbeat" {
		heartbeat = time.Second
	}
	conn = connect(heartbeat)
	run(name)
}
