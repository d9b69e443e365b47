// Streams.
use crate::common::*;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, options::BasicQosOptions};

async fn stream(channel: &Channel, name: &str, arguments: FieldTable) -> Outcome {
    declare(channel, name, table([("x-queue-type", text("stream"))])).await?;
    for n in 0..10 {
        let filter = table([("x-stream-filter-value", text(if n % 2 == 0 { "even" } else { "odd" }))]);
        publish(channel, "", name, n.to_string().as_bytes(), properties().with_headers(filter)).await?;
    }
    channel.basic_qos(10, BasicQosOptions::default()).await?;
    print(&mut consume(channel, name, false, arguments).await?, 5).await
}

pub async fn run(name: &str, channel: &Channel) -> Outcome {
    match name {
        "stream-offset" => stream(channel, "stream", table([("x-stream-offset", AMQPValue::LongLongInt(5))])).await,
        "stream-filter" => {
            let wanted = table([("x-stream-offset", text("first")), ("x-stream-filter", text("odd"))]);
            stream(channel, "filtered", wanted).await
        }
        _ => Ok(()),
    }
}
