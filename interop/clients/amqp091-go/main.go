// amqp091-go: the scenarios of ../README.md.
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
)

var crossing = amqp.Table{"text": "grüße", "number": int32(42), "yes": true,
	"array": []any{int32(1), "two"}, "table": amqp.Table{"a": "b"}}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func connect(heartbeat time.Duration) (*amqp.Connection, error) {
	config := amqp.Config{Heartbeat: heartbeat}
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

func connects(ch *amqp.Channel) {
	declare(ch, "hello", nil)
	send(ch, "hello", "Hello World!")
	fmt.Println(string(get(ch, "hello").Body))
}

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

func deadLetter(ch *amqp.Channel, source, target, expiration string) {
	declare(ch, target, nil)
	declare(ch, source, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})
	publish(ch, "", source, amqp.Publishing{Expiration: expiration})
	if expiration == "" {
		check(get(ch, source).Reject(false))
	}
	fmt.Println((<-consume(ch, target, true, nil)).Headers["x-death"].([]any)[0].(amqp.Table)["reason"])
}

func stream(ch *amqp.Channel, name string, arguments amqp.Table) {
	declare(ch, name, amqp.Table{"x-queue-type": "stream"})
	for n := range 10 {
		headers := amqp.Table{"x-stream-filter-value": []string{"even", "odd"}[n%2]}
		publish(ch, "", name, amqp.Publishing{Body: []byte(strconv.Itoa(n)), Headers: headers})
	}
	check(ch.Qos(10, 0, false))
	receive(consume(ch, name, false, arguments), 5)
}

