// Publishing.
use crate::common::*;
use crate::events::Link;
use amqprs::channel::*;
use amqprs::{FieldArray, FieldTable, FieldValue};

fn array(values: Vec<FieldValue>) -> FieldValue {
    FieldValue::A(FieldArray::try_from(values).expect("a short array"))
}

fn crossing() -> FieldTable {
    table([
        ("text", "grüße".into()),
        ("number", FieldValue::I(42)),
        ("yes", true.into()),
        ("array", array(vec![FieldValue::I(1), "two".into()])),
        ("table", table([("a", "b".into())]).into()),
    ])
}

async fn confirm(link: &mut Link, queue: &str, count: u64) -> Outcome {
    durable(link, queue).await?;
    link.confirm_select(ConfirmSelectArguments::default()).await?;
    for _ in 0..count {
        send(link, queue, &["safe"]).await?;
    }
    link.await_confirms(count).await?;
    purge(link, queue).await
}

pub async fn run(name: &str, link: &mut Link) -> Outcome {
    let channel = &link.channel.clone();
    match name {
        "confirm" => confirm(link, "confirmed", 1).await?,
        "confirm-batch" => confirm(link, "batch", 1000).await?,
        "mandatory" => {
            let arguments = BasicPublishArguments::new("", "nowhere").mandatory(true).finish();
            channel.basic_publish(properties(), b"lost".to_vec(), arguments).await?;
            println!("{}", link.events.recv().await.ok_or("closed")?); // the reply code
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
                ("byte", FieldValue::b(-8)),
                ("short", FieldValue::s(-16)),
                ("int", FieldValue::I(-32)),
                ("unsigned", FieldValue::i(32)),
                ("long", FieldValue::l(1 << 40)),
                ("float", FieldValue::f(1.5)),
                ("double", FieldValue::d(2.5)),
                ("yes", true.into()),
                ("text", "grüße".into()),
                ("array", array(vec![FieldValue::I(1), table([("three", FieldValue::I(3))]).into()])),
                ("table", table([("a", table([("b", FieldValue::V)]).into())]).into()),
                ("time", FieldValue::T(1_767_323_045)),
            ]);
            declare(channel, "headers", none()).await?;
            publish(channel, "", "headers", b"", properties().with_headers(sent.clone()).finish()).await?;
            assert_eq!(get(channel, "headers").await?.1.headers(), Some(&sent));
            println!("pass");
        }
        "bodies" => {
            declare(channel, "bodies", none()).await?;
            for size in [0, 1, 131_064, 131_065, 1 << 20, 16 << 20] {
                publish(channel, "", "bodies", &vec![b'x'; size], properties()).await?;
                assert!(get(channel, "bodies").await?.2 == vec![b'x'; size]);
                println!("{size}");
            }
        }
        "write" => {
            declare(channel, "crossing", none()).await?;
            let mut made = properties();
            made.with_content_type("text/plain").with_message_id("7").with_headers(crossing());
            publish(channel, "", "crossing", &(0..=255).collect::<Vec<u8>>(), made).await?;
            passive(channel, "crossing").await?; // the broker has the message when it answers
            println!("pass");
        }
        "read" => {
            let (_, got, body) = get(channel, "crossing").await?;
            assert_eq!(body, (0..=255).collect::<Vec<u8>>());
            assert_eq!(got.content_type().map(|value| value.as_str()), Some("text/plain"));
            assert_eq!(got.message_id().map(|value| value.as_str()), Some("7"));
            let (headers, sent) = (got.headers().ok_or("no headers")?, crossing());
            assert_eq!(headers.as_ref().len(), 5);
            for key in ["text", "yes", "table"] {
                let key = key.try_into()?;
                assert_eq!(headers.get(&key), sent.get(&key));
            }
            println!("pass");
        }
        _ => {}
    }
    Ok(())
}
