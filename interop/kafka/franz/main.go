// franz-go: the steps of ../README.md.
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

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

const each, timeMs = 200, int64(1_700_000_000_000)

var (
	ctx      = context.Background()
	address  string
	topic    = fmt.Sprintf("franz-%d", time.Now().UnixNano())
	group    = "group-" + topic
	crossing = os.Getenv("STEPS_CROSSING")
	sent     int
	failed   bool
	admin    *kadm.Client
)

func must(err error) {
	if err != nil {
		panic(err)
	}
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

func client(options ...kgo.Opt) *kgo.Client {
	options = append(options, kgo.SeedBrokers(address), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if ca := os.Getenv("STEPS_CA"); ca != "" {
		certificate, err := os.ReadFile(ca)
		must(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(certificate)
		login := plain.Auth{User: os.Getenv("STEPS_USER"), Pass: os.Getenv("STEPS_PASSWORD")}
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: pool}), kgo.SASL(login.AsMechanism()))
	}
	made, err := kgo.NewClient(options...)
	must(err)
	return made
}

func send(codec kgo.CompressionCodec) {
	producer := client(kgo.ProducerBatchCompression(codec), kgo.RequiredAcks(kgo.AllISRAcks()))
	defer producer.Close()
	var records []*kgo.Record
	for i := sent; i < sent+each; i++ {
		records = append(records, &kgo.Record{Topic: topic, Key: []byte("key"), Value: fmt.Appendf(nil, "value %d", i),
			Timestamp: time.UnixMilli(timeMs + int64(i))})
	}
	for _, result := range producer.ProduceSync(ctx, records...) {
		must(result.Err)
	}
	for i, record := range records {
		check(record.Offset == int64(sent+i), "offset %d of record %d", record.Offset, sent+i)
	}
	sent += each
}

// read returns count records from an offset on.
func read(topic string, offset int64, count int) []*kgo.Record {
	at := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(offset)}}
	consumer := client(kgo.ConsumePartitions(at))
	defer consumer.Close()
	limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var got []*kgo.Record
	for len(got) < count {
		fetches := consumer.PollFetches(limited)
		must(fetches.Err())
		got = append(got, fetches.Records()...)
	}
	return got
}

// member is a consumer of the group with a goroutine that polls.
type member struct {
	*kgo.Client
	assigned atomic.Int32
}

func join(received *atomic.Int64) *member {
	joined := &member{}
	count := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			joined.assigned.Add(int32(by * len(assigned[topic])))
		}
	}
	joined.Client = client(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsAssigned(count(1)), kgo.OnPartitionsRevoked(count(-1)),
		kgo.OnPartitionsLost(count(-1)))
	go func() {
		for {
			fetches := joined.PollFetches(ctx)
			if fetches.IsClientClosed() {
				return
			}
			if records := fetches.Records(); len(records) > 0 {
				must(joined.CommitRecords(ctx, records...))
				received.Add(int64(len(records)))
			}
			joined.AllowRebalance()
		}
	}()
	return joined
}

func balanced(members ...*member) func() bool {
	return func() bool {
		described, err := admin.DescribeGroups(ctx, group)
		must(err)
		assigned := int32(0)
		for _, each := range members {
			assigned += each.assigned.Load()
		}
		return assigned == 1 && described[group].State == "Stable" && len(described[group].Members) == len(members)
	}
}

func rebalance() string {
	var received atomic.Int64
	all := func() bool { return received.Load() >= int64(sent) }
	owner := join(&received)
	wait("one member", balanced(owner))
	other := join(&received)
	wait("two members", balanced(owner, other))
	wait("all records", all)
	if owner.assigned.Load() == 0 {
		owner, other = other, owner
	}
	owner.CloseAllowingRebalance()
	wait("the other member has the partition", balanced(other))
	third := join(&received)
	wait("two members again", balanced(other, third))
	send(kgo.NoCompression())
	wait("the records sent meanwhile", all)
	other.CloseAllowingRebalance()
	third.CloseAllowingRebalance()
	check(received.Load() == int64(sent), "%d records", received.Load())
	return fmt.Sprintf("3 members, %d records", sent)
}

