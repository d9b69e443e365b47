// lapin: the scenarios of ../README.md.
mod common;
mod connect;
mod consume;
mod patterns;
mod publish;
mod streams;
mod topology;

use common::{Outcome, connection, print_error};

async fn run(name: &str) -> Outcome {
    let connection = connection(if name == "heartbeat" { "?heartbeat=1" } else { "" }).await?;
    let channel = connection.create_channel().await?;
    connect::run(name, &connection, &channel).await?;
    topology::run(name, &connection, &channel).await?;
    publish::run(name, &channel).await?;
    consume::run(name, &connection, &channel).await?;
    patterns::run(name, &channel).await?;
    streams::run(name, &channel).await?;
    connection.close(200, "".into()).await.ok(); // an error if a dropped channel is still closing
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let name = std::env::args().nth(1).ok_or("usage: lapin-program SCENARIO")?;
    if name == "version" {
        let lock = include_str!("../../Cargo.lock").split("name = \"lapin\"\nversion = \"").nth(1).ok_or("no version")?;
        println!("{}", lock.split('"').next().unwrap_or_default());
    } else if let Err(refused) = run(&name).await {
        print_error(refused.as_ref());
    }
    Ok(())
}
