// watermill-amqp: publishing.
package main

import (
	"bytes"
	"fmt"
	"reflect"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

var crossing = amqp091.Table{"text": "grüße", "number": int32(42), "yes": true,
	"array": []any{int32(1), "two"}, "table": amqp091.Table{"a": "b"}}

func publishing(name string) {
	config := queues(nil)
	switch name {
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
	case "confirm-batch":
		fmt.Println("not offered: a publisher waits for the confirm of each message")
	case "mandatory":
		fmt.Println("not offered: watermill does not report returned messages")
	case "tx":
		fmt.Println("not offered: a publisher commits each Publish, and has no rollback of its own")
	}
}
