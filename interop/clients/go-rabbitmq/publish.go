// go-rabbitmq: publishing.
package main

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/wagslane/go-rabbitmq"
)

var crossing = rabbitmq.Table{"text": "grüße", "number": int32(42), "yes": true,
	"array": []any{int32(1), "two"}, "table": amqp.Table{"a": "b"}}

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

func publishing(name string) {
	switch name {
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
	case "tx":
		fmt.Println("not offered: go-rabbitmq has no transactions")
	}
}