func resume() string {
	var offsets kadm.Offsets
	offsets.AddOffset(topic, 0, 321, -1)
	must(admin.CommitAllOffsets(ctx, group, offsets))
	consumer := client(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit())
	defer consumer.Close()
	first := consumer.PollFetches(ctx).Records()[0].Offset
	check(first == 321, "begins at %d", first)
	return "from 321"
}

func seek() string {
	listed, err := admin.ListOffsetsAfterMilli(ctx, timeMs+777, topic)
	must(err)
	found, _ := listed.Lookup(topic, 0)
	check(found.Offset == 777, "offset %d", found.Offset)
	first := read(topic, found.Offset, 1)[0]
	check(first.Timestamp.UnixMilli() == timeMs+777, "timestamp %v", first.Timestamp)
	return "777"
}

func describe() string {
	topics, err := admin.ListTopics(ctx)
	must(err)
	check(len(topics[topic].Partitions) == 1, "the topic is listed")
	groups, err := admin.ListGroups(ctx)
	must(err)
	check(groups[group].State == "Empty", "group %v", groups[group])
	committed, err := admin.FetchOffsets(ctx, group)
	must(err)
	found, _ := committed.Lookup(topic, 0)
	check(found.At == 321, "committed %d", found.At)
	deleted, err := admin.DeleteGroup(ctx, group)
	must(err)
	must(deleted.Err)
	return group
}

func headers() string {
	name := topic + "-headers"
	must(second(admin.CreateTopic(ctx, 1, 1, nil, name)))
	producer := client()
	defer producer.Close()
	sent := []*kgo.Record{
		{Topic: name, Key: []byte("key"), Value: []byte("value"), Headers: []kgo.RecordHeader{
			{Key: "text", Value: []byte("x")}, {Key: "text", Value: []byte("again")}, {Key: "empty", Value: []byte{}}}},
		{Topic: name, Value: []byte{}},
		{Topic: name, Key: []byte("deleted")},
	}
	must(producer.ProduceSync(ctx, sent...).FirstErr())
	got := read(name, 0, 3)
	check(fmt.Sprint(got[0].Headers) == fmt.Sprint(sent[0].Headers), "headers %v", got[0].Headers)
	check(got[1].Key == nil && got[1].Value != nil && len(got[1].Value) == 0, "without key: %v", got[1])
	check(string(got[2].Key) == "deleted" && got[2].Value == nil, "without value: %v", got[2])
	must(second(admin.DeleteTopic(ctx, name)))
	return "3 records"
}

func transactions() string {
	name := topic + "-transactions"
	must(second(admin.CreateTopic(ctx, 1, 1, nil, name)))
	producer := client(kgo.TransactionalID(name))
	defer producer.Close()
	for _, value := range []string{"no", "yes"} {
		must(producer.BeginTransaction())
		must(producer.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte(value)}).FirstErr())
		must(producer.EndTransaction(ctx, kgo.TransactionEndTry(value == "yes")))
	}
	first := read(name, 0, 1)[0]
	check(string(first.Value) == "yes", "read %s", first.Value)
	must(second(admin.DeleteTopic(ctx, name)))
	return "one of two"
}

func configs() string {
	hour := "3600000"
	change := kadm.AlterConfig{Op: kadm.SetConfig, Name: "retention.ms", Value: &hour}
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{change}, topic)
	must(err)
	must(altered[0].Err)
	wait("the config", func() bool {
		described, err := admin.DescribeTopicConfigs(ctx, topic)
		must(err)
		for _, each := range described[0].Configs {
			if each.Key == "retention.ms" && each.MaybeValue() == hour {
				return true
			}
		}
		return false
	})
	return hour
}

func fromAmqp() string {
	for i, record := range read(crossing, 0, 10) {
		check(string(record.Value) == fmt.Sprintf("from amqp %d", i), "message %d: %s", i, record.Value)
	}
	return "10 records"
}

