// Queues, exchanges and bindings.
use crate::common::*;
use lapin::types::AMQPValue::{Double, LongInt, LongLongInt};
use lapin::{Channel, Connection, ExchangeKind, options::*};

pub async fn run(name: &str, connection: &Connection, channel: &Channel) -> Outcome {
    match name {
        "declare" => {
            durable(channel, "declared").await?;
            exchange(channel, "declared", ExchangeKind::Topic, none()).await?;
            bind(channel, "declared", "declared", "#").await?;
            publish(channel, "declared", "key", b"1", properties()).await?;
            passive(channel, "declared").await?;
            let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
            channel.exchange_declare("declared".into(), ExchangeKind::Topic, options, none()).await?;
            purge(channel, "declared").await?;
            channel.queue_unbind("declared".into(), "declared".into(), "#".into(), none()).await?;
            channel.exchange_delete("declared".into(), ExchangeDeleteOptions::default()).await?;
            channel.queue_delete("declared".into(), QueueDeleteOptions::default()).await?;
        }
        "missing" => {
            if let Err(refused) = passive(channel, "missing").await {
                print_error(&refused);
            }
            hello(&connection.create_channel().await?).await?;
        }
        "inequivalent" => {
            durable(channel, "inequivalent").await?;
            declare(channel, "inequivalent", none()).await?;
        }
        "float-argument" => {
            for same in [LongInt(10), LongLongInt(10), Double(10.0)] {
                declare(channel, "float", table([("x-max-length", same)])).await?;
            }
        }
        "queue-ttl" => {
            declare(channel, "leased", table([("x-expires", LongInt(100))])).await?;
            loop {
                bind(channel, "leased", "amq.fanout", "").await?; // does not renew the lease
                pause(50).await;
            }
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
