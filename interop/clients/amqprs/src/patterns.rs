// The patterns of RabbitMQ's tutorials.
use crate::common::*;
use amqprs::channel::*;
use std::collections::BTreeSet;

async fn bound(channel: &Channel, name: &str, kind: &str, bindings: &[&str], keys: &[&str], count: usize) -> Outcome {
    exchange(channel, name, kind, none()).await?;
    let (queue, _) = declare(channel, "", none()).await?;
    for key in bindings {
        bind(channel, &queue, name, key).await?;
    }
    for key in keys {
        publish(channel, name, key, key.as_bytes(), properties()).await?;
    }
    receive(channel, &queue, count).await
}

fn fibonacci(n: u32) -> u32 {
    if n < 2 { n } else { fibonacci(n - 1) + fibonacci(n - 2) }
}

async fn rpc(channel: &Channel, callback: &str) -> Outcome {
    declare(channel, "rpc_queue", none()).await?;
    let mut requests = consume(channel, "rpc_queue", "", true, none()).await?;
    let mut replies = consume(channel, callback, "", true, none()).await?;
    let question = properties().with_reply_to(callback).with_correlation_id("1").finish();
    publish(channel, "", "rpc_queue", b"15", question).await?;
    let (_, _, request, body) = next(&mut requests).await?;
    let result = fibonacci(String::from_utf8(body)?.parse()?).to_string();
    let answer = properties().with_correlation_id(request.correlation_id().ok_or("no correlation_id")?).finish();
    publish(channel, "", request.reply_to().ok_or("no reply_to")?, result.as_bytes(), answer).await?;
    let (_, _, reply, body) = next(&mut replies).await?;
    println!("{} {}", reply.correlation_id().ok_or("no correlation_id")?, String::from_utf8(body)?);
    Ok(())
}

pub async fn run(name: &str, channel: &Channel) -> Outcome {
    match name {
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
                done.insert(String::from_utf8(task.content.unwrap_or_default())?);
                workers.insert(worker);
            }
            println!("{}\n{}", done.into_iter().collect::<String>(), workers.len());
        }
        "publish-subscribe" => {
            exchange(channel, "logs", "fanout", none()).await?;
            let queues = [declare(channel, "", none()).await?.0, declare(channel, "", none()).await?.0];
            for queue in &queues {
                bind(channel, queue, "logs", "").await?;
            }
            publish(channel, "logs", "", b"log", properties()).await?;
            for queue in &queues {
                receive(channel, queue, 1).await?;
            }
        }
        "routing" => {
            let levels = ["info", "warning", "error"];
            bound(channel, "direct_logs", "direct", &levels[1..], &levels, 2).await?;
        }
        "topics" => {
            let keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"];
            bound(channel, "topic_logs", "topic", &["*.critical", "kern.#"], &keys, 3).await?;
        }
        "rpc" => rpc(channel, &declare(channel, "", none()).await?.0).await?,
        "direct-reply-to" => rpc(channel, "amq.rabbitmq.reply-to").await?,
        _ => {}
    }
    Ok(())
}
