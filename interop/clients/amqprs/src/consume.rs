// Consuming.
use crate::common::*;
use crate::events::Link;
use amqprs::FieldValue;
use amqprs::channel::*;
use amqprs::connection::Connection;

async fn declare_dead_lettering(channel: &Channel, queue: &str, target: &str) -> Outcome {
    declare(channel, target, none()).await?;
    let arguments = table([("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", target.into())]);
    declare(channel, queue, arguments).await?;
    Ok(())
}

async fn print_death(channel: &Channel, queue: &str) -> Outcome {
    let (_, _, dead, _) = next(&mut consume(channel, queue, "", true, none()).await?).await?;
    let headers = dead.headers().ok_or("no headers")?.to_string();
    let (_, reason) = headers.split_once("reason: ").ok_or("no x-death")?;
    println!("{}", reason.split([',', ' ', '}']).next().unwrap_or_default());
    Ok(())
}

pub async fn run(name: &str, connection: &Connection, link: &mut Link) -> Outcome {
    let channel = &link.channel.clone();
    match name {
        "prefetch" => {
            declare(channel, "prefetch", none()).await?;
            send(channel, "prefetch", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await?;
            channel.basic_qos(BasicQosArguments::new(0, 3, false)).await?;
            let mut deliveries = consume(channel, "prefetch", "", false, none()).await?;
            for _ in 0..2 {
                next(&mut deliveries).await?;
            }
            let (third, ..) = next(&mut deliveries).await?;
            println!("{}", passive(channel, "prefetch").await?);
            channel.basic_ack(BasicAckArguments::new(third, true)).await?;
            print(&mut deliveries, 3).await?;
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
            for (delivered, _, body) in &got {
                println!("{} {}", str::from_utf8(body)?, delivered.redelivered());
            }
            channel.basic_reject(BasicRejectArguments::new(got[0].0.delivery_tag(), false)).await?;
            channel.basic_ack(BasicAckArguments::new(got[2].0.delivery_tag(), true)).await?;
            purge(channel, "requeue").await?;
        }
        "cancel" => {
            declare(channel, "cancel", none()).await?;
            let mut deliveries = consume(channel, "cancel", "reader", true, none()).await?;
            channel.basic_cancel(BasicCancelArguments::new("reader")).await?;
            send(channel, "cancel", &["stays"]).await?;
            purge(channel, "cancel").await?;
            assert!(deliveries.try_recv().is_err());
        }
        "broker-cancel" => {
            declare(channel, "cancelled", none()).await?;
            let _deliveries = consume(channel, "cancelled", "cancelled", true, none()).await?;
            let other = connection.open_channel(None).await?;
            other.queue_delete(QueueDeleteArguments::new("cancelled")).await?;
            println!("{}", link.events.recv().await.ok_or("closed")?); // the consumer's tag
        }
        "dead-letter" => {
            declare_dead_lettering(channel, "rejecting", "dead").await?;
            send(channel, "rejecting", &["bad"]).await?;
            let tag = get(channel, "rejecting").await?.0.delivery_tag();
            channel.basic_reject(BasicRejectArguments::new(tag, false)).await?;
            print_death(channel, "dead").await?;
        }
        "message-ttl" => {
            declare_dead_lettering(channel, "ttl", "expired").await?;
            publish(channel, "", "ttl", b"short", properties().with_expiration("50").finish()).await?;
            print_death(channel, "expired").await?;
        }
        "priority" => {
            declare(channel, "priority", table([("x-max-priority", FieldValue::I(5))])).await?;
            for level in [1, 5, 3] {
                let made = properties().with_priority(level).finish();
                publish(channel, "", "priority", level.to_string().as_bytes(), made).await?;
            }
            receive(channel, "priority", 3).await?;
        }
        "delayed" => {
            exchange(channel, "delayed", "x-delayed-message", table([("x-delayed-type", "fanout".into())])).await?;
            declare(channel, "delayed", none()).await?;
            bind(channel, "delayed", "delayed", "").await?;
            for (body, ms) in [("late", 1000), ("soon", 1)] {
                let delay = properties().with_headers(table([("x-delay", FieldValue::I(ms))])).finish();
                publish(channel, "delayed", "", body.as_bytes(), delay).await?;
            }
            receive(channel, "delayed", 2).await?;
        }
        _ => {}
    }
    Ok(())
}
