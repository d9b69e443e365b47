// amqprs: the scenarios of ../README.md.
use amqprs::callbacks::ChannelCallback;
use amqprs::channel::*;
use amqprs::connection::{Connection, OpenConnectionArguments};
use amqprs::tls::TlsAdaptor;
use amqprs::{Ack, BasicProperties, Cancel, CloseChannel, FieldArray, FieldTable, FieldValue, Nack, Return};
use async_trait::async_trait;
use std::{collections::BTreeSet, env, error::Error, ops::Deref, path::PathBuf, time::Duration};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use url::Url;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;
type Answer<T = ()> = Result<T, amqprs::error::Error>;
type Deliveries = UnboundedReceiver<ConsumerMessage>;

/// Hands what the broker reports to the program.
struct Events(UnboundedSender<String>);

impl Events {
    fn tell(&self, event: String) {
        self.0.send(event).ok(); // an error if the program has ended
    }
}

#[async_trait]
impl ChannelCallback for Events {
    async fn close(&mut self, _: &Channel, close: CloseChannel) -> Answer {
        self.tell(format!("closed: {close}"));
        Ok(())
    }
    async fn cancel(&mut self, _: &Channel, cancel: Cancel) -> Answer {
        self.tell(format!("cancelled: {}", cancel.consumer_tag()));
        Ok(())
    }
    async fn flow(&mut self, _: &Channel, _: bool) -> Answer<bool> {
        Ok(true)
    }
    async fn publish_ack(&mut self, _: &Channel, ack: Ack) {
        self.tell(format!("{}{}", if ack.mutiple() { "up to " } else { "" }, ack.delivery_tag()));
    }
    async fn publish_nack(&mut self, _: &Channel, _: Nack) {
        self.tell("nack".into());
    }
    async fn publish_return(&mut self, _: &Channel, returned: Return, _: BasicProperties, _: Vec<u8>) {
        self.tell(format!("returned: {}", returned.reply_code()));
    }
}

/// A channel and what the broker reports about it.
struct Link {
    channel: Channel,
    events: UnboundedReceiver<String>,
}

