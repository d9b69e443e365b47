// amqp091-go: the scenarios of ../README.md.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var background = context.Background()

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

func expect(condition bool, got ...any) {
	if !condition {
		panic(fmt.Sprint(got...))
	}
}

func connect(config amqp.Config) (*amqp.Connection, error) {
	if ca := os.Getenv("CA_FILE"); ca != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(must(os.ReadFile(ca)))
		config.TLSClientConfig = &tls.Config{RootCAs: pool, ServerName: "localhost"}
		if file := os.Getenv("CERT_FILE"); file != "" {
			pair := must(tls.LoadX509KeyPair(file, os.Getenv("KEY_FILE")))
			config.TLSClientConfig.Certificates = []tls.Certificate{pair}
		}
	}
	return amqp.DialConfig(os.Getenv("AMQP_URL"), config)
}

func publish(ch *amqp.Channel, exchange, key string, message amqp.Publishing) {
	check(ch.PublishWithContext(background, exchange, key, false, false, message))
}

func send(ch *amqp.Channel, queue string, bodies ...string) {
	for _, body := range bodies {
		publish(ch, "", queue, amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent})
	}
}

func declareQueue(ch *amqp.Channel, name string, arguments amqp.Table) amqp.Queue {
	return must(ch.QueueDeclare(name, arguments["x-queue-type"] == "stream", false, name == "", false, arguments))
}

func consume(ch *amqp.Channel, queue string, autoAck bool, arguments amqp.Table) <-chan amqp.Delivery {
	return must(ch.Consume(queue, "", autoAck, false, false, false, arguments))
}

func take(deliveries <-chan amqp.Delivery, count int) (got []amqp.Delivery, texts []string) {
	for range count {
		delivery := <-deliveries
		got = append(got, delivery)
		texts = append(texts, string(delivery.Body))
	}
	return
}

func get(ch *amqp.Channel, queue string) amqp.Delivery {
	delivery, ok, err := ch.Get(queue, false)
	expect(err == nil && ok, "no message", err)
	return delivery
}

func equal(got []string, expected ...string) {
	expect(reflect.DeepEqual(got, expected), got)
}

func refused(code int, text string, err error) {
	var refusal *amqp.Error
	expect(errors.As(err, &refusal) && refusal.Code == code && strings.Contains(refusal.Reason, text), err)
}

func connects(ch *amqp.Channel) {
	declareQueue(ch, "hello", nil)
	send(ch, "hello", "Hello World!")
	expect(string(get(ch, "hello").Body) == "Hello World!")
}

func patterns(ch *amqp.Channel, exchange, kind string, bindings, published []string, expected ...string) {
	check(ch.ExchangeDeclare(exchange, kind, false, false, false, false, nil))
	queue := declareQueue(ch, "", nil)
	for _, key := range bindings {
		check(ch.QueueBind(queue.Name, key, exchange, false, nil))
	}
	for _, key := range published {
		publish(ch, exchange, key, amqp.Publishing{Body: []byte(key)})
	}
	_, got := take(consume(ch, queue.Name, true, nil), len(expected))
	equal(got, expected...)
}

func fibonacci(n int) int {
	if n < 2 {
		return n
	}
	return fibonacci(n-1) + fibonacci(n-2)
}

func rpc(ch *amqp.Channel, callback string) {
	declareQueue(ch, "rpc_queue", nil)
	requests := consume(ch, "rpc_queue", true, nil)
	replies := consume(ch, callback, true, nil)
	question := amqp.Publishing{Body: []byte("15"), ReplyTo: callback, CorrelationId: "1"}
	publish(ch, "", "rpc_queue", question)
	request := <-requests
	result := strconv.Itoa(fibonacci(must(strconv.Atoi(string(request.Body)))))
	publish(ch, "", request.ReplyTo, amqp.Publishing{Body: []byte(result), CorrelationId: request.CorrelationId})
	reply := <-replies
	expect(reply.CorrelationId == "1" && string(reply.Body) == "610", reply)
}