func toAmqp() string {
	producer := client()
	defer producer.Close()
	for i := range 10 {
		record := &kgo.Record{Topic: crossing, Value: fmt.Appendf(nil, "from kafka %d", i)}
		must(producer.ProduceSync(ctx, record).FirstErr())
		check(record.Offset == int64(10+i), "offset %d", record.Offset)
	}
	return "10 records"
}

// share sends ten records and receives them as a share group, the first one after a release.
func share() string {
	name, received, again, released := topic+"-share", map[string]bool{}, 0, false
	must(second(admin.CreateTopic(ctx, 1, 1, nil, name)))
	consumer := client(kgo.ShareGroup("share-"+topic), kgo.ConsumeTopics(name))
	producer := client()
	defer producer.Close()
	for sent := false; len(received) < 10; {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		records := consumer.PollFetches(limited).Records()
		cancel()
		if !sent { // the group begins after the last record
			must(producer.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte("probe")}).FirstErr())
		}
		for _, record := range records {
			switch {
			case string(record.Value) != "probe" && !released:
				released = true
				record.Ack(kgo.AckRelease)
				continue
			case string(record.Value) != "probe":
				received[string(record.Value)] = true
				again += int(record.DeliveryCount()) - 1
			case !sent:
				sent = true
				for i := range 10 {
					value := &kgo.Record{Topic: name, Value: fmt.Appendf(nil, "value %d", i)}
					must(producer.ProduceSync(ctx, value).FirstErr())
				}
			}
			record.Ack(kgo.AckAccept)
		}
	}
	must(consumer.FlushAcks(ctx))
	consumer.Close()
	check(again == 1, "%d repeated", again)
	must(second(admin.DeleteTopic(ctx, name)))
	return "10 records, one of them twice"
}

func many(count int) string {
	name := topic + "-many"
	must(second(admin.CreateTopic(ctx, 1, 1, nil, name)))
	start := time.Now()
	producer := client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	var last *kgo.Record
	for i := range count {
		last = &kgo.Record{Topic: name, Value: fmt.Appendf(nil, "%0100d", i)}
		producer.Produce(ctx, last, func(_ *kgo.Record, err error) { must(err) })
	}
	must(producer.Flush(ctx))
	producer.Close()
	check(last.Offset == int64(count-1), "last offset %d", last.Offset)
	in := time.Since(start).Seconds()
	start = time.Now()
	for i, record := range read(name, 0, count) {
		check(record.Offset == int64(i) && string(record.Value) == fmt.Sprintf("%0100d", i), "record %d", i)
	}
	out := time.Since(start).Seconds()
	must(second(admin.DeleteTopic(ctx, name)))
	return fmt.Sprintf("%d records: %.0f/s in, %.0f/s out", count, float64(count)/in, float64(count)/out)
}

func second[T any](_ T, err error) error { return err }

// version returns the version of the library in this program.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/twmb/franz-go" {
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
	flags := flag.NewFlagSet("franz", flag.ExitOnError)
	records := flags.Int("records", 10_000, "records of the last step")
	must(flags.Parse(os.Args[2:]))
	admin = kadm.NewClient(client())
	step("create", func() string { must(second(admin.CreateTopic(ctx, 1, 1, nil, topic))); return topic })
	step("produce", func() string {
		for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(),
			kgo.Lz4Compression(), kgo.ZstdCompression()} {
			send(codec)
		}
		return fmt.Sprintf("%d records", sent)
	})
	step("consume", func() string {
		for i, record := range read(topic, 0, sent) {
			check(record.Offset == int64(i) && string(record.Value) == fmt.Sprintf("value %d", i) &&
				record.Timestamp.UnixMilli() == timeMs+int64(i), "record %d: %v", i, record)
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
	step("delete", func() string { must(second(admin.DeleteTopic(ctx, topic))); return topic })
	step("many", func() string { return many(*records) })
	step("share", share)
	if failed {
		os.Exit(1)
	}
}
