//! What the sink knows about the streams that take its subjects.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::{Context, stream};
use futures_util::TryStreamExt;
use hapax_core::Result;
use hapax_core::outbox::TopicTemplate;
use hapax_core::store::Finding;
use parking_lot::Mutex;

use crate::errors::not_applied;
use crate::sinks::{limit_finding, warning};

/// The time for which each stream recognizes a repeated id. None where the server does not tell.
#[derive(Default)]
pub(super) struct KnownStreams(Mutex<BTreeMap<String, Option<Duration>>>);

impl KnownStreams {
    /// The shortest time.
    pub(super) fn window(&self) -> Option<Duration> {
        self.0.lock().values().flatten().min().copied()
    }

    /// Reads the streams that take subjects of this template. Returns what an operator should know of them.
    pub(super) async fn read(&self, context: &Context, topic: &TopicTemplate) -> Result<Vec<Finding>> {
        let failed = |error| not_applied("JetStream does not list its streams").caused_by(error);
        let infos: Vec<stream::Info> = context.streams().try_collect().await.map_err(failed)?;
        let takes = |info: &&stream::Info| info.config.subjects.iter().any(|subject| overlaps(topic, subject));
        let taking: Vec<&stream::Info> = infos.iter().filter(takes).collect();
        let mut findings = Vec::new();
        if taking.is_empty() {
            let message = format!("no stream of JetStream takes the subjects {topic}: events wait until there is one");
            findings.push(warning(message));
        }
        for info in &taking {
            let whose = format!("the stream {} of NATS", info.config.name);
            let limit = usize::try_from(info.config.max_message_size).ok().filter(|limit| *limit > 0);
            findings.extend(limit.and_then(|limit| limit_finding(&whose, limit, "raise its max_msg_size to 1048576")));
        }
        let window = |info: &&stream::Info| (info.config.name.clone(), Some(info.config.duplicate_window));
        *self.0.lock() = taking.iter().map(window).collect();
        Ok(findings)
    }

    /// Notes that the stream has confirmed an event. Returns whether it is new.
    pub(super) fn note(&self, name: &str) -> bool {
        let mut streams = self.0.lock();
        let is_new = !streams.contains_key(name);
        if is_new {
            streams.insert(name.to_owned(), None);
        }
        is_new
    }

    /// Reads the stream.
    pub(super) async fn meet(&self, context: &Context, name: String) {
        if let Ok(stream) = context.get_stream(&name).await {
            self.0.lock().insert(name, Some(stream.cached_info().config.duplicate_window));
        }
    }
}

/// Whether a stream with this subject may take a subject of the template.
fn overlaps(topic: &TopicTemplate, subject: &str) -> bool {
    // No name has a blank, so it marks the first place.
    let pattern = topic.fill(" ", " ");
    let (known, is_whole) = match pattern.split_once(' ') {
        None => (pattern.as_str(), true),
        // The word with the place may be any.
        Some((before, _)) => (before.rsplit_once('.').map_or("", |(words, _)| words), false),
    };
    let mut words = subject.split('.');
    for known in known.split('.').filter(|known| !known.is_empty()) {
        match words.next() {
            Some(">") => return true,
            Some(word) if word == "*" || word == known => {}
            Some(_) | None => return false,
        }
    }
    if is_whole { words.next().is_none() } else { words.next().is_some() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_found_by_the_words_before_the_first_place() {
        for (template, subject, expected) in [
            ("{topic}", "orders.>", true),
            ("{topic}", "orders", true),
            ("orders.{topic}", "orders.>", true),
            ("orders.{topic}", "orders.paid", true),
            ("orders.{topic}", "*.paid", true),
            ("orders.{topic}", "orders", false),
            ("orders.{topic}", "refunds.>", false),
            ("orders-{topic}", "refunds.>", true),
            ("orders.paid", "orders.*", true),
            ("orders.paid", "orders.paid.late", false),
            ("orders.paid", "orders.paid", true),
            ("orders.paid", ">", true),
        ] {
            assert_eq!(overlaps(&template.parse().unwrap(), subject), expected, "{template} in {subject}");
        }
    }
}
