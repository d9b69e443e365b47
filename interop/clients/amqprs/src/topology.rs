// Queues, exchanges and bindings.
use crate::common::*;
use crate::events::Link;
use amqprs::FieldValue;
use amqprs::channel::*;
use amqprs::connection::Connection;

pub async fn run(name: &str, connection: &Connection, link: &mut Link) -> Outcome {
    let channel = &link.channel.clone();
    match name {
        "declare" => {
            durable(channel, "declared").await?;
            exchange(channel, "declared", "topic", none()).await?;
            bind(channel, "declared", "declared", "#").await?;
            publish(channel, "declared", "key", b"1", properties()).await?;
            passive(channel, "declared").await?;
            channel.exchange_declare(ExchangeDeclareArguments::new("declared", "topic").passive(true).finish()).await?;
            purge(channel, "declared").await?;
            channel.queue_unbind(QueueUnbindArguments::new("declared", "declared", "#")).await?;
            channel.exchange_delete(ExchangeDeleteArguments::new("declared")).await?;
            channel.queue_delete(QueueDeleteArguments::new("declared")).await?;
        }
        "missing" => {
            link.print_refusal(passive(channel, "missing").await).await?;
            hello(&connection.open_channel(None).await?).await?;
        }
        "inequivalent" => {
            durable(channel, "inequivalent").await?;
            link.print_refusal(declare(channel, "inequivalent", none()).await).await?;
        }
        "float-argument" => {
            for length in [FieldValue::I(10), FieldValue::l(10)] {
                declare(channel, "float", table([("x-max-length", length)])).await?;
            }
            let arguments = table([("x-max-length", FieldValue::d(10.0))]);
            link.print_refusal(declare(channel, "float", arguments).await).await?;
        }
        "queue-ttl" => {
            declare(channel, "leased", table([("x-expires", FieldValue::I(100))])).await?;
            let mut bound = Ok(());
            while bound.is_ok() {
                pause(50).await;
                bound = bind(channel, "leased", "amq.fanout", "").await; // does not renew the lease
            }
            link.print_refusal(bound).await?;
        }
        "policy" => {
            declare(channel, "limited", none()).await?;
            send(channel, "limited", &["1", "2", "3", "4"]).await?;
            purge(channel, "limited").await?;
        }
        _ => {}
    }
    Ok(())
}
