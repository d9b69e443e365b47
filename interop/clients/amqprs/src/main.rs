// amqprs: the scenarios of ../README.md.
mod common;
mod connect;
mod consume;
mod events;
mod patterns;
mod publish;
mod streams;
mod topology;

use common::Outcome;
use events::Link;

async fn run(name: &str) -> Outcome {
    let connection = common::connection(if name == "heartbeat" { Some(1) } else { None }).await?;
    let mut link = Link::open(&connection).await?;
    connect::run(name, &connection, &mut link).await?;
    topology::run(name, &connection, &mut link).await?;
    publish::run(name, &mut link).await?;
    consume::run(name, &connection, &mut link).await?;
    patterns::run(name, &link).await?;
    streams::run(name, &link).await?;
    connection.close().await.ok(); // an error if the broker has closed a channel
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let name = std::env::args().nth(1).ok_or("usage: amqprs-program SCENARIO")?;
    if name == "version" {
        let lock = include_str!("../../Cargo.lock").split("name = \"amqprs\"\nversion = \"").nth(1).ok_or("no version")?;
        println!("{}", lock.split('"').next().unwrap_or_default());
    } else if let Err(refused) = run(&name).await {
        println!("error: {refused}");
        if name == "bad-password" {
            println!("pass"); // the broker gives no reason to this client
        }
    }
    Ok(())
}