impl Deref for Link {
    type Target = Channel;
    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl Link {
    async fn open(connection: &Connection) -> Answer<Link> {
        let channel = connection.open_channel(None).await?;
        let (sender, events) = unbounded_channel();
        channel.register_callback(Events(sender)).await?;
        Ok(Link { channel, events })
    }

    async fn refused<T>(&mut self, expected: &str, answer: Answer<T>) -> Outcome {
        assert!(answer.is_err(), "not refused");
        let reason = self.events.recv().await.ok_or("no reason")?;
        assert!(reason.contains(expected), "{reason}");
        Ok(())
    }

    async fn await_confirms(&mut self, count: u64) -> Outcome {
        let mut confirmed = BTreeSet::new();
        while confirmed.len() < count as usize {
            let event = self.events.recv().await.ok_or("closed")?;
            match event.strip_prefix("up to ") {
                Some(last) => confirmed.extend(1..=last.parse()?),
                None => confirmed.extend([event.parse::<u64>()?]),
            }
        }
        Ok(())
    }
}

async fn connect_with(heartbeat: Option<u16>) -> Outcome<Connection> {
    let url = Url::parse(&env::var("AMQP_URL")?)?;
    let host = url.host_str().ok_or("no host")?;
    let password = url.password().ok_or("no password")?;
    let mut arguments = OpenConnectionArguments::new(host, url.port().ok_or("no port")?, url.username(), password);
    arguments.virtual_host(&percent_encoding::percent_decode_str(&url.path()[1..]).decode_utf8()?);
    if let Some(seconds) = heartbeat {
        arguments.heartbeat(seconds);
    }
    let file = |name| env::var(name).ok().map(PathBuf::from);
    if let Some(authority) = file("CA_FILE") {
        let (authority, domain) = (Some(authority.as_path()), host.to_string());
        arguments.tls_adaptor(match (file("CERT_FILE"), file("KEY_FILE")) {
            (Some(certificate), Some(key)) => TlsAdaptor::with_client_auth(authority, &certificate, &key, domain)?,
            _ => TlsAdaptor::without_client_auth(authority, domain)?,
        });
    }
    Ok(Connection::open(&arguments).await?)
}

async fn connect() -> Outcome<Connection> {
    connect_with(None).await
}

fn table<const N: usize>(fields: [(&str, FieldValue); N]) -> FieldTable {
    let mut made = FieldTable::new();
    for (key, value) in fields {
        made.insert(key.try_into().expect("a short key"), value);
    }
    made
}

fn array(values: Vec<FieldValue>) -> FieldValue {
    FieldValue::A(FieldArray::try_from(values).expect("a short array"))
}

fn crossing() -> FieldTable {
    table([
        ("text", "grüße".into()),
        ("number", FieldValue::I(42)),
        ("yes", true.into()),
        ("array", array(vec![FieldValue::I(1), "two".into()])),
        ("table", table([("a", "b".into())]).into()),
    ])
}

fn properties() -> BasicProperties {
    BasicProperties::default()
}

fn persistent() -> BasicProperties {
    properties().with_persistence(true).finish()
}

/// Declares a queue; "" makes a name. Returns name and number of messages.
async fn declare(channel: &Channel, name: &str, arguments: FieldTable) -> Answer<(String, u32)> {
    let durable = arguments.get(&"x-queue-type".try_into().expect("a short key")).is_some();
    let mut made = QueueDeclareArguments::new(name);
    made.durable(durable).exclusive(name.is_empty()).arguments(arguments);
    let (name, messages, _) = channel.queue_declare(made.finish()).await?.expect("no-wait was not asked for");
    Ok((name, messages))
}

async fn durable(channel: &Channel, name: &str) -> Answer {
    channel.queue_declare(QueueDeclareArguments::durable_client_named(name)).await.map(|_| ())
}

async fn passive(channel: &Channel, name: &str) -> Answer<u32> {
    let answer = channel.queue_declare(QueueDeclareArguments::new(name).passive(true).finish()).await?;
    Ok(answer.expect("no-wait was not asked for").1)
}

async fn exchange(channel: &Channel, name: &str, kind: &str, arguments: FieldTable) -> Answer {
    channel.exchange_declare(ExchangeDeclareArguments::new(name, kind).arguments(arguments).finish()).await
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Answer {
    channel.queue_bind(QueueBindArguments::new(queue, exchange, key)).await
}

async fn publish(channel: &Channel, exchange: &str, key: &str, body: &[u8], made: BasicProperties) -> Answer {
    channel.basic_publish(made, body.to_vec(), BasicPublishArguments::new(exchange, key)).await
}

async fn send(channel: &Channel, queue: &str, bodies: &[&str]) -> Answer {
    for body in bodies {
        publish(channel, "", queue, body.as_bytes(), persistent()).await?;
    }
    Ok(())
}

async fn consume(channel: &Channel, queue: &str, tag: &str, no_ack: bool, arguments: FieldTable) -> Answer<Deliveries> {
    let mut made = BasicConsumeArguments::new(queue, tag);
    Ok(channel.basic_consume_rx(made.manual_ack(!no_ack).arguments(arguments).finish()).await?.1)
}

async fn next(deliveries: &mut Deliveries) -> Outcome<(u64, bool, BasicProperties, Vec<u8>)> {
    let got = deliveries.recv().await.ok_or("the consumer ended")?;
    let deliver = got.deliver.ok_or("no delivery")?;
    let made = got.basic_properties.ok_or("no properties")?;
    Ok((deliver.delivery_tag(), deliver.redelivered(), made, got.content.unwrap_or_default()))
}

async fn take(deliveries: &mut Deliveries, count: usize) -> Outcome<Vec<String>> {
    let mut bodies = vec![];
    for _ in 0..count {
        bodies.push(String::from_utf8(next(deliveries).await?.3)?);
    }
    Ok(bodies)
}

async fn receive(channel: &Channel, queue: &str, count: usize) -> Outcome<Vec<String>> {
    take(&mut consume(channel, queue, "", true, FieldTable::new()).await?, count).await
}

async fn get(channel: &Channel, queue: &str) -> Outcome<GetMessage> {
    Ok(channel.basic_get(BasicGetArguments::new(queue)).await?.ok_or("no message")?)
}

async fn purge(channel: &Channel, queue: &str) -> Answer<u32> {
    Ok(channel.queue_purge(QueuePurgeArguments::new(queue)).await?.expect("no-wait was not asked for"))
}

async fn connects(channel: &Channel) -> Outcome {
    declare(channel, "hello", FieldTable::new()).await?;
    send(channel, "hello", &["Hello World!"]).await?;
    assert_eq!(receive(channel, "hello", 1).await?, ["Hello World!"]);
    Ok(())
}

async fn patterns(channel: &Channel, name: &str, kind: &str, keys: [&[&str]; 3]) -> Outcome {
    let [bindings, published, expected] = keys;
    exchange(channel, name, kind, FieldTable::new()).await?;
    let (queue, _) = declare(channel, "", FieldTable::new()).await?;
    for key in bindings {
        bind(channel, &queue, name, key).await?;
    }
    for key in published {
        publish(channel, name, key, key.as_bytes(), properties()).await?;
    }
    assert_eq!(receive(channel, &queue, expected.len()).await?, expected);
    Ok(())
}

fn fibonacci(n: u32) -> u32 {
    if n < 2 { n } else { fibonacci(n - 1) + fibonacci(n - 2) }
}

async fn ask_fibonacci(channel: &Channel, callback: &str) -> Outcome {
    declare(channel, "rpc_queue", FieldTable::new()).await?;
    let mut requests = consume(channel, "rpc_queue", "", true, FieldTable::new()).await?;
    let mut replies = consume(channel, callback, "", true, FieldTable::new()).await?;
    let question = properties().with_reply_to(callback).with_correlation_id("1").finish();
    publish(channel, "", "rpc_queue", b"15", question).await?;
    let (_, _, request, body) = next(&mut requests).await?;
    let result = fibonacci(String::from_utf8(body)?.parse()?).to_string();
    let answer = properties().with_correlation_id(request.correlation_id().ok_or("no correlation_id")?).finish();
    publish(channel, "", request.reply_to().ok_or("no reply_to")?, result.as_bytes(), answer).await?;
    let (_, _, reply, body) = next(&mut replies).await?;
    assert_eq!((reply.correlation_id().map(|id| id.as_str()), body.as_slice()), (Some("1"), b"610".as_slice()));
    Ok(())
}

fn dead_lettering(queue: &str) -> FieldTable {
    table([("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", queue.into())])
}

async fn expect_death(channel: &Channel, queue: &str, reason: &str) -> Outcome {
    let (_, _, dead, _) = next(&mut consume(channel, queue, "", true, FieldTable::new()).await?).await?;
    let headers = dead.headers().ok_or("no headers")?.to_string();
    assert!(headers.contains("x-death") && headers.contains(&format!("reason: {reason}")), "{headers}");
    Ok(())
}

async fn stream(channel: &Channel, name: &str, arguments: FieldTable, expected: [&str; 5]) -> Outcome {
    declare(channel, name, table([("x-queue-type", "stream".into())])).await?;
    for n in 0..10 {
        let filter = table([("x-stream-filter-value", if n % 2 == 0 { "even" } else { "odd" }.into())]);
        publish(channel, "", name, n.to_string().as_bytes(), properties().with_headers(filter).finish()).await?;
    }
    channel.basic_qos(BasicQosArguments::new(0, 10, false)).await?;
    assert_eq!(take(&mut consume(channel, name, "", false, arguments).await?, 5).await?, expected);
    Ok(())
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Runs a scenario that opens its connection itself; returns false for another one.
async fn alone(name: &str) -> Outcome<bool> {
    match name {
        "bad-password" => assert!(connect().await.is_err()), // the broker gives no reason to this client
        "bad-vhost" => {
            let error = connect().await.err().ok_or("not refused")?;
            assert!(error.to_string().contains("NOT_ALLOWED"), "{error}");
        }
        "heartbeat" => {
            let connection = connect_with(Some(1)).await?;
            pause(4000).await;
            connects(&*Link::open(&connection).await?).await?;
        }
        "reconnect" => {
            let connection = connect().await?;
            let mut channel = Link::open(&connection).await?;
            durable(&channel, "kept").await?;
            channel.confirm_select(ConfirmSelectArguments::default()).await?;
            send(&channel, "kept", &["kept"]).await?;
            channel.await_confirms(1).await?;
            let mut deliveries = consume(&channel, "kept", "", false, FieldTable::new()).await?;
            next(&mut deliveries).await?;
            println!("ready"); // the runner kills the broker and starts it again
            connection.listen_network_io_failure().await;
            let mut again = connect().await;
            while again.is_err() {
                pause(100).await;
                again = connect().await;
            }
            assert_eq!(receive(&*Link::open(&again?).await?, "kept", 1).await?, ["kept"]);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

async fn run(name: &str, connection: &Connection) -> Outcome {
    let mut link = Link::open(connection).await?;
    let channel = &link.channel.clone();
    let none = FieldTable::new;
    match name {
        "connect" | "tls" | "client-certificate" => connects(channel).await?,
        "declare" => {
            durable(channel, "declared").await?;
            exchange(channel, "declared", "topic", none()).await?;
            bind(channel, "declared", "declared", "#").await?;
            publish(channel, "declared", "key", b"1", properties()).await?;
            passive(channel, "declared").await?;
            channel.exchange_declare(ExchangeDeclareArguments::new("declared", "topic").passive(true).finish()).await?;
            assert_eq!(purge(channel, "declared").await?, 1);
            channel.queue_unbind(QueueUnbindArguments::new("declared", "declared", "#")).await?;
            channel.exchange_delete(ExchangeDeleteArguments::new("declared")).await?;
            channel.queue_delete(QueueDeleteArguments::new("declared")).await?;
        }
        "missing" => {
            let answer = passive(channel, "missing").await;
            link.refused("NOT_FOUND - no queue 'missing'", answer).await?;
            connects(&*Link::open(connection).await?).await?;
        }
        "inequivalent" => {
            durable(channel, "inequivalent").await?;
            let again = declare(channel, "inequivalent", none()).await;
            link.refused("PRECONDITION_FAILED - inequivalent arg 'durable'", again).await?;
        }
        "float-argument" => {
            for length in [FieldValue::I(10), FieldValue::l(10)] {
                declare(channel, "float", table([("x-max-length", length)])).await?;
            }
            let again = declare(channel, "float", table([("x-max-length", FieldValue::d(10.0))])).await;
            link.refused("PRECONDITION_FAILED - inequivalent arg 'x-max-length'", again).await?;
        }
        "work-queue" => {
            durable(channel, "tasks").await?;
            channel.basic_qos(BasicQosArguments::new(0, 1, false)).await?;
            let mut a = consume(channel, "tasks", "a", false, none()).await?;
            let mut b = consume(channel, "tasks", "b", false, none()).await?;
            send(channel, "tasks", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await?;
            let (mut done, mut workers) = (BTreeSet::new(), BTreeSet::new());
            while done.len() < 10 {
                let (worker, task) = tokio::select! {
                    task = a.recv() => ("a", task),
                    task = b.recv() => ("b", task),
                };
                let task = task.ok_or("no task")?;
                let tag = task.deliver.ok_or("no delivery")?.delivery_tag();
                channel.basic_ack(BasicAckArguments::new(tag, false)).await?;
                done.insert(task.content);
                workers.insert(worker);
            }
            assert_eq!(workers.len(), 2);
        }
        "publish-subscribe" => {
            exchange(channel, "logs", "fanout", none()).await?;
            let queues = [declare(channel, "", none()).await?.0, declare(channel, "", none()).await?.0];
            for queue in &queues {
                bind(channel, queue, "logs", "").await?;
            }
            publish(channel, "logs", "", b"log", properties()).await?;
            for queue in &queues {
                assert_eq!(receive(channel, queue, 1).await?, ["log"]);
            }
        }
        "routing" => {
            let levels = ["info", "warning", "error"];
            patterns(channel, "direct_logs", "direct", [&levels[1..], &levels, &levels[1..]]).await?;
        }
        "topics" => {
            let keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"];
            let expected = [keys[0], keys[2], keys[3]];
            patterns(channel, "topic_logs", "topic", [&["*.critical", "kern.#"], &keys, &expected]).await?;
        }
        "rpc" => ask_fibonacci(channel, &declare(channel, "", none()).await?.0).await?,
        "direct-reply-to" => ask_fibonacci(channel, "amq.rabbitmq.reply-to").await?,
        "confirm" | "confirm-batch" => {
            let count = if name == "confirm" { 1 } else { 1000 };
            durable(channel, name).await?;
            channel.confirm_select(ConfirmSelectArguments::default()).await?;
            for _ in 0..count {
                send(channel, name, &["safe"]).await?;
            }
            link.await_confirms(count).await?;
            assert_eq!(u64::from(purge(channel, name).await?), count);
        }
        "mandatory" => {
            let arguments = BasicPublishArguments::new("", "nowhere").mandatory(true).finish();
            channel.basic_publish(properties(), b"lost".to_vec(), arguments).await?;
            assert_eq!(link.events.recv().await.as_deref(), Some("returned: 312"));
        }
        "tx" => {
            declare(channel, "tx", none()).await?;
            channel.tx_select().await?;
            send(channel, "tx", &["no"]).await?;
            channel.tx_rollback().await?;
            send(channel, "tx", &["yes"]).await?;
            channel.tx_commit().await?;
            assert_eq!(get(channel, "tx").await?.2, b"yes");
        }
        "headers" => {
            let sent = table([
                ("byte", FieldValue::b(-8)),
                ("short", FieldValue::s(-16)),
                ("int", FieldValue::I(-32)),
                ("unsigned", FieldValue::i(32)),
                ("long", FieldValue::l(1 << 40)),
                ("float", FieldValue::f(1.5)),
                ("double", FieldValue::d(2.5)),
                ("yes", true.into()),
                ("text", "grüße".into()),
                ("array", array(vec![FieldValue::I(1), table([("three", FieldValue::I(3))]).into()])),
                ("table", table([("a", table([("b", FieldValue::V)]).into())]).into()),
                ("time", FieldValue::T(1_767_323_045)),
            ]);
            declare(channel, "headers", none()).await?;
            publish(channel, "", "headers", b"", properties().with_headers(sent.clone()).finish()).await?;
            assert_eq!(get(channel, "headers").await?.1.headers(), Some(&sent));
        }
        "bodies" => {
            declare(channel, "bodies", none()).await?;
            for size in [0, 1, 131_064, 131_065, 1 << 20, 16 << 20] {
                publish(channel, "", "bodies", &vec![b'x'; size], properties()).await?;
                assert!(get(channel, "bodies").await?.2 == vec![b'x'; size], "{size}");
            }
        }
        "channels" => {
            declare(channel, "channels", none()).await?;
            let mut opened = vec![];
            for _ in 0..100 {
                opened.push(connection.open_channel(None).await?);
            }
            for each in &opened {
                send(each, "channels", &["x"]).await?;
            }
            receive(channel, "channels", 100).await?;
        }
        "prefetch" => {
            declare(channel, "prefetch", none()).await?;
            send(channel, "prefetch", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await?;
            channel.basic_qos(BasicQosArguments::new(0, 3, false)).await?;
            let mut deliveries = consume(channel, "prefetch", "", false, none()).await?;
            take(&mut deliveries, 2).await?;
            let (third, ..) = next(&mut deliveries).await?;
            assert_eq!(passive(channel, "prefetch").await?, 7);
            channel.basic_ack(BasicAckArguments::new(third, true)).await?;
            assert_eq!(take(&mut deliveries, 3).await?, ["3", "4", "5"]);
        }
        "requeue" => {
            declare(channel, "requeue", none()).await?;
            send(channel, "requeue", &["1", "2", "3"]).await?;
            for _ in 0..2 {
                get(channel, "requeue").await?;
            }
            let last = get(channel, "requeue").await?.0.delivery_tag();
            channel.basic_nack(BasicNackArguments::new(last, true, true)).await?;
            let mut got = vec![];
            for _ in 0..3 {
                got.push(get(channel, "requeue").await?);
            }
            assert_eq!(got.iter().map(|each| each.2.as_slice()).collect::<Vec<_>>(), [b"1", b"2", b"3"]);
            assert!(got.iter().all(|each| each.0.redelivered()));
            channel.basic_reject(BasicRejectArguments::new(got[0].0.delivery_tag(), false)).await?;
            channel.basic_ack(BasicAckArguments::new(got[2].0.delivery_tag(), true)).await?;
            assert_eq!(purge(channel, "requeue").await?, 0);
        }
        "cancel" => {
            declare(channel, "cancel", none()).await?;
            let mut deliveries = consume(channel, "cancel", "reader", true, none()).await?;
            channel.basic_cancel(BasicCancelArguments::new("reader")).await?;
            send(channel, "cancel", &["stays"]).await?;
            assert_eq!(purge(channel, "cancel").await?, 1);
            assert!(deliveries.try_recv().is_err());
        }
        "broker-cancel" => {
            declare(channel, "cancelled", none()).await?;
            let _deliveries = consume(channel, "cancelled", "reader", true, none()).await?;
            let other = connection.open_channel(None).await?;
            other.queue_delete(QueueDeleteArguments::new("cancelled")).await?;
            assert_eq!(link.events.recv().await.as_deref(), Some("cancelled: reader"));
        }
        "dead-letter" => {
            declare(channel, "dead", none()).await?;
            declare(channel, "rejecting", dead_lettering("dead")).await?;
            send(channel, "rejecting", &["bad"]).await?;
            let tag = get(channel, "rejecting").await?.0.delivery_tag();
            channel.basic_reject(BasicRejectArguments::new(tag, false)).await?;
            expect_death(channel, "dead", "rejected").await?;
        }
        "message-ttl" => {
            declare(channel, "expired", none()).await?;
            declare(channel, "ttl", dead_lettering("expired")).await?;
            publish(channel, "", "ttl", b"short", properties().with_expiration("50").finish()).await?;
            expect_death(channel, "expired", "expired").await?;
        }
        "queue-ttl" => {
            declare(channel, "leased", table([("x-expires", FieldValue::I(100))])).await?;
            let mut bound = Ok(());
            while bound.is_ok() {
                pause(50).await;
                bound = bind(channel, "leased", "amq.fanout", "").await; // does not renew the lease
            }
            link.refused("NOT_FOUND", bound).await?;
        }
        "priority" => {
            declare(channel, "priority", table([("x-max-priority", FieldValue::I(5))])).await?;
            for level in [1, 5, 3] {
                let made = properties().with_priority(level).finish();
                publish(channel, "", "priority", level.to_string().as_bytes(), made).await?;
            }
            assert_eq!(receive(channel, "priority", 3).await?, ["5", "3", "1"]);
        }
        "delayed" => {
            exchange(channel, "delayed", "x-delayed-message", table([("x-delayed-type", "fanout".into())])).await?;
            declare(channel, "delayed", none()).await?;
            bind(channel, "delayed", "delayed", "").await?;
            for (body, ms) in [("late", 1000), ("soon", 1)] {
                let delay = properties().with_headers(table([("x-delay", FieldValue::I(ms))])).finish();
                publish(channel, "delayed", "", body.as_bytes(), delay).await?;
            }
            assert_eq!(receive(channel, "delayed", 2).await?, ["soon", "late"]);
        }
        "stream-offset" => {
            let offset = table([("x-stream-offset", FieldValue::l(5))]);
            stream(channel, "stream", offset, ["5", "6", "7", "8", "9"]).await?;
        }
        "stream-filter" => {
            let wanted = table([("x-stream-offset", "first".into()), ("x-stream-filter", "odd".into())]);
            stream(channel, "filtered", wanted, ["1", "3", "5", "7", "9"]).await?;
        }
        "policy" => {
            declare(channel, "limited", none()).await?;
            send(channel, "limited", &["1", "2", "3", "4"]).await?;
            assert_eq!(purge(channel, "limited").await?, 2);
        }
        "write" => {
            declare(channel, "crossing", none()).await?;
            let mut made = properties();
            made.with_content_type("text/plain").with_message_id("7").with_headers(crossing());
            publish(channel, "", "crossing", &(0..=255).collect::<Vec<u8>>(), made).await?;
            passive(channel, "crossing").await?; // the broker has the message when it answers
        }
        "read" => {
            let (_, got, body) = get(channel, "crossing").await?;
            assert_eq!(body, (0..=255).collect::<Vec<u8>>());
            assert_eq!(got.content_type().map(|value| value.as_str()), Some("text/plain"));
            assert_eq!(got.message_id().map(|value| value.as_str()), Some("7"));
            let (headers, sent) = (got.headers().ok_or("no headers")?, crossing());
            assert_eq!(headers.as_ref().len(), 5);
            for key in ["text", "yes", "table"] {
                let key = key.try_into()?;
                assert_eq!(headers.get(&key), sent.get(&key));
            }
        }
        _ => return Err("no such scenario".into()),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let name = env::args().nth(1).ok_or("usage: amqprs-program SCENARIO")?;
    if name == "version" {
        let lock = include_str!("../../Cargo.lock").split("name = \"amqprs\"\nversion = \"").nth(1).ok_or("no version")?;
        println!("{}", lock.split('"').next().unwrap_or_default());
        return Ok(());
    }
    if name == "blocked" {
        println!("not offered: amqprs does not ask for connection.blocked");
        return Ok(());
    }
    if !alone(&name).await? {
        let connection = connect().await?;
        run(&name, &connection).await?;
        connection.close().await.ok(); // an error if the broker has closed a channel
    }
    println!("pass");
    Ok(())
}
