// sarama: the steps of ../README.md.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

const each, timeMs = 200, int64(1_700_000_000_000)

var (
	address  string
	crossing = os.Getenv("STEPS_CROSSING")
	topic    = fmt.Sprintf("sarama-%d", time.Now().UnixNano())
	group    = "group-" + topic
	one      = &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}
	sent     int
	failed   bool
	admin    sarama.ClusterAdmin
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](value T, err error) T {
	must(err)
	return value
}

func check(condition bool, text string, values ...any) {
	if !condition {
		panic(fmt.Sprintf(text, values...))
	}
}

func step(name string, run func() string) {
	var detail string
	ok := false
	func() {
		defer func() {
			if problem := recover(); problem != nil {
				failed, detail = true, fmt.Sprint(problem)
			}
		}()
		detail = run()
		ok = true
	}()
	line, _ := json.Marshal(map[string]any{"step": name, "ok": ok, "detail": detail})
	fmt.Println(string(line))
}

func wait(what string, condition func() bool) {
	deadline := time.Now().Add(time.Minute)
	for !condition() {
		check(time.Now().Before(deadline), "not within 60 s: %s", what)
		time.Sleep(50 * time.Millisecond)
	}
}

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.Idempotent = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Producer.Return.Successes = true
	made.Producer.Partitioner = sarama.NewManualPartitioner
	made.Net.MaxOpenRequests = 1
	made.Consumer.IsolationLevel = sarama.ReadCommitted
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	if ca := os.Getenv("STEPS_CA"); ca != "" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(get(os.ReadFile(ca)))
		made.Net.TLS.Enable, made.Net.TLS.Config = true, &tls.Config{RootCAs: pool}
		made.Net.SASL.Enable = true
		made.Net.SASL.User, made.Net.SASL.Password = os.Getenv("STEPS_USER"), os.Getenv("STEPS_PASSWORD")
	}
	return made
}

func send(codec sarama.CompressionCodec) {
	settings := config()
	settings.Producer.Compression = codec
	producer := get(sarama.NewSyncProducer([]string{address}, settings))
	var messages []*sarama.ProducerMessage
	for i := sent; i < sent+each; i++ {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("key"),
			Value: sarama.StringEncoder(fmt.Sprintf("value %d", i)), Timestamp: time.UnixMilli(timeMs + int64(i))})
	}
	must(producer.SendMessages(messages))
	for i, message := range messages {
		check(message.Offset == int64(sent+i), "offset %d of record %d", message.Offset, sent+i)
	}
	must(producer.Close())
	sent += each
}

// read returns count records from an offset on.
func read(topic string, offset int64, count int) []*sarama.ConsumerMessage {
	consumer := get(sarama.NewConsumer([]string{address}, config()))
	partition := get(consumer.ConsumePartition(topic, 0, offset))
	var got []*sarama.ConsumerMessage
	for len(got) < count {
		select {
		case message := <-partition.Messages():
			got = append(got, message)
		case <-time.After(time.Minute):
			panic(fmt.Sprintf("%d records of %d", len(got), count))
		}
	}
	must(partition.Close())
	must(consumer.Close())
	return got
}

// member is a consumer of the group with a goroutine that reads.
type member struct {
	sarama.ConsumerGroup
	assigned atomic.Int32
	offsets  chan int64
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.assigned.Store(int32(len(session.Claims()[topic])))
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	m.assigned.Store(0)
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.offsets <- message.Offset
		session.MarkMessage(message, "")
	}
	return nil
}

func join(offsets chan int64) *member {
	joined := &member{ConsumerGroup: get(sarama.NewConsumerGroup([]string{address}, group, config())), offsets: offsets}
	go func() {
		for joined.Consume(context.Background(), []string{topic}, joined) == nil {
		}
	}()
	return joined
}

func balanced(members ...*member) func() bool {
	return func() bool {
		described := get(admin.DescribeConsumerGroups([]string{group}))[0]
		assigned := int32(0)
		for _, each := range members {
			assigned += each.assigned.Load()
		}
		return assigned == 1 && described.State == "Stable" && len(described.Members) == len(members)
	}
}

