// Publishing.
use crate::common::*;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use lapin::{Channel, options::*};

fn crossing() -> FieldTable {
    table([
        ("text", text("grüße")),
        ("number", AMQPValue::LongInt(42)),
        ("yes", AMQPValue::Boolean(true)),
        ("array", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(1), text("two")]))),
        ("table", AMQPValue::FieldTable(table([("a", text("b"))]))),
    ])
}

async fn confirm(channel: &Channel, queue: &str, count: usize) -> Outcome {
    durable(channel, queue).await?;
    confirms(channel).await?;
    let (options, persistent) = (BasicPublishOptions::default(), properties().with_delivery_mode(2));
    let mut waiting = vec![];
    for _ in 0..count {
        waiting.push(channel.basic_publish("".into(), queue.into(), options, b"x", persistent.clone()).await?);
    }
    for confirm in waiting {
        assert!(confirm.await?.is_ack());
    }
    purge(channel, queue).await
}

pub async fn run(name: &str, channel: &Channel) -> Outcome {
    match name {
        "confirm" => confirm(channel, "confirmed", 1).await?,
        "confirm-batch" => confirm(channel, "batch", 1000).await?,
        "mandatory" => {
            confirms(channel).await?;
            let options = BasicPublishOptions { mandatory: true, ..Default::default() };
            let sent = channel.basic_publish("".into(), "nowhere".into(), options, b"lost", properties());
            println!("{}", sent.await?.await?.take_message().ok_or("not returned")?.reply_code);
        }
        "tx" => {
            declare(channel, "tx", none()).await?;
            channel.tx_select().await?;
            send(channel, "tx", &["no"]).await?;
            channel.tx_rollback().await?;
            send(channel, "tx", &["yes"]).await?;
            channel.tx_commit().await?;
            receive(channel, "tx", 1).await?;
        }
        "headers" => {
            let sent = table([
                ("text", text("grüße")),
                ("yes", AMQPValue::Boolean(true)),
                ("nothing", AMQPValue::Void),
                ("i8", AMQPValue::ShortShortInt(-8)),
                ("u8", AMQPValue::ShortShortUInt(200)),
                ("i16", AMQPValue::ShortInt(-16)),
                ("u16", AMQPValue::ShortUInt(60_000)),
                ("i32", AMQPValue::LongInt(-32)),
                ("u32", AMQPValue::LongUInt(4_000_000_000)),
                ("i64", AMQPValue::LongLongInt(1 << 40)),
                ("f32", AMQPValue::Float(1.5)),
                ("f64", AMQPValue::Double(2.5)),
                ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
                ("time", AMQPValue::Timestamp(1_767_323_045)),
                ("bytes", AMQPValue::ByteArray(vec![0, 255].into())),
                ("crossing", AMQPValue::FieldTable(crossing())),
            ]);
            declare(channel, "headers", none()).await?;
            publish(channel, "", "headers", b"", properties().with_headers(sent.clone())).await?;
            assert_eq!(get(channel, "headers").await?.delivery.properties.headers(), &Some(sent));
            println!("pass");
        }
        "bodies" => {
            declare(channel, "bodies", none()).await?;
            for size in [0, 1, 131_064, 131_065, 1 << 20, 16 << 20] {
                let body = vec![b'x'; size];
                publish(channel, "", "bodies", &body, properties()).await?;
                assert!(get(channel, "bodies").await?.delivery.data == body);
                println!("{size}");
            }
        }
        "write" => {
            declare(channel, "crossing", none()).await?;
            let made = properties().with_content_type("text/plain".into()).with_message_id("7".into());
            let body: Vec<u8> = (0..=255).collect();
            confirms(channel).await?;
            publish(channel, "", "crossing", &body, made.with_headers(crossing())).await?;
            println!("pass");
        }
        "read" => {
            let got = next(&mut consume(channel, "crossing", true, none()).await?).await?;
            assert_eq!(got.data, (0..=255).collect::<Vec<u8>>());
            assert_eq!(got.properties.content_type().as_ref().map(|value| value.as_str()), Some("text/plain"));
            assert_eq!(got.properties.message_id().as_ref().map(|value| value.as_str()), Some("7"));
            let headers = got.properties.headers().clone().ok_or("no headers")?;
            assert_eq!(headers.inner().len(), 5);
            for key in ["text", "yes", "table"] {
                assert_eq!(headers.inner().get(key), crossing().inner().get(key));
            }
            println!("pass");
        }
        _ => {}
    }
    Ok(())
}
