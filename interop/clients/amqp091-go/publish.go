// amqp091-go: publishing.
package main

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var crossing = amqp.Table{"text": "grüße", "number": int32(42), "yes": true,
	"array": []any{int32(1), "two"}, "table": amqp.Table{"a": "b"}}

func publishing(name string, connection *amqp.Connection, ch *amqp.Channel) {
	switch name {
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
	}
}