func rebalance() string {
	offsets := make(chan int64, 10*each*each)
	all := func() bool { return len(offsets) >= sent }
	owner := join(offsets)
	wait("one member", balanced(owner))
	other := join(offsets)
	wait("two members", balanced(owner, other))
	wait("all records", all)
	if owner.assigned.Load() == 0 {
		owner, other = other, owner
	}
	must(owner.Close())
	wait("the other member has the partition", balanced(other))
	third := join(offsets)
	wait("two members again", balanced(other, third))
	send(sarama.CompressionNone)
	wait("the records sent meanwhile", all)
	must(other.Close())
	must(third.Close())
	check(len(offsets) == sent, "%d records", len(offsets))
	return fmt.Sprintf("3 members, %d records", sent)
}

func resume() string {
	client := get(sarama.NewClient([]string{address}, config()))
	manager := get(sarama.NewOffsetManagerFromClient(group, client))
	partition := get(manager.ManagePartition(topic, 0))
	partition.ResetOffset(321, "here")
	manager.Commit()
	must(partition.Close())
	must(manager.Close())
	must(client.Close())
	offsets := make(chan int64, 10*each*each)
	again := join(offsets)
	first := <-offsets
	must(again.Close())
	check(first == 321, "begins at %d", first)
	return "from 321"
}

func seek() string {
	client := get(sarama.NewClient([]string{address}, config()))
	offset := get(client.GetOffset(topic, 0, timeMs+777))
	end := get(client.GetOffset(topic, 0, sarama.OffsetNewest))
	must(client.Close())
	check(offset == 777 && end == int64(sent), "offset %d, end %d", offset, end)
	first := read(topic, offset, 1)[0]
	check(first.Timestamp.UnixMilli() == timeMs+777, "timestamp %v", first.Timestamp)
	return "777"
}

func describe() string {
	check(get(admin.ListTopics())[topic].NumPartitions == 1, "the topic is listed")
	check(len(get(admin.DescribeTopics([]string{topic}))[0].Partitions) == 1, "one partition")
	_, listed := get(admin.ListConsumerGroups())[group]
	check(listed, "the group is listed")
	state := get(admin.DescribeConsumerGroups([]string{group}))[0].State
	check(state == "Empty", "state %s", state)
	must(admin.DeleteConsumerGroup(group))
	return group
}

func headers() string {
	name := topic + "-headers"
	must(admin.CreateTopic(name, one, false))
	producer := get(sarama.NewSyncProducer([]string{address}, config()))
	pair := func(key string, value string) sarama.RecordHeader {
		return sarama.RecordHeader{Key: []byte(key), Value: []byte(value)}
	}
	sent := []*sarama.ProducerMessage{
		{Topic: name, Key: sarama.StringEncoder("key"), Value: sarama.StringEncoder("value"),
			Headers: []sarama.RecordHeader{pair("text", "x"), pair("text", "again"), pair("empty", "")}},
		{Topic: name, Value: sarama.ByteEncoder{}},
		{Topic: name, Key: sarama.StringEncoder("deleted")},
	}
	must(producer.SendMessages(sent))
	must(producer.Close())
	got, text := read(name, 0, 3), ""
	for _, each := range got[0].Headers {
		text += fmt.Sprintf("%s=%s ", each.Key, each.Value)
	}
	check(text == "text=x text=again empty= ", "headers %s", text)
	check(got[1].Key == nil && got[1].Value != nil && len(got[1].Value) == 0, "without key: %v", got[1])
	check(string(got[2].Key) == "deleted" && got[2].Value == nil, "without value: %v", got[2])
	must(admin.DeleteTopic(name))
	return "3 records"
}