func reasonOfDeath(ch *amqp.Channel, queue string) any {
	died := (<-consume(ch, queue, true, nil)).Headers["x-death"].([]any)[0].(amqp.Table)
	return died["reason"]
}

func stream(ch *amqp.Channel, name string, arguments amqp.Table, expected ...string) {
	declareQueue(ch, name, amqp.Table{"x-queue-type": "stream"})
	for n := range 10 {
		filter := []string{"even", "odd"}[n%2]
		message := amqp.Publishing{Body: []byte(strconv.Itoa(n)), Headers: amqp.Table{"x-stream-filter-value": filter}}
		publish(ch, "", name, message)
	}
	check(ch.Qos(10, 0, false))
	_, got := take(consume(ch, name, false, arguments), len(expected))
	equal(got, expected...)
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if strings.HasSuffix(module.Path, "amqp091-go") {
			return module.Version
		}
	}
	return ""
}

func main() {
	name := os.Args[1]
	if name == "version" {
		fmt.Println(version())
		return
	}
	defer func() {
		if failure := recover(); failure != nil {
			fmt.Println(failure)
			os.Exit(1)
		}
	}()
	if run, ok := alone[name]; ok {
		run()
	} else {
		connection := must(connect(amqp.Config{}))
		scenarios[name](connection, must(connection.Channel()))
		connection.Close()
	}
	fmt.Println("pass")
}

// The scenarios that open their connection themselves.
var alone = map[string]func(){
	"bad-password": func() {
		_, err := connect(amqp.Config{})
		refused(403, "username or password not allowed", err)
	},
	"bad-vhost": func() {
		_, err := connect(amqp.Config{})
		refused(530, "NOT_ALLOWED", err)
	},
	"heartbeat": func() {
		connection := must(connect(amqp.Config{Heartbeat: time.Second}))
		time.Sleep(4 * time.Second)
		connects(must(connection.Channel()))
	},
}

