// Streams.
use crate::common::*;
use amqprs::channel::{BasicQosArguments, Channel};
use amqprs::{FieldTable, FieldValue};

async fn stream(channel: &Channel, name: &str, arguments: FieldTable) -> Outcome {
    declare(channel, name, table([("x-queue-type", "stream".into())])).await?;
    for n in 0..10 {
        let filter = table([("x-stream-filter-value", if n % 2 == 0 { "even" } else { "odd" }.into())]);
        publish(channel, "", name, n.to_string().as_bytes(), properties().with_headers(filter).finish()).await?;
    }
    channel.basic_qos(BasicQosArguments::new(0, 10, false)).await?;
    print(&mut consume(channel, name, "", false, arguments).await?, 5).await
}

pub async fn run(name: &str, channel: &Channel) -> Outcome {
    match name {
        "stream-offset" => stream(channel, "stream", table([("x-stream-offset", FieldValue::l(5))])).await?,
        "stream-filter" => {
            let wanted = table([("x-stream-offset", "first".into()), ("x-stream-filter", "odd".into())]);
            stream(channel, "filtered", wanted).await?;
        }
        _ => {}
    }
    Ok(())
}
