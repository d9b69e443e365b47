// What the broker reports about a channel.
use crate::common::{Answer, Outcome};
use amqprs::callbacks::ChannelCallback;
use amqprs::channel::Channel;
use amqprs::connection::Connection;
use amqprs::{Ack, BasicProperties, Cancel, CloseChannel, Nack, Return};
use async_trait::async_trait;
use std::{collections::BTreeSet, ops::Deref};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Hands what the broker reports to the program.
struct Events(UnboundedSender<String>);

impl Events {
    fn tell(&self, event: String) {
        self.0.send(event).ok(); // an error if the program has ended
    }
}

#[async_trait]
impl ChannelCallback for Events {
    async fn close(&mut self, _: &Channel, close: CloseChannel) -> Answer {
        self.tell(close.to_string());
        Ok(())
    }
    async fn cancel(&mut self, _: &Channel, cancel: Cancel) -> Answer {
        self.tell(cancel.consumer_tag().clone());
        Ok(())
    }
    async fn flow(&mut self, _: &Channel, _: bool) -> Answer<bool> {
        Ok(true)
    }
    async fn publish_ack(&mut self, _: &Channel, ack: Ack) {
        self.tell(format!("{}{}", if ack.mutiple() { "up to " } else { "" }, ack.delivery_tag()));
    }
    async fn publish_nack(&mut self, _: &Channel, _: Nack) {
        self.tell("nack".into());
    }
    async fn publish_return(&mut self, _: &Channel, returned: Return, _: BasicProperties, _: Vec<u8>) {
        self.tell(returned.reply_code().to_string());
    }
}

/// A channel and what the broker reports about it.
pub struct Link {
    pub channel: Channel,
    pub events: UnboundedReceiver<String>,
}

impl Deref for Link {
    type Target = Channel;
    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl Link {
    pub async fn open(connection: &Connection) -> Answer<Link> {
        let channel = connection.open_channel(None).await?;
        let (sender, events) = unbounded_channel();
        channel.register_callback(Events(sender)).await?;
        Ok(Link { channel, events })
    }

    /// Prints why the broker refused a call: the callback is told, not the caller.
    pub async fn print_refusal<T>(&mut self, answer: Answer<T>) -> Outcome {
        assert!(answer.is_err(), "not refused");
        println!("{}", self.events.recv().await.ok_or("no reason")?);
        Ok(())
    }

    pub async fn await_confirms(&mut self, count: u64) -> Outcome {
        let mut confirmed = BTreeSet::new();
        while confirmed.len() < count as usize {
            let event = self.events.recv().await.ok_or("closed")?;
            match event.strip_prefix("up to ") {
                Some(last) => confirmed.extend(1..=last.parse()?),
                None => confirmed.extend([event.parse::<u64>()?]),
            }
        }
        Ok(())
    }
}