var scenarios = map[string]func(*amqp.Connection, *amqp.Channel){
	"connect":            func(_ *amqp.Connection, ch *amqp.Channel) { connects(ch) },
	"tls":                func(_ *amqp.Connection, ch *amqp.Channel) { connects(ch) },
	"client-certificate": func(_ *amqp.Connection, ch *amqp.Channel) { connects(ch) },
	"declare": func(_ *amqp.Connection, ch *amqp.Channel) {
		must(ch.QueueDeclare("declared", true, false, false, false, nil))
		check(ch.ExchangeDeclare("declared", "topic", true, false, false, false, nil))
		check(ch.QueueBind("declared", "#", "declared", false, nil))
		publish(ch, "declared", "key", amqp.Publishing{Body: []byte("1")})
		must(ch.QueueDeclarePassive("declared", true, false, false, false, nil))
		check(ch.ExchangeDeclarePassive("declared", "topic", true, false, false, false, nil))
		expect(must(ch.QueuePurge("declared", false)) == 1, "purged")
		check(ch.QueueUnbind("declared", "#", "declared", nil))
		check(ch.ExchangeDelete("declared", false, false))
		must(ch.QueueDelete("declared", false, false, false))
	},
	"missing": func(connection *amqp.Connection, ch *amqp.Channel) {
		_, err := ch.QueueDeclarePassive("missing", false, false, false, false, nil)
		refused(404, "NOT_FOUND - no queue 'missing'", err)
		connects(must(connection.Channel()))
	},
	"inequivalent": func(_ *amqp.Connection, ch *amqp.Channel) {
		must(ch.QueueDeclare("inequivalent", true, false, false, false, nil))
		_, err := ch.QueueDeclare("inequivalent", false, false, false, false, nil)
		refused(406, "inequivalent arg 'durable'", err)
	},
	"float-argument": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "float", amqp.Table{"x-max-length": 10})
		declareQueue(ch, "float", amqp.Table{"x-max-length": int16(10)})
		_, err := ch.QueueDeclare("float", false, false, false, false, amqp.Table{"x-max-length": 10.0})
		refused(406, "x-max-length", err)
	},
	"work-queue": func(_ *amqp.Connection, ch *amqp.Channel) {
		must(ch.QueueDeclare("tasks", true, false, false, false, nil))
		check(ch.Qos(1, 0, false))
		a, b := consume(ch, "tasks", false, nil), consume(ch, "tasks", false, nil)
		send(ch, "tasks", strings.Split("0123456789", "")...)
		done, workers := map[string]int{}, map[string]int{}
		for len(done) < 10 {
			var delivery amqp.Delivery
			select {
			case delivery = <-a:
			case delivery = <-b:
			}
			done[string(delivery.Body)]++
			workers[delivery.ConsumerTag]++
			check(delivery.Ack(false))
		}
		expect(len(workers) == 2, workers)
	},
	"publish-subscribe": func(_ *amqp.Connection, ch *amqp.Channel) {
		check(ch.ExchangeDeclare("logs", "fanout", false, false, false, false, nil))
		queues := []amqp.Queue{declareQueue(ch, "", nil), declareQueue(ch, "", nil)}
		for _, queue := range queues {
			check(ch.QueueBind(queue.Name, "", "logs", false, nil))
		}
		publish(ch, "logs", "", amqp.Publishing{Body: []byte("log")})
		for _, queue := range queues {
			expect(string((<-consume(ch, queue.Name, true, nil)).Body) == "log")
		}
	},
	"routing": func(_ *amqp.Connection, ch *amqp.Channel) {
		levels := []string{"info", "warning", "error"}
		patterns(ch, "direct_logs", "direct", levels[1:], levels, "warning", "error")
	},
	"topics": func(_ *amqp.Connection, ch *amqp.Channel) {
		keys := []string{"kern.critical", "cron.info", "kern.a.b", "cron.critical"}
		patterns(ch, "topic_logs", "topic", []string{"*.critical", "kern.#"}, keys, keys[0], keys[2], keys[3])
	},
	"rpc":             func(_ *amqp.Connection, ch *amqp.Channel) { rpc(ch, declareQueue(ch, "", nil).Name) },
	"direct-reply-to": func(_ *amqp.Connection, ch *amqp.Channel) { rpc(ch, "amq.rabbitmq.reply-to") },
	"confirm": func(_ *amqp.Connection, ch *amqp.Channel) {
		must(ch.QueueDeclare("confirmed", true, false, false, false, nil))
		check(ch.Confirm(false))
		message := amqp.Publishing{Body: []byte("safe"), DeliveryMode: amqp.Persistent}
		expect(must(ch.PublishWithDeferredConfirm("", "confirmed", false, false, message)).Wait(), "nacked")
	},
	"confirm-batch": func(_ *amqp.Connection, ch *amqp.Channel) {
		must(ch.QueueDeclare("batch", true, false, false, false, nil))
		check(ch.Confirm(false))
		confirms := ch.NotifyPublish(make(chan amqp.Confirmation, 1000))
		for n := range 1000 {
			send(ch, "batch", strconv.Itoa(n))
		}
		for range 1000 {
			expect((<-confirms).Ack, "nacked")
		}
		expect(must(ch.QueuePurge("batch", false)) == 1000)
	},
	"mandatory": func(_ *amqp.Connection, ch *amqp.Channel) {
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		check(ch.PublishWithContext(background, "", "nowhere", true, false, amqp.Publishing{}))
		expect((<-returns).ReplyCode == 312)
	},
	"tx": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "tx", nil)
		check(ch.Tx())
		send(ch, "tx", "no")
		check(ch.TxRollback())
		send(ch, "tx", "yes")
		check(ch.TxCommit())
		expect(string(get(ch, "tx").Body) == "yes")
	},
	"headers": func(_ *amqp.Connection, ch *amqp.Channel) {
		sent := amqp.Table{"byte": byte(200), "int8": int8(-8), "int16": int16(-16), "int32": int32(-32),
			"int64": int64(1) << 40, "float": float32(1.5), "double": 2.5, "text": "grüße", "bytes": []byte{0, 255},
			"yes": true, "nothing": nil, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "time": time.Unix(1_767_323_045, 0),
			"array": []any{int32(1), "two", amqp.Table{"three": int32(3)}}, "table": amqp.Table{"a": amqp.Table{"b": "c"}}}
		declareQueue(ch, "headers", nil)
		publish(ch, "", "headers", amqp.Publishing{Headers: sent})
		got := get(ch, "headers").Headers
		expect(reflect.DeepEqual(got, sent), got)
	},
	"bodies": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "bodies", nil)
		for _, size := range []int{0, 1, 131_064, 131_065, 1 << 20, 16 << 20} {
			body := bytes.Repeat([]byte("x"), size)
			publish(ch, "", "bodies", amqp.Publishing{Body: body})
			expect(bytes.Equal(get(ch, "bodies").Body, body), size)
		}
	},
	"channels": func(connection *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "channels", nil)
		var opened []*amqp.Channel
		for range 100 {
			opened = append(opened, must(connection.Channel()))
		}
		for _, each := range opened {
			send(each, "channels", "x")
		}
		take(consume(ch, "channels", true, nil), 100)
	},
	"prefetch": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "prefetch", nil)
		send(ch, "prefetch", strings.Split("0123456789", "")...)
		check(ch.Qos(3, 0, false))
		deliveries := consume(ch, "prefetch", false, nil)
		got, _ := take(deliveries, 3)
		expect(must(ch.QueueDeclarePassive("prefetch", false, false, false, false, nil)).Messages == 7)
		check(got[2].Ack(true))
		_, texts := take(deliveries, 3)
		equal(texts, "3", "4", "5")
	},
	"requeue": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "requeue", nil)
		send(ch, "requeue", "1", "2", "3")
		get(ch, "requeue")
		get(ch, "requeue")
		check(get(ch, "requeue").Nack(true, true))
		first, second, third := get(ch, "requeue"), get(ch, "requeue"), get(ch, "requeue")
		equal([]string{string(first.Body), string(second.Body), string(third.Body)}, "1", "2", "3")
		expect(first.Redelivered && second.Redelivered && third.Redelivered)
		check(first.Reject(false))
		check(third.Ack(true))
		expect(must(ch.QueuePurge("requeue", false)) == 0)
	},
	"cancel": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "cancel", nil)
		deliveries := must(ch.Consume("cancel", "reader", true, false, false, false, nil))
		check(ch.Cancel("reader", false))
		send(ch, "cancel", "stays")
		_, delivered := <-deliveries
		expect(!delivered && must(ch.QueuePurge("cancel", false)) == 1)
	},
	"broker-cancel": func(connection *amqp.Connection, ch *amqp.Channel) {
		told := ch.NotifyCancel(make(chan string, 1))
		declareQueue(ch, "cancelled", nil)
		must(ch.Consume("cancelled", "reader", false, false, false, false, nil))
		must(must(connection.Channel()).QueueDelete("cancelled", false, false, false))
		expect(<-told == "reader")
	},
	"blocked": func(connection *amqp.Connection, ch *amqp.Channel) {
		told := connection.NotifyBlocked(make(chan amqp.Blocking, 2))
		send(ch, "nowhere", "held")
		expect((<-told).Reason == "low on memory")
		fmt.Println("ready") // the runner ends the alarm
		expect(!(<-told).Active)
	},
	"dead-letter": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "dead", nil)
		declareQueue(ch, "rejecting", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
		send(ch, "rejecting", "bad")
		check(get(ch, "rejecting").Reject(false))
		expect(reasonOfDeath(ch, "dead") == "rejected")
	},
	"message-ttl": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "expired", nil)
		declareQueue(ch, "ttl", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"})
		publish(ch, "", "ttl", amqp.Publishing{Expiration: "50"})
		expect(reasonOfDeath(ch, "expired") == "expired")
	},
	"queue-ttl": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "leased", amqp.Table{"x-expires": 100})
		var err error
		for err == nil { // a bind does not renew the lease
			err = ch.QueueBind("leased", "", "amq.fanout", false, nil)
			time.Sleep(50 * time.Millisecond)
		}
		refused(404, "NOT_FOUND", err)
	},
	"priority": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "priority", amqp.Table{"x-max-priority": 5})
		for _, level := range []uint8{1, 5, 3} {
			publish(ch, "", "priority", amqp.Publishing{Body: []byte(strconv.Itoa(int(level))), Priority: level})
		}
		_, got := take(consume(ch, "priority", true, nil), 3)
		equal(got, "5", "3", "1")
	},
	"delayed": func(_ *amqp.Connection, ch *amqp.Channel) {
		arguments := amqp.Table{"x-delayed-type": "fanout"}
		check(ch.ExchangeDeclare("delayed", "x-delayed-message", false, false, false, false, arguments))
		declareQueue(ch, "delayed", nil)
		check(ch.QueueBind("delayed", "", "delayed", false, nil))
		publish(ch, "delayed", "", amqp.Publishing{Body: []byte("late"), Headers: amqp.Table{"x-delay": 1000}})
		publish(ch, "delayed", "", amqp.Publishing{Body: []byte("soon"), Headers: amqp.Table{"x-delay": 1}})
		_, got := take(consume(ch, "delayed", true, nil), 2)
		equal(got, "soon", "late")
	},
	"stream-offset": func(_ *amqp.Connection, ch *amqp.Channel) {
		stream(ch, "stream", amqp.Table{"x-stream-offset": 5}, "5", "6", "7", "8", "9")
	},
	"stream-filter": func(_ *amqp.Connection, ch *amqp.Channel) {
		wanted := amqp.Table{"x-stream-offset": "first", "x-stream-filter": "odd"}
		stream(ch, "filtered", wanted, "1", "3", "5", "7", "9")
	},
	"policy": func(_ *amqp.Connection, ch *amqp.Channel) {
		declareQueue(ch, "limited", nil)
		send(ch, "limited", "1", "2", "3", "4")
		expect(must(ch.QueuePurge("limited", false)) == 2)
	},
	"reconnect": func(connection *amqp.Connection, ch *amqp.Channel) {
		closed := connection.NotifyClose(make(chan *amqp.Error, 1))
		must(ch.QueueDeclare("kept", true, false, false, false, nil))
		check(ch.Confirm(false))
		message := amqp.Publishing{Body: []byte("kept"), DeliveryMode: amqp.Persistent}
		expect(must(ch.PublishWithDeferredConfirm("", "kept", false, false, message)).Wait(), "nacked")
		get(ch, "kept")
		fmt.Println("ready") // the runner kills the broker and starts it again
		<-closed
		again, err := connect(amqp.Config{})
		for err != nil {
			time.Sleep(100 * time.Millisecond)
			again, err = connect(amqp.Config{})
		}
		kept := <-consume(must(again.Channel()), "kept", true, nil)
		expect(string(kept.Body) == "kept", kept)
	},
	"write": func(_ *amqp.Connection, ch *amqp.Channel) {
		message := amqp.Publishing{ContentType: "text/plain", MessageId: "7", Headers: crossing}
		for value := range 256 {
			message.Body = append(message.Body, byte(value))
		}
		declareQueue(ch, "crossing", nil)
		publish(ch, "", "crossing", message)
	},
	"read": func(_ *amqp.Connection, ch *amqp.Channel) {
		got := <-consume(ch, "crossing", true, nil)
		expect(len(got.Body) == 256 && got.Body[255] == 255 && got.ContentType == "text/plain" && got.MessageId == "7", got)
		expect(fmt.Sprint(got.Headers) == fmt.Sprint(crossing), got.Headers)
	},
}
