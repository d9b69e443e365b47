// Connections.
use crate::common::*;
use crate::events::Link;
use amqprs::channel::ConfirmSelectArguments;
use amqprs::connection::Connection;

pub async fn run(name: &str, connection: &Connection, link: &mut Link) -> Outcome {
    let channel = &link.channel.clone();
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
                opened.push(connection.open_channel(None).await?);
            }
            for each in &opened {
                send(each, "channels", &["x"]).await?;
            }
            let mut deliveries = consume(channel, "channels", "", true, none()).await?;
            for _ in 0..99 {
                next(&mut deliveries).await?;
            }
            println!("{}", next(&mut deliveries).await?.0); // the delivery tag
        }
        "blocked" => println!("not offered: amqprs does not ask for connection.blocked"),
        "reconnect" => {
            durable(channel, "kept").await?;
            channel.confirm_select(ConfirmSelectArguments::default()).await?;
            send(channel, "kept", &["kept"]).await?;
            link.await_confirms(1).await?;
            let mut deliveries = consume(channel, "kept", "", false, none()).await?;
            next(&mut deliveries).await?;
            println!("ready"); // the runner kills the broker and starts it again
            connection.listen_network_io_failure().await;
            let mut again = crate::common::connection(None).await;
            while again.is_err() {
                pause(100).await;
                again = crate::common::connection(None).await;
            }
            receive(&again?.open_channel(None).await?, "kept", 1).await?;
        }
        _ => {}
    }
    Ok(())
}
