// What the groups of scenarios share: how they connect, declare, send and receive.
use futures_lite::StreamExt;
use lapin::message::{BasicGetMessage, Delivery};
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, ErrorKind, ExchangeKind};
use lapin::{Queue, options::*};
use std::{env, error::Error, fs, time::Duration};

pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

pub async fn connection(query: &str) -> lapin::Result<Connection> {
    let url = env::var("AMQP_URL").expect("AMQP_URL") + query;
    let file = |name| env::var(name).ok().map(|path| fs::read(path).expect("a file"));
    let identity = file("CERT_FILE").map(|pem| OwnedIdentity::PKCS8 { pem, key: file("KEY_FILE").expect("KEY_FILE") });
    let cert_chain = file("CA_FILE").map(|pem| String::from_utf8(pem).expect("PEM"));
    let tls = OwnedTLSConfig { identity, cert_chain };
    let runtime = lapin::runtime::default_runtime()?;
    Connection::connect_with_config(&url, ConnectionProperties::default(), tls, runtime).await
}

/// Prints an error; a refusal with its number.
pub fn print_error(error: &(dyn Error + 'static)) {
    match error.downcast_ref::<lapin::Error>().map(lapin::Error::kind) {
        Some(ErrorKind::ProtocolError(refused)) => println!("{} {error}", refused.get_id()),
        _ => println!("error: {error}"),
    }
}

pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

pub fn table<const N: usize>(fields: [(&str, AMQPValue); N]) -> FieldTable {
    let mut made = FieldTable::default();
    for (key, value) in fields {
        made.insert(key.into(), value);
    }
    made
}

pub fn none() -> FieldTable {
    FieldTable::default()
}

pub fn properties() -> BasicProperties {
    BasicProperties::default()
}

pub async fn declare(channel: &Channel, name: &str, arguments: FieldTable) -> lapin::Result<Queue> {
    let durable = arguments.inner().get("x-queue-type").is_some();
    let options = QueueDeclareOptions { durable, exclusive: name.is_empty(), ..Default::default() };
    channel.queue_declare(name.into(), options, arguments).await
}

pub async fn durable(channel: &Channel, name: &str) -> lapin::Result<Queue> {
    channel.queue_declare(name.into(), QueueDeclareOptions::durable(), none()).await
}

pub async fn passive(channel: &Channel, name: &str) -> lapin::Result<Queue> {
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    channel.queue_declare(name.into(), options, none()).await
}

pub async fn exchange(channel: &Channel, name: &str, kind: ExchangeKind, arguments: FieldTable) -> lapin::Result<()> {
    channel.exchange_declare(name.into(), kind, ExchangeDeclareOptions::default(), arguments).await
}

pub async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> lapin::Result<()> {
    channel.queue_bind(queue.into(), exchange.into(), key.into(), QueueBindOptions::default(), none()).await
}

pub async fn publish(channel: &Channel, exchange: &str, key: &str, body: &[u8], made: BasicProperties) -> Outcome<Confirmation> {
    let options = BasicPublishOptions::default();
    Ok(channel.basic_publish(exchange.into(), key.into(), options, body, made).await?.await?)
}

pub async fn send(channel: &Channel, queue: &str, bodies: &[&str]) -> Outcome {
    for body in bodies {
        publish(channel, "", queue, body.as_bytes(), properties().with_delivery_mode(2)).await?;
    }
    Ok(())
}

pub async fn consume(channel: &Channel, queue: &str, no_ack: bool, arguments: FieldTable) -> lapin::Result<Consumer> {
    let options = BasicConsumeOptions { no_ack, ..Default::default() };
    channel.basic_consume(queue.into(), "".into(), options, arguments).await
}

pub async fn next(consumer: &mut Consumer) -> Outcome<Delivery> {
    Ok(consumer.next().await.ok_or("the consumer ended")??)
}

/// Prints the bodies of the next messages.
pub async fn print(consumer: &mut Consumer, count: usize) -> Outcome {
    for _ in 0..count {
        println!("{}", String::from_utf8(next(consumer).await?.data)?);
    }
    Ok(())
}

pub async fn receive(channel: &Channel, queue: &str, count: usize) -> Outcome {
    print(&mut consume(channel, queue, true, none()).await?, count).await
}

pub async fn get(channel: &Channel, queue: &str) -> Outcome<BasicGetMessage> {
    Ok(channel.basic_get(queue.into(), BasicGetOptions::default()).await?.ok_or("no message")?)
}

pub async fn purge(channel: &Channel, queue: &str) -> Outcome {
    println!("{}", channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await?);
    Ok(())
}

pub async fn confirms(channel: &Channel) -> lapin::Result<()> {
    channel.confirm_select(ConfirmSelectOptions::default()).await
}

pub async fn hello(channel: &Channel) -> Outcome {
    declare(channel, "hello", none()).await?;
    send(channel, "hello", &["Hello World!"]).await?;
    receive(channel, "hello", 1).await
}

pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
