// lapin: the scenarios of ../README.md.
use futures_lite::{StreamExt, future::or};
use lapin::message::{BasicGetMessage, Delivery};
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, Event, ExchangeKind};
use lapin::{Queue, options::*};
use std::{collections::BTreeSet, env, error::Error, fs, time::Duration};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

async fn connect(query: &str) -> lapin::Result<Connection> {
    let url = env::var("AMQP_URL").expect("AMQP_URL") + query;
    let file = |name| env::var(name).ok().map(|path| fs::read(path).expect("a file"));
    let identity = file("CERT_FILE").map(|pem| OwnedIdentity::PKCS8 { pem, key: file("KEY_FILE").expect("KEY_FILE") });
    let cert_chain = file("CA_FILE").map(|pem| String::from_utf8(pem).expect("PEM"));
    let tls = OwnedTLSConfig { identity, cert_chain };
    let runtime = lapin::runtime::default_runtime()?;
    Connection::connect_with_config(&url, ConnectionProperties::default(), tls, runtime).await
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn table<const N: usize>(fields: [(&str, AMQPValue); N]) -> FieldTable {
    let mut made = FieldTable::default();
    for (key, value) in fields {
        made.insert(key.into(), value);
    }
    made
}

fn crossing() -> FieldTable {
    table([
        ("text", text("grüße")),
        ("number", AMQPValue::LongInt(42)),
        ("yes", AMQPValue::Boolean(true)),
        ("array", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(1), text("two")]))),
        ("table", AMQPValue::FieldTable(table([("a", text("b"))]))),
    ])
}

fn properties() -> BasicProperties {
    BasicProperties::default()
}

async fn declare(channel: &Channel, name: &str, arguments: FieldTable) -> lapin::Result<Queue> {
    let durable = arguments.inner().get("x-queue-type").is_some();
    let options = QueueDeclareOptions { durable, exclusive: name.is_empty(), ..Default::default() };
    channel.queue_declare(name.into(), options, arguments).await
}

async fn durable(channel: &Channel, name: &str) -> lapin::Result<Queue> {
    channel.queue_declare(name.into(), QueueDeclareOptions::durable(), FieldTable::default()).await
}

async fn passive(channel: &Channel, name: &str) -> lapin::Result<Queue> {
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    channel.queue_declare(name.into(), options, FieldTable::default()).await
}

