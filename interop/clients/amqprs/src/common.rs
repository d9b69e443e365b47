// What the groups of scenarios share: how they connect, declare, send and receive.
use amqprs::channel::*;
use amqprs::connection::{Connection, OpenConnectionArguments};
use amqprs::tls::TlsAdaptor;
use amqprs::{BasicProperties, FieldTable, FieldValue};
use std::{env, error::Error, path::PathBuf, time::Duration};
use tokio::sync::mpsc::UnboundedReceiver;
use url::Url;

pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;
pub type Answer<T = ()> = Result<T, amqprs::error::Error>;
pub type Deliveries = UnboundedReceiver<ConsumerMessage>;

pub async fn connection(heartbeat: Option<u16>) -> Outcome<Connection> {
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

pub fn table<const N: usize>(fields: [(&str, FieldValue); N]) -> FieldTable {
    let mut made = FieldTable::new();
    for (key, value) in fields {
        made.insert(key.try_into().expect("a short key"), value);
    }
    made
}

pub fn none() -> FieldTable {
    FieldTable::new()
}

pub fn properties() -> BasicProperties {
    BasicProperties::default()
}

/// Declares a queue; "" makes a name. Returns name and number of messages.
pub async fn declare(channel: &Channel, name: &str, arguments: FieldTable) -> Answer<(String, u32)> {
    let durable = arguments.get(&"x-queue-type".try_into().expect("a short key")).is_some();
    let mut made = QueueDeclareArguments::new(name);
    made.durable(durable).exclusive(name.is_empty()).arguments(arguments);
    let (name, messages, _) = channel.queue_declare(made.finish()).await?.expect("no-wait was not asked for");
    Ok((name, messages))
}

pub async fn durable(channel: &Channel, name: &str) -> Answer {
    channel.queue_declare(QueueDeclareArguments::durable_client_named(name)).await.map(|_| ())
}

pub async fn passive(channel: &Channel, name: &str) -> Answer<u32> {
    let answer = channel.queue_declare(QueueDeclareArguments::new(name).passive(true).finish()).await?;
    Ok(answer.expect("no-wait was not asked for").1)
}

pub async fn exchange(channel: &Channel, name: &str, kind: &str, arguments: FieldTable) -> Answer {
    channel.exchange_declare(ExchangeDeclareArguments::new(name, kind).arguments(arguments).finish()).await
}

pub async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Answer {
    channel.queue_bind(QueueBindArguments::new(queue, exchange, key)).await
}

pub async fn publish(channel: &Channel, exchange: &str, key: &str, body: &[u8], made: BasicProperties) -> Answer {
    channel.basic_publish(made, body.to_vec(), BasicPublishArguments::new(exchange, key)).await
}

pub async fn send(channel: &Channel, queue: &str, bodies: &[&str]) -> Answer {
    for body in bodies {
        publish(channel, "", queue, body.as_bytes(), properties().with_persistence(true).finish()).await?;
    }
    Ok(())
}

pub async fn consume(channel: &Channel, queue: &str, tag: &str, no_ack: bool, arguments: FieldTable) -> Answer<Deliveries> {
    let mut made = BasicConsumeArguments::new(queue, tag);
    Ok(channel.basic_consume_rx(made.manual_ack(!no_ack).arguments(arguments).finish()).await?.1)
}

pub async fn next(deliveries: &mut Deliveries) -> Outcome<(u64, bool, BasicProperties, Vec<u8>)> {
    let got = deliveries.recv().await.ok_or("the consumer ended")?;
    let deliver = got.deliver.ok_or("no delivery")?;
    let made = got.basic_properties.ok_or("no properties")?;
    Ok((deliver.delivery_tag(), deliver.redelivered(), made, got.content.unwrap_or_default()))
}

/// Prints the bodies of the next messages.
pub async fn print(deliveries: &mut Deliveries, count: usize) -> Outcome {
    for _ in 0..count {
        println!("{}", String::from_utf8(next(deliveries).await?.3)?);
    }
    Ok(())
}

pub async fn receive(channel: &Channel, queue: &str, count: usize) -> Outcome {
    print(&mut consume(channel, queue, "", true, none()).await?, count).await
}

pub async fn get(channel: &Channel, queue: &str) -> Outcome<GetMessage> {
    Ok(channel.basic_get(BasicGetArguments::new(queue)).await?.ok_or("no message")?)
}

pub async fn purge(channel: &Channel, queue: &str) -> Outcome {
    let purged = channel.queue_purge(QueuePurgeArguments::new(queue)).await?;
    println!("{}", purged.expect("no-wait was not asked for"));
    Ok(())
}

pub async fn hello(channel: &Channel) -> Outcome {
    declare(channel, "hello", none()).await?;
    send(channel, "hello", &["Hello World!"]).await?;
    receive(channel, "hello", 1).await
}

pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
