// Connections.
use crate::common::*;
use futures_lite::StreamExt;
use lapin::{Channel, Connection, Event};

pub async fn run(name: &str, connection: &Connection, channel: &Channel) -> Outcome {
    match name {
        "connect" | "tls" | "client-certificate" => hello(channel).await?,
        "heartbeat" => {
            pause(4000).await;
            hello(channel).await?;
        }
        "channels" => {
            declare(channel, "channels", none()).await?;
            let mut opened = vec![];
            for _ in 0..100 {
                opened.push(connection.create_channel().await?);
            }
            for each in &opened {
                send(each, "channels", &["x"]).await?;
            }
            let mut consumer = consume(channel, "channels", true, none()).await?;
            for _ in 0..99 {
                next(&mut consumer).await?;
            }
            println!("{}", next(&mut consumer).await?.delivery_tag);
        }
        "blocked" => {
            let mut events = connection.events_listener();
            channel.basic_publish("".into(), "nowhere".into(), Default::default(), b"held", properties()).await?;
            while !matches!(events.next().await, Some(Event::ConnectionBlocked(reason)) if reason == "low on memory") {}
            println!("low on memory\nready"); // the runner ends the alarm
            while !matches!(events.next().await, Some(Event::ConnectionUnblocked)) {}
            println!("unblocked");
        }
        "reconnect" => {
            durable(channel, "kept").await?;
            confirms(channel).await?;
            send(channel, "kept", &["kept"]).await?;
            let mut consumer = consume(channel, "kept", false, none()).await?;
            next(&mut consumer).await?;
            println!("ready"); // the runner kills the broker and starts it again
            next(&mut consumer).await.expect_err("the connection is lost");
            let mut again = crate::common::connection("").await;
            while again.is_err() {
                pause(100).await;
                again = crate::common::connection("").await;
            }
            receive(&again?.create_channel().await?, "kept", 1).await?;
        }
        _ => {}
    }
    Ok(())
}