async fn exchange(channel: &Channel, name: &str, kind: ExchangeKind, arguments: FieldTable) -> lapin::Result<()> {
    channel.exchange_declare(name.into(), kind, ExchangeDeclareOptions::default(), arguments).await
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> lapin::Result<()> {
    let options = QueueBindOptions::default();
    channel.queue_bind(queue.into(), exchange.into(), key.into(), options, FieldTable::default()).await
}

async fn publish(channel: &Channel, exchange: &str, key: &str, body: &[u8], made: BasicProperties) -> Outcome<Confirmation> {
    let options = BasicPublishOptions::default();
    Ok(channel.basic_publish(exchange.into(), key.into(), options, body, made).await?.await?)
}

async fn send(channel: &Channel, queue: &str, bodies: &[&str]) -> Outcome {
    for body in bodies {
        publish(channel, "", queue, body.as_bytes(), properties().with_delivery_mode(2)).await?;
    }
    Ok(())
}

async fn consume(channel: &Channel, queue: &str, no_ack: bool, arguments: FieldTable) -> lapin::Result<Consumer> {
    let options = BasicConsumeOptions { no_ack, ..Default::default() };
    channel.basic_consume(queue.into(), "".into(), options, arguments).await
}

async fn next(consumer: &mut Consumer) -> Outcome<Delivery> {
    Ok(consumer.next().await.ok_or("the consumer ended")??)
}

async fn take(consumer: &mut Consumer, count: usize) -> Outcome<Vec<String>> {
    let mut bodies = vec![];
    for _ in 0..count {
        bodies.push(String::from_utf8(next(consumer).await?.data)?);
    }
    Ok(bodies)
}

async fn receive(channel: &Channel, queue: &str, count: usize) -> Outcome<Vec<String>> {
    let mut consumer = consume(channel, queue, true, FieldTable::default()).await?;
    take(&mut consumer, count).await
}

async fn get(channel: &Channel, queue: &str) -> Outcome<BasicGetMessage> {
    Ok(channel.basic_get(queue.into(), BasicGetOptions::default()).await?.ok_or("no message")?)
}

async fn purge(channel: &Channel, queue: &str) -> lapin::Result<u32> {
    channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await
}

fn refused<T>(expected: &str, result: lapin::Result<T>) -> Outcome {
    match result {
        Err(error) if error.to_string().contains(expected) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("not refused".into()),
    }
}

async fn connects(channel: &Channel) -> Outcome {
    declare(channel, "hello", FieldTable::default()).await?;
    send(channel, "hello", &["Hello World!"]).await?;
    assert_eq!(receive(channel, "hello", 1).await?, ["Hello World!"]);
    Ok(())
}

async fn patterns(channel: &Channel, name: &str, kind: ExchangeKind, keys: [&[&str]; 3]) -> Outcome {
    let [bindings, published, expected] = keys;
    exchange(channel, name, kind, FieldTable::default()).await?;
    let queue = declare(channel, "", FieldTable::default()).await?;
    for key in bindings {
        bind(channel, queue.name().as_str(), name, key).await?;
    }
    for key in published {
        publish(channel, name, key, key.as_bytes(), properties()).await?;
    }
    assert_eq!(receive(channel, queue.name().as_str(), expected.len()).await?, expected);
    Ok(())
}

fn fibonacci(n: u32) -> u32 {
    if n < 2 { n } else { fibonacci(n - 1) + fibonacci(n - 2) }
}

async fn ask_fibonacci(channel: &Channel, callback: &str) -> Outcome {
    declare(channel, "rpc_queue", FieldTable::default()).await?;
    let mut requests = consume(channel, "rpc_queue", true, FieldTable::default()).await?;
    let mut replies = consume(channel, callback, true, FieldTable::default()).await?;
    let question = properties().with_reply_to(callback.into()).with_correlation_id("1".into());
    publish(channel, "", "rpc_queue", b"15", question).await?;
    let request = next(&mut requests).await?;
    let result = fibonacci(String::from_utf8(request.data)?.parse()?).to_string();
    let reply_to = request.properties.reply_to().clone().ok_or("no reply_to")?;
    let correlation_id = request.properties.correlation_id().clone().ok_or("no correlation_id")?;
    let answer = properties().with_correlation_id(correlation_id);
    publish(channel, "", reply_to.as_str(), result.as_bytes(), answer).await?;
    let reply = next(&mut replies).await?;
    assert_eq!(reply.data, b"610");
    assert_eq!(reply.properties.correlation_id().as_ref().map(|id| id.as_str()), Some("1"));
    Ok(())
}

fn dead_lettering(queue: &str) -> FieldTable {
    table([("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(queue))])
}

async fn expect_death(channel: &Channel, queue: &str, reason: &str) -> Outcome {
    let dead = next(&mut consume(channel, queue, true, FieldTable::default()).await?).await?;
    let headers = dead.properties.headers().clone().ok_or("no headers")?;
    let deaths = headers.inner().get("x-death").and_then(AMQPValue::as_array).ok_or("no x-death")?;
    let last = deaths.as_slice()[0].as_field_table().ok_or("no table")?;
    assert_eq!(last.inner().get("reason"), Some(&text(reason)));
    Ok(())
}

async fn stream(channel: &Channel, name: &str, arguments: FieldTable, expected: [&str; 5]) -> Outcome {
    declare(channel, name, table([("x-queue-type", text("stream"))])).await?;
    for n in 0..10 {
        let filter = table([("x-stream-filter-value", text(if n % 2 == 0 { "even" } else { "odd" }))]);
        publish(channel, "", name, n.to_string().as_bytes(), properties().with_headers(filter)).await?;
    }
    channel.basic_qos(10, BasicQosOptions::default()).await?;
    assert_eq!(take(&mut consume(channel, name, false, arguments).await?, 5).await?, expected);
    Ok(())
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Runs a scenario that opens its connection itself; returns false for another one.
async fn alone(name: &str) -> Outcome<bool> {
    match name {
        "bad-password" => refused("ACCESS_REFUSED", connect("").await)?,
        "bad-vhost" => refused("NOT_ALLOWED", connect("").await)?,
        "heartbeat" => {
            let connection = connect("?heartbeat=1").await?;
            pause(4000).await;
            connects(&connection.create_channel().await?).await?;
        }
        "reconnect" => {
            let channel = connect("").await?.create_channel().await?;
            durable(&channel, "kept").await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            send(&channel, "kept", &["kept"]).await?;
            let mut consumer = consume(&channel, "kept", false, FieldTable::default()).await?;
            next(&mut consumer).await?;
            println!("ready"); // the runner kills the broker and starts it again
            assert!(next(&mut consumer).await.is_err());
            let mut again = connect("").await;
            while again.is_err() {
                pause(100).await;
                again = connect("").await;
            }
            assert_eq!(receive(&again?.create_channel().await?, "kept", 1).await?, ["kept"]);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

async fn run(name: &str, connection: &Connection) -> Outcome {
    let channel = &connection.create_channel().await?;
    let none = FieldTable::default;
    match name {
        "connect" | "tls" | "client-certificate" => connects(channel).await?,
        "declare" => {
            durable(channel, "declared").await?;
            exchange(channel, "declared", ExchangeKind::Topic, none()).await?;
            bind(channel, "declared", "declared", "#").await?;
            publish(channel, "declared", "key", b"1", properties()).await?;
            passive(channel, "declared").await?;
            let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
            channel.exchange_declare("declared".into(), ExchangeKind::Topic, options, none()).await?;
            assert_eq!(purge(channel, "declared").await?, 1);
            channel.queue_unbind("declared".into(), "declared".into(), "#".into(), none()).await?;
            channel.exchange_delete("declared".into(), ExchangeDeleteOptions::default()).await?;
            channel.queue_delete("declared".into(), QueueDeleteOptions::default()).await?;
        }
        "missing" => {
            refused("NOT_FOUND - no queue 'missing'", passive(channel, "missing").await)?;
            connects(&connection.create_channel().await?).await?;
        }
        "inequivalent" => {
            durable(channel, "inequivalent").await?;
            let again = declare(channel, "inequivalent", none()).await;
            refused("PRECONDITION_FAILED - inequivalent arg 'durable'", again)?;
        }
        "float-argument" => {
            declare(channel, "float", table([("x-max-length", AMQPValue::LongInt(10))])).await?;
            declare(channel, "float", table([("x-max-length", AMQPValue::LongLongInt(10))])).await?;
            let again = declare(channel, "float", table([("x-max-length", AMQPValue::Double(10.0))])).await;
            refused("PRECONDITION_FAILED - inequivalent arg 'x-max-length'", again)?;
        }
        "work-queue" => {
            durable(channel, "tasks").await?;
            channel.basic_qos(1, BasicQosOptions::default()).await?;
            let mut a = consume(channel, "tasks", false, none()).await?;
            let mut b = consume(channel, "tasks", false, none()).await?;
            send(channel, "tasks", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await?;
            let (mut done, mut workers) = (BTreeSet::new(), BTreeSet::new());
            while done.len() < 10 {
                let (worker, task) = or(async { ("a", a.next().await) }, async { ("b", b.next().await) }).await;
                let task = task.ok_or("no task")??;
                task.ack(BasicAckOptions::default()).await?;
                done.insert(task.data);
                workers.insert(worker);
            }
            assert_eq!(workers.len(), 2);
        }
        "publish-subscribe" => {
            exchange(channel, "logs", ExchangeKind::Fanout, none()).await?;
            let queues = [declare(channel, "", none()).await?, declare(channel, "", none()).await?];
            for queue in &queues {
                bind(channel, queue.name().as_str(), "logs", "").await?;
            }
            publish(channel, "logs", "", b"log", properties()).await?;
            for queue in &queues {
                assert_eq!(receive(channel, queue.name().as_str(), 1).await?, ["log"]);
            }
        }
        "routing" => {
            let levels = ["info", "warning", "error"];
            patterns(channel, "direct_logs", ExchangeKind::Direct, [&levels[1..], &levels, &levels[1..]]).await?;
        }
        "topics" => {
            let keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"];
            let expected = [keys[0], keys[2], keys[3]];
            patterns(channel, "topic_logs", ExchangeKind::Topic, [&["*.critical", "kern.#"], &keys, &expected]).await?;
        }
        "rpc" => ask_fibonacci(channel, declare(channel, "", none()).await?.name().as_str()).await?,
        "direct-reply-to" => ask_fibonacci(channel, "amq.rabbitmq.reply-to").await?,
        "confirm" => {
            durable(channel, "confirmed").await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            assert!(publish(channel, "", "confirmed", b"safe", properties().with_delivery_mode(2)).await?.is_ack());
        }
        "confirm-batch" => {
            durable(channel, "batch").await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let (options, persistent) = (BasicPublishOptions::default(), properties().with_delivery_mode(2));
            let mut confirms = vec![];
            for _ in 0..1000 {
                let sent = channel.basic_publish("".into(), "batch".into(), options, b"x", persistent.clone());
                confirms.push(sent.await?);
            }
            for confirm in confirms {
                assert!(confirm.await?.is_ack());
            }
            assert_eq!(purge(channel, "batch").await?, 1000);
        }
        "mandatory" => {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let options = BasicPublishOptions { mandatory: true, ..Default::default() };
            let sent = channel.basic_publish("".into(), "nowhere".into(), options, b"lost", properties());
            let returned = sent.await?.await?.take_message().ok_or("not returned")?;
            assert_eq!(returned.reply_code, 312);
        }
        "tx" => {
            declare(channel, "tx", none()).await?;
            channel.tx_select().await?;
            send(channel, "tx", &["no"]).await?;
            channel.tx_rollback().await?;
            send(channel, "tx", &["yes"]).await?;
            channel.tx_commit().await?;
            assert_eq!(get(channel, "tx").await?.delivery.data, b"yes");
        }
        "headers" => {
            let sent = table([
                ("text", text("grüße")),
                ("yes", AMQPValue::Boolean(true)),
                ("nothing", AMQPValue::Void),
                ("i8", AMQPValue::ShortShortInt(-8)),
                ("u8", AMQPValue::ShortShortUInt(200)),
                ("i16", AMQPValue::ShortInt(-16)),
                ("u16", AMQPValue::ShortUInt(60_000)),
                ("i32", AMQPValue::LongInt(-32)),
                ("u32", AMQPValue::LongUInt(4_000_000_000)),
                ("i64", AMQPValue::LongLongInt(1 << 40)),
                ("f32", AMQPValue::Float(1.5)),
                ("f64", AMQPValue::Double(2.5)),
                ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
                ("time", AMQPValue::Timestamp(1_767_323_045)),
                ("bytes", AMQPValue::ByteArray(vec![0, 255].into())),
                ("crossing", AMQPValue::FieldTable(crossing())),
            ]);
            declare(channel, "headers", none()).await?;
            publish(channel, "", "headers", b"", properties().with_headers(sent.clone())).await?;
            assert_eq!(get(channel, "headers").await?.delivery.properties.headers(), &Some(sent));
        }
        "bodies" => {
            declare(channel, "bodies", none()).await?;
            for size in [0, 1, 131_064, 131_065, 1 << 20, 16 << 20] {
                let body = vec![b'x'; size];
                publish(channel, "", "bodies", &body, properties()).await?;
                assert!(get(channel, "bodies").await?.delivery.data == body, "{size}");
            }
        }
        "channels" => {
            declare(channel, "channels", none()).await?;
            let mut opened = vec![];
            for _ in 0..100 {
                opened.push(connection.create_channel().await?);
            }
            for each in &opened {
                send(each, "channels", &["x"]).await?;
            }
            receive(channel, "channels", 100).await?;
        }
        "prefetch" => {
            declare(channel, "prefetch", none()).await?;
            send(channel, "prefetch", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await?;
            channel.basic_qos(3, BasicQosOptions::default()).await?;
            let mut consumer = consume(channel, "prefetch", false, none()).await?;
            take(&mut consumer, 2).await?;
            let third = next(&mut consumer).await?;
            assert_eq!(passive(channel, "prefetch").await?.message_count(), 7);
            third.ack(BasicAckOptions { multiple: true }).await?;
            assert_eq!(take(&mut consumer, 3).await?, ["3", "4", "5"]);
        }
        "requeue" => {
            declare(channel, "requeue", none()).await?;
            send(channel, "requeue", &["1", "2", "3"]).await?;
            get(channel, "requeue").await?;
            get(channel, "requeue").await?;
            let last = get(channel, "requeue").await?;
            last.delivery.nack(BasicNackOptions { multiple: true, requeue: true }).await?;
            let got = [get(channel, "requeue").await?, get(channel, "requeue").await?, get(channel, "requeue").await?];
            assert_eq!(got.each_ref().map(|message| message.delivery.data.as_slice()), [b"1", b"2", b"3"]);
            assert!(got.iter().all(|message| message.delivery.redelivered));
            got[0].delivery.reject(BasicRejectOptions { requeue: false }).await?;
            got[2].delivery.ack(BasicAckOptions { multiple: true }).await?;
            assert_eq!(purge(channel, "requeue").await?, 0);
        }
        "cancel" => {
            declare(channel, "cancel", none()).await?;
            let mut consumer = consume(channel, "cancel", true, none()).await?;
            channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await?;
            send(channel, "cancel", &["stays"]).await?;
            assert!(consumer.next().await.is_none());
            assert_eq!(purge(channel, "cancel").await?, 1);
        }
        "broker-cancel" => {
            declare(channel, "cancelled", none()).await?;
            let mut consumer = consume(channel, "cancelled", true, none()).await?;
            let other = connection.create_channel().await?;
            other.queue_delete("cancelled".into(), QueueDeleteOptions::default()).await?;
            assert!(consumer.next().await.is_none()); // the stream ends
        }
        "blocked" => {
            let mut events = connection.events_listener();
            channel.basic_publish("".into(), "nowhere".into(), Default::default(), b"held", properties()).await?;
            while !matches!(events.next().await, Some(Event::ConnectionBlocked(reason)) if reason == "low on memory") {}
            println!("ready"); // the runner ends the alarm
            while !matches!(events.next().await, Some(Event::ConnectionUnblocked)) {}
        }
        "dead-letter" => {
            declare(channel, "dead", none()).await?;
            declare(channel, "rejecting", dead_lettering("dead")).await?;
            send(channel, "rejecting", &["bad"]).await?;
            get(channel, "rejecting").await?.delivery.reject(BasicRejectOptions { requeue: false }).await?;
            expect_death(channel, "dead", "rejected").await?;
        }
        "message-ttl" => {
            declare(channel, "expired", none()).await?;
            declare(channel, "ttl", dead_lettering("expired")).await?;
            publish(channel, "", "ttl", b"short", properties().with_expiration("50".into())).await?;
            expect_death(channel, "expired", "expired").await?;
        }
        "queue-ttl" => {
            declare(channel, "leased", table([("x-expires", AMQPValue::LongInt(100))])).await?;
            let mut bound = Ok(());
            while bound.is_ok() {
                pause(50).await;
                bound = bind(channel, "leased", "amq.fanout", "").await; // does not renew the lease
            }
            refused("NOT_FOUND", bound)?;
        }
        "priority" => {
            declare(channel, "priority", table([("x-max-priority", AMQPValue::LongInt(5))])).await?;
            for level in [1, 5, 3] {
                let body = level.to_string();
                publish(channel, "", "priority", body.as_bytes(), properties().with_priority(level)).await?;
            }
            assert_eq!(receive(channel, "priority", 3).await?, ["5", "3", "1"]);
        }
        "delayed" => {
            let kind = ExchangeKind::Custom("x-delayed-message".into());
            exchange(channel, "delayed", kind, table([("x-delayed-type", text("fanout"))])).await?;
            declare(channel, "delayed", none()).await?;
            bind(channel, "delayed", "delayed", "").await?;
            for (body, ms) in [("late", 1000), ("soon", 1)] {
                let delay = table([("x-delay", AMQPValue::LongInt(ms))]);
                publish(channel, "delayed", "", body.as_bytes(), properties().with_headers(delay)).await?;
            }
            assert_eq!(receive(channel, "delayed", 2).await?, ["soon", "late"]);
        }
        "stream-offset" => {
            let offset = table([("x-stream-offset", AMQPValue::LongLongInt(5))]);
            stream(channel, "stream", offset, ["5", "6", "7", "8", "9"]).await?;
        }
        "stream-filter" => {
            let wanted = table([("x-stream-offset", text("first")), ("x-stream-filter", text("odd"))]);
            stream(channel, "filtered", wanted, ["1", "3", "5", "7", "9"]).await?;
        }
        "policy" => {
            declare(channel, "limited", none()).await?;
            send(channel, "limited", &["1", "2", "3", "4"]).await?;
            assert_eq!(purge(channel, "limited").await?, 2);
        }
        "write" => {
            declare(channel, "crossing", none()).await?;
            let made = properties().with_content_type("text/plain".into()).with_message_id("7".into());
            let body: Vec<u8> = (0..=255).collect();
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            publish(channel, "", "crossing", &body, made.with_headers(crossing())).await?;
        }
        "read" => {
            let got = next(&mut consume(channel, "crossing", true, none()).await?).await?;
            assert_eq!(got.data, (0..=255).collect::<Vec<u8>>());
            assert_eq!(got.properties.content_type().as_ref().map(|value| value.as_str()), Some("text/plain"));
            assert_eq!(got.properties.message_id().as_ref().map(|value| value.as_str()), Some("7"));
            let headers = got.properties.headers().clone().ok_or("no headers")?;
            assert_eq!(headers.inner().len(), 5);
            for key in ["text", "yes", "table"] {
                assert_eq!(headers.inner().get(key), crossing().inner().get(key));
            }
        }
        _ => return Err("no such scenario".into()),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let name = env::args().nth(1).ok_or("usage: lapin-program SCENARIO")?;
    if name == "version" {
        let lock = include_str!("../../Cargo.lock").split("name = \"lapin\"\nversion = \"").nth(1).ok_or("no version")?;
        println!("{}", lock.split('"').next().unwrap_or_default());
        return Ok(());
    }
    if !alone(&name).await? {
        let connection = connect("").await?;
        run(&name, &connection).await?;
        connection.close(200, "".into()).await.ok(); // an error if a dropped channel is still closing
    }
    println!("pass");
    Ok(())
}