func run(name string, connection *amqp.Connection, ch *amqp.Channel) {
	switch name {
	case "connect", "tls", "client-certificate":
		connects(ch)
	case "heartbeat":
		time.Sleep(4 * time.Second)
		connects(ch)
	case "declare":
		must(ch.QueueDeclare("declared", true, false, false, false, nil))
		check(ch.ExchangeDeclare("declared", "topic", true, false, false, false, nil))
		check(ch.QueueBind("declared", "#", "declared", false, nil))
		publish(ch, "declared", "key", amqp.Publishing{Body: []byte("1")})
		must(ch.QueueDeclarePassive("declared", true, false, false, false, nil))
		check(ch.ExchangeDeclarePassive("declared", "topic", true, false, false, false, nil))
		purge(ch, "declared")
		check(ch.QueueUnbind("declared", "#", "declared", nil))
		check(ch.ExchangeDelete("declared", false, false))
		must(ch.QueueDelete("declared", false, false, false))
	case "missing":
		_, err := ch.QueueDeclarePassive("missing", false, false, false, false, nil)
		fmt.Println(err)
		connects(must(connection.Channel()))
	case "inequivalent":
		must(ch.QueueDeclare("inequivalent", true, false, false, false, nil))
		must(ch.QueueDeclare("inequivalent", false, false, false, false, nil))
	case "float-argument":
		declare(ch, "float", amqp.Table{"x-max-length": 10})
		declare(ch, "float", amqp.Table{"x-max-length": int16(10)})
		_, err := ch.QueueDeclare("float", false, false, false, false, amqp.Table{"x-max-length": 10.0})
		fmt.Println(err)
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
	case "confirm":
		confirm(ch, "confirmed", 1)
		purge(ch, "confirmed")
	case "confirm-batch":
		confirm(ch, "batch", 1000)
		purge(ch, "batch")
	case "mandatory":
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		check(ch.PublishWithContext(context.Background(), "", "nowhere", true, false, amqp.Publishing{}))
		fmt.Println((<-returns).ReplyCode)
	case "tx":
		declare(ch, "tx", nil)
		check(ch.Tx())
		send(ch, "tx", "no")
		check(ch.TxRollback())
		send(ch, "tx", "yes")
		check(ch.TxCommit())
		fmt.Println(string(get(ch, "tx").Body))
	case "headers":
		sent := amqp.Table{"byte": byte(200), "int8": int8(-8), "int16": int16(-16), "int32": int32(-32),
			"int64": int64(1) << 40, "float": float32(1.5), "double": 2.5, "text": "grüße", "bytes": []byte{0, 255},
			"yes": true, "nothing": nil, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "time": time.Unix(1_767_323_045, 0),
			"array": []any{int32(1), "two", amqp.Table{"three": int32(3)}}, "table": amqp.Table{"a": amqp.Table{"b": "c"}}}
		declare(ch, "headers", nil)
		publish(ch, "", "headers", amqp.Publishing{Headers: sent})
		if got := get(ch, "headers").Headers; !reflect.DeepEqual(got, sent) {
			panic(fmt.Sprint(got))
		}
		fmt.Println("pass")
	case "bodies":
		declare(ch, "bodies", nil)
		for _, size := range []int{0, 1, 131_064, 131_065, 1 << 20, 16 << 20} {
			body := bytes.Repeat([]byte("x"), size)
			publish(ch, "", "bodies", amqp.Publishing{Body: body})
			if bytes.Equal(get(ch, "bodies").Body, body) {
				fmt.Println(size)
			}
		}
	case "channels":
		declare(ch, "channels", nil)
		var opened []*amqp.Channel
		for range 100 {
			opened = append(opened, must(connection.Channel()))
		}
		for _, each := range opened {
			send(each, "channels", "x")
		}
		deliveries := consume(ch, "channels", true, nil)
		for range 99 {
			<-deliveries
		}
		fmt.Println((<-deliveries).DeliveryTag)
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
	case "blocked":
		told := connection.NotifyBlocked(make(chan amqp.Blocking, 2))
		send(ch, "nowhere", "held")
		fmt.Printf("%s\nready\n", (<-told).Reason) // the runner ends the alarm
		if !(<-told).Active {
			fmt.Println("unblocked")
		}
	case "dead-letter":
		deadLetter(ch, "rejecting", "dead", "")
	case "message-ttl":
		deadLetter(ch, "ttl", "expired", "50")
	case "queue-ttl":
		declare(ch, "leased", amqp.Table{"x-expires": 100})
		for { // a bind does not renew the lease
			check(ch.QueueBind("leased", "", "amq.fanout", false, nil))
			time.Sleep(50 * time.Millisecond)
		}
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
	case "stream-offset":
		stream(ch, "stream", amqp.Table{"x-stream-offset": 5})
	case "stream-filter":
		stream(ch, "filtered", amqp.Table{"x-stream-offset": "first", "x-stream-filter": "odd"})
	case "policy":
		declare(ch, "limited", nil)
		send(ch, "limited", "1", "2", "3", "4")
		purge(ch, "limited")
	case "reconnect":
		closed := connection.NotifyClose(make(chan *amqp.Error, 1))
		confirm(ch, "kept", 1)
		get(ch, "kept")
		fmt.Println("ready") // the runner kills the broker and starts it again
		<-closed
		again, err := connect(0)
		for err != nil {
			time.Sleep(100 * time.Millisecond)
			again, err = connect(0)
		}
		if kept := <-consume(must(again.Channel()), "kept", true, nil); kept.Redelivered && string(kept.Body) == "0" {
			fmt.Println("kept")
		}
	case "write":
		message := amqp.Publishing{ContentType: "text/plain", MessageId: "7", Headers: crossing}
		for value := range 256 {
			message.Body = append(message.Body, byte(value))
		}
		declare(ch, "crossing", nil)
		publish(ch, "", "crossing", message)
		fmt.Println("pass")
	case "read":
		got := <-consume(ch, "crossing", true, nil)
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
			if strings.HasSuffix(module.Path, "amqp091-go") {
				fmt.Println(module.Version)
			}
		}
		return
	}
	defer func() {
		if failure := recover(); failure != nil {
			fmt.Println(failure)
			if name == "bad-password" && fmt.Sprint(failure) == amqp.ErrCredentials.Error() {
				fmt.Println("pass") // amqp091-go has its own text for this 403
			}
		}
	}()
	heartbeat := time.Duration(0)
	if name == "heartbeat" {
		heartbeat = time.Second
	}
	connection := must(connect(heartbeat))
	run(name, connection, must(connection.Channel()))
	connection.Close()
}
