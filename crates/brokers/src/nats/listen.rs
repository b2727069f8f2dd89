//! Begins to listen, and begins again after a cut: a request without an end, because the connection was lost, its
//! driver has died, or JetStream fell silent. Whatever the server sends for that request from then on is not heard.

use std::sync::Arc;

use async_nats::Subscriber;
use async_nats::jetstream::consumer::{self, Consumer, pull};
use hapax_core::Result;
use hapax_core::runtime::Runtime;

use super::connect;
use super::driver::Driver;
use super::hold::{Here, Survey};
use super::message;
use super::unreadable::{self, Search, StoredMessages};
use crate::errors::not_applied;

/// The subscription and the state of the consumer with which a source begins.
pub(super) struct Beginning {
    pub(super) driver: Arc<Driver>,
    /// What the server said about the durable consumer first.
    pub(super) info: consumer::Info,
    pub(super) here: Here,
    pub(super) is_ordered: bool,
    /// After a cut: where to search for messages that cannot be read.
    pub(super) search_from: Option<u64>,
    pub(super) runtime: Arc<dyn Runtime>,
}

/// A subscription to answers, on which nothing was asked yet.
pub(super) struct Listening {
    pub(super) consumer: Consumer<pull::Config>,
    pub(super) info: consumer::Info,
    pub(super) inbox: String,
    pub(super) subscriber: Subscriber,
    /// How often the connection had been made.
    pub(super) connects: u64,
    pub(super) search: Search,
    /// None without an order.
    pub(super) survey: Option<Survey>,
}

impl Beginning {
    /// # Errors
    /// `NotApplied` if JetStream does not reply, `Unusable` if the consumer is gone.
    pub(super) async fn listen(self) -> Result<Listening> {
        let context = self.driver.context().await?;
        let (client, connects) = (self.driver.client(), self.driver.connects());
        let consumer = Consumer::new(pull::Config::default(), self.info, context.clone());
        let info = connect::info(&consumer).await?;
        let mut search = Search { next: self.search_from.unwrap_or_default(), found: Vec::new(), failure: None };
        if self.search_from.is_some() {
            let (denials, runtime) = (self.driver.denials(), Arc::clone(&self.runtime));
            let here = self.here.lock().clone();
            search = search.run(&StoredMessages { context, denials, runtime }, &here, &info).await;
            for found in &search.found {
                unreadable::keep(&client, message::handle(&info, found.sequence)).await;
            }
        }
        let survey = match self.is_ordered {
            true => Some(Survey::make(&consumer, &self.here, &self.runtime).await?),
            false => None,
        };
        let inbox = client.new_inbox();
        let subscribed = client.subscribe(format!("{inbox}.*")).await;
        let subscriber =
            subscribed.map_err(|error| not_applied("cannot subscribe at the NATS server").caused_by(error))?;
        Ok(Listening { consumer, info, inbox, subscriber, connects, search, survey })
    }
}
