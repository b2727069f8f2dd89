//! Reads the answers to a pull request: messages, and status lines without a message.

use async_nats::{Message, StatusCode};
use hapax_core::{Error, Result};

use super::{PulledItem, Puller};
use crate::errors::{not_applied, unusable};
use crate::nats::pump::Arrived;
use crate::nats::{connect, message};

/// A status line without a message.
enum Status {
    StillThere,
    Ended,
    TooLarge,
    /// No server of JetStream has received the request.
    Unheard,
    Failed(Error),
}

impl Puller {
    /// Finds the message, unless the answer is about the request.
    pub(super) fn judge(&mut self, arrived: Arrived) -> Result<()> {
        self.heard = arrived.at;
        // A stored message may begin with a status line, too. Only a delivery has a subject for acknowledgements.
        let status = arrived.message.status.filter(|_| !message::is_delivery(&arrived.message));
        let Some(status) = status.filter(|status| *status != StatusCode::OK) else {
            self.open = self.open.saturating_sub(1);
            self.is_too_large = false;
            self.losses.arrived();
            if let Some(read) = message::acknowledged(&arrived.message) {
                self.lost_alone.arrived(read.number);
            }
            self.receive(arrived);
            return Ok(());
        };
        let request = arrived.message.subject.rsplit('.').next().and_then(|number| number.parse().ok());
        if request != Some(self.request) {
            return Ok(());
        }
        match read_status(status, &arrived.message) {
            Status::StillThere => {}
            Status::Ended => {
                self.open = 0;
                self.lost_alone.asked(0);
                if self.hold.as_ref().is_some_and(|hold| hold.ends_with(self.asked)) {
                    self.end_hold();
                }
            }
            Status::TooLarge => {
                (self.open, self.is_too_large) = (0, true);
                self.lost_alone.asked(0);
            }
            Status::Unheard => {
                self.cut();
                return Err(not_applied("JetStream does not reply"));
            }
            Status::Failed(error) => {
                self.cut();
                return Err(error);
            }
        }
        Ok(())
    }

    fn receive(&mut self, arrived: Arrived) {
        // The server may have sent it to a new connection for a request of the lost one. Earlier ones may be missing.
        if self.is_ordered && self.listener.as_ref().is_some_and(|listener| listener.connects != arrived.connects) {
            return self.found.push_back(PulledItem::Early(arrived));
        }
        let Some(hold) = &mut self.hold else { return self.found.push_back(PulledItem::Message(arrived)) };
        let is_new = message::acknowledged(&arrived.message).is_some_and(|read| hold.is_new(read.sequence));
        if is_new && hold.ends_with(self.asked) {
            self.end_hold();
            return self.found.push_back(PulledItem::Message(arrived));
        }
        if is_new {
            hold.note_new();
        } else {
            self.lost_alone.came_again(arrived.at, connect::lease(&self.info.config));
        }
        // Also one that is sent again: the lease of an earlier one may end later, as each is extended by itself.
        self.found.push_back(PulledItem::Early(arrived));
    }
}

fn read_status(status: StatusCode, message: &Message) -> Status {
    let said = message.description.as_deref().unwrap_or_default();
    match status {
        StatusCode::IDLE_HEARTBEAT => Status::StillThere,
        StatusCode::NOT_FOUND | StatusCode::TIMEOUT => Status::Ended,
        StatusCode::NO_RESPONDERS => Status::Unheard,
        _ if said.contains("Batch Completed") => Status::Ended,
        _ if said.contains("Message Size Exceeds MaxBytes") => Status::TooLarge,
        _ if said.contains("Consumer Deleted") => Status::Failed(connect::gone()),
        _ if said.contains("Consumer is push based") => Status::Failed(unusable("the consumer is not a pull consumer")),
        StatusCode::REQUEST_TERMINATED => {
            Status::Failed(not_applied(format!("the NATS server ends a request: {said}")))
        }
        _ => Status::Failed(not_applied(format!("the NATS server refuses a request: {status} {said}"))),
    }
}