func transactions() string {
	name := topic + "-transactions"
	must(admin.CreateTopic(name, one, false))
	settings := config()
	settings.Producer.Transaction.ID = name
	producer := get(sarama.NewSyncProducer([]string{address}, settings))
	send := func(value string) {
		must(producer.BeginTxn())
		must(producer.SendMessages([]*sarama.ProducerMessage{{Topic: name, Value: sarama.StringEncoder(value)}}))
	}
	send("no")
	must(producer.AbortTxn())
	send("yes")
	must(producer.CommitTxn())
	must(producer.Close())
	first := read(name, 0, 1)[0]
	check(string(first.Value) == "yes", "read %s", first.Value)
	must(admin.DeleteTopic(name))
	return "one of two"
}

func configs() string {
	hour := "3600000"
	change := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &hour}}
	must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, change, false))
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic}
	wait("the config", func() bool {
		for _, each := range get(admin.DescribeConfig(resource)) {
			if each.Name == "retention.ms" && each.Value == hour {
				return true
			}
		}
		return false
	})
	return hour
}

func fromAmqp() string {
	for i, message := range read(crossing, 0, 10) {
		check(string(message.Value) == fmt.Sprintf("from amqp %d", i), "message %d: %s", i, message.Value)
	}
	return "10 records"
}

func toAmqp() string {
	producer := get(sarama.NewSyncProducer([]string{address}, config()))
	for i := range 10 {
		value := sarama.StringEncoder(fmt.Sprintf("from kafka %d", i))
		_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: crossing, Value: value})
		must(err)
		check(offset == int64(10+i), "offset %d", offset)
	}
	must(producer.Close())
	return "10 records"
}

func many(count int) string {
	name := topic + "-many"
	must(admin.CreateTopic(name, one, false))
	start := time.Now()
	producer := get(sarama.NewAsyncProducer([]string{address}, config()))
	go func() {
		for i := range count {
			producer.Input() <- &sarama.ProducerMessage{Topic: name, Value: sarama.StringEncoder(fmt.Sprintf("%0100d", i))}
		}
	}()
	for range count {
		select {
		case <-producer.Successes():
		case err := <-producer.Errors():
			panic(err)
		}
	}
	must(producer.Close())
	in := time.Since(start).Seconds()
	start = time.Now()
	for i, message := range read(name, 0, count) {
		check(message.Offset == int64(i) && string(message.Value) == fmt.Sprintf("%0100d", i), "record %d", i)
	}
	out := time.Since(start).Seconds()
	must(admin.DeleteTopic(name))
	return fmt.Sprintf("%d records: %.0f/s in, %.0f/s out", count, float64(count)/in, float64(count)/out)
}

// version returns the version of the library in this program.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/IBM/sarama" {
			return module.Version
		}
	}
	return ""
}

func main() {
	if os.Args[1] == "version" {
		fmt.Println(version())
		return
	}
	address = os.Args[1]
	flags := flag.NewFlagSet("sarama", flag.ExitOnError)
	records := flags.Int("records", 10_000, "records of the last step")
	must(flags.Parse(os.Args[2:]))
	admin = get(sarama.NewClusterAdmin([]string{address}, config()))
	step("create", func() string { must(admin.CreateTopic(topic, one, false)); return topic })
	step("produce", func() string {
		for codec := sarama.CompressionNone; codec <= sarama.CompressionZSTD; codec++ {
			send(codec)
		}
		return fmt.Sprintf("%d records", sent)
	})
	step("consume", func() string {
		for i, message := range read(topic, 0, sent) {
			check(message.Offset == int64(i) && string(message.Value) == fmt.Sprintf("value %d", i) &&
				message.Timestamp.UnixMilli() == timeMs+int64(i), "record %d: %v", i, message)
		}
		return fmt.Sprintf("%d records", sent)
	})
	step("headers", headers)
	step("rebalance", rebalance)
	step("resume", resume)
	step("seek", seek)
	step("transactions", transactions)
	step("describe", describe)
	step("configs", configs)
	if crossing != "" {
		step("from-amqp", fromAmqp)
		step("to-amqp", toAmqp)
	}
	step("delete", func() string { must(admin.DeleteTopic(topic)); return topic })
	step("many", func() string { return many(*records) })
	fmt.Println(`{"step": "share", "ok": null, "detail": "the client has no share groups"}`)
	if failed {
		os.Exit(1)
	}
}
