// Consuming.
use crate::common::*;
use futures_lite::StreamExt;
use lapin::types::AMQPValue;
use lapin::{Channel, Connection, ExchangeKind, options::*};

async fn declare_dead_lettering(channel: &Channel, queue: &str, target: &str) -> Outcome {
    declare(channel, target, none()).await?;
    let arguments = table([("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(target))]);
    declare(channel, queue, arguments).await?;
    Ok(())
}

async fn print_death(channel: &Channel, queue: &str) -> Outcome {
    let dead = next(&mut consume(channel, queue, true, none()).await?).await?;
    let headers = dead.properties.headers().clone().ok_or("no headers")?;
    let deaths = headers.inner().get("x-death").and_then(AMQPValue::as_array).ok_or("no x-death")?;
    let last = deaths.as_slice()[0].as_field_table().ok_or("no table")?;
    println!("{}", last.inner().get("reason").and_then(AMQPValue::as_long_string).ok_or("no reason")?);
    Ok(())
}

pub async fn run(name: &str, connection: &Connection, channel: &Channel) -> Outcome {
    match name {
        "prefetch" => {
            declare(channel, "prefetch", none()).await?;
            send(channel, "prefetch", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await?;
            channel.basic_qos(3, BasicQosOptions::default()).await?;
            let mut consumer = consume(channel, "prefetch", false, none()).await?;
            next(&mut consumer).await?;
            next(&mut consumer).await?;
            let third = next(&mut consumer).await?;
            println!("{}", passive(channel, "prefetch").await?.message_count());
            third.ack(BasicAckOptions { multiple: true }).await?;
            print(&mut consumer, 3).await?;
        }
        "requeue" => {
            declare(channel, "requeue", none()).await?;
            send(channel, "requeue", &["1", "2", "3"]).await?;
            get(channel, "requeue").await?;
            get(channel, "requeue").await?;
            let last = get(channel, "requeue").await?;
            last.delivery.nack(BasicNackOptions { multiple: true, requeue: true }).await?;
            let got = [get(channel, "requeue").await?, get(channel, "requeue").await?, get(channel, "requeue").await?];
            for message in &got {
                println!("{} {}", str::from_utf8(&message.delivery.data)?, message.delivery.redelivered);
            }
            got[0].delivery.reject(BasicRejectOptions { requeue: false }).await?;
            got[2].delivery.ack(BasicAckOptions { multiple: true }).await?;
            purge(channel, "requeue").await?;
        }
        "cancel" => {
            declare(channel, "cancel", none()).await?;
            let mut consumer = consume(channel, "cancel", true, none()).await?;
            channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await?;
            send(channel, "cancel", &["stays"]).await?;
            assert!(consumer.next().await.is_none());
            purge(channel, "cancel").await?;
        }
        "broker-cancel" => {
            declare(channel, "cancelled", none()).await?;
            let mut consumer = consume(channel, "cancelled", true, none()).await?;
            let other = connection.create_channel().await?;
            other.queue_delete("cancelled".into(), QueueDeleteOptions::default()).await?;
            assert!(consumer.next().await.is_none()); // the stream ends
            println!("cancelled");
        }
        "dead-letter" => {
            declare_dead_lettering(channel, "rejecting", "dead").await?;
            send(channel, "rejecting", &["bad"]).await?;
            get(channel, "rejecting").await?.delivery.reject(BasicRejectOptions { requeue: false }).await?;
            print_death(channel, "dead").await?;
        }
        "message-ttl" => {
            declare_dead_lettering(channel, "ttl", "expired").await?;
            publish(channel, "", "ttl", b"short", properties().with_expiration("50".into())).await?;
            print_death(channel, "expired").await?;
        }
        "priority" => {
            declare(channel, "priority", table([("x-max-priority", AMQPValue::LongInt(5))])).await?;
            for level in [1, 5, 3] {
                let body = level.to_string();
                publish(channel, "", "priority", body.as_bytes(), properties().with_priority(level)).await?;
            }
            receive(channel, "priority", 3).await?;
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
            receive(channel, "delayed", 2).await?;
        }
        _ => {}
    }
    Ok(())
}
