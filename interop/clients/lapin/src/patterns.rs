// The patterns of RabbitMQ's tutorials.
use crate::common::*;
use futures_lite::{StreamExt, future::or};
use lapin::{Channel, ExchangeKind, options::*};
use std::collections::BTreeSet;

async fn bound(channel: &Channel, name: &str, kind: ExchangeKind, bindings: &[&str], keys: &[&str], count: usize) -> Outcome {
    exchange(channel, name, kind, none()).await?;
    let queue = declare(channel, "", none()).await?;
    for key in bindings {
        bind(channel, queue.name().as_str(), name, key).await?;
    }
    for key in keys {
        publish(channel, name, key, key.as_bytes(), properties()).await?;
    }
    receive(channel, queue.name().as_str(), count).await
}

fn fibonacci(n: u32) -> u32 {
    if n < 2 { n } else { fibonacci(n - 1) + fibonacci(n - 2) }
}

async fn rpc(channel: &Channel, callback: &str) -> Outcome {
    declare(channel, "rpc_queue", none()).await?;
    let mut requests = consume(channel, "rpc_queue", true, none()).await?;
    let mut replies = consume(channel, callback, true, none()).await?;
    let question = properties().with_reply_to(callback.into()).with_correlation_id("1".into());
    publish(channel, "", "rpc_queue", b"15", question).await?;
    let request = next(&mut requests).await?;
    let result = fibonacci(String::from_utf8(request.data)?.parse()?).to_string();
    let reply_to = request.properties.reply_to().clone().ok_or("no reply_to")?;
    let correlation_id = request.properties.correlation_id().clone().ok_or("no correlation_id")?;
    let answer = properties().with_correlation_id(correlation_id);
    publish(channel, "", reply_to.as_str(), result.as_bytes(), answer).await?;
    let reply = next(&mut replies).await?;
    let correlation_id = reply.properties.correlation_id().clone().ok_or("no correlation_id")?;
    println!("{correlation_id} {}", String::from_utf8(reply.data)?);
    Ok(())
}

pub async fn run(name: &str, channel: &Channel) -> Outcome {
    match name {
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
                done.insert(String::from_utf8(task.data)?);
                workers.insert(worker);
            }
            println!("{}\n{}", done.into_iter().collect::<String>(), workers.len());
        }
        "publish-subscribe" => {
            exchange(channel, "logs", ExchangeKind::Fanout, none()).await?;
            let queues = [declare(channel, "", none()).await?, declare(channel, "", none()).await?];
            for queue in &queues {
                bind(channel, queue.name().as_str(), "logs", "").await?;
            }
            publish(channel, "logs", "", b"log", properties()).await?;
            for queue in &queues {
                receive(channel, queue.name().as_str(), 1).await?;
            }
        }
        "routing" => {
            let levels = ["info", "warning", "error"];
            bound(channel, "direct_logs", ExchangeKind::Direct, &levels[1..], &levels, 2).await?;
        }
        "topics" => {
            let keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"];
            bound(channel, "topic_logs", ExchangeKind::Topic, &["*.critical", "kern.#"], &keys, 3).await?;
        }
        "rpc" => rpc(channel, declare(channel, "", none()).await?.name().as_str()).await?,
        "direct-reply-to" => rpc(channel, "amq.rabbitmq.reply-to").await?,
        _ => {}
    }
    Ok(())
}
