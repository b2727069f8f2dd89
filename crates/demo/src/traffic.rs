//! The payments and the behaviour of clients and service. All of it follows from the seed and the number of a payment.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::random::{RandomStream, RandomTopic};

/// One payment. It must be charged once, however its client behaves.
#[derive(Debug, Clone)]
pub(super) struct Payment {
    /// The number of the payment, from 0.
    pub(super) number: u32,
    /// The `Authorization` field: one of a few merchants.
    pub(super) merchant: String,
    /// The `Idempotency-Key` field. All merchants use the same keys, so that the gateway has to keep tenants apart.
    pub(super) key: String,
    /// The order to charge.
    pub(super) order: PaymentOrder,
    /// Another order that a faulty client sends under the same key. It must never be charged.
    pub(super) changed: PaymentOrder,
    /// The behaviour of the client.
    pub(super) behavior: ClientBehavior,
    /// Set for a client that closes its connection during its only request and never asks again.
    pub(super) leaves: Option<HangUp>,
}

/// The order in the body of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PaymentOrder {
    /// The number of the payment.
    pub(super) payment: u32,
    /// The amount in cents.
    pub(super) amount_cents: u64,
    /// A value that no other order has.
    pub(super) nonce: String,
}

/// The order that a request sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrderVersion {
    /// The order that must be charged.
    Original,
    /// The other order, under the same key.
    Changed,
}

/// The behaviour of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientBehavior {
    /// Retries until it gets a final response.
    Plain,
    /// Repeats the request after the final response.
    Again {
        /// The number of repetitions.
        times: u32,
    },
    /// Sends the same request several times at once, each on its own connection.
    Concurrent {
        /// The number of requests.
        count: u32,
    },
    /// Sends the changed order after the final response.
    ChangedAfter,
    /// Sends the changed order while the original one is charged.
    ChangedMeanwhile,
    /// Closes the connection during its first request.
    HangUp(HangUp),
}

/// How a client closes its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HangUp {
    /// The part of the body that is sent before.
    pub(super) part: SentPart,
    /// The pause before the client closes the connection.
    pub(super) pause: Duration,
}

/// The part of a body that a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SentPart {
    /// The whole body.
    Whole,
    /// The first half of it.
    Half,
}

impl Payment {
    /// Creates the payment with this number in the traffic of this seed.
    pub(super) fn new(seed: u64, number: u32) -> Self {
        let mut random = RandomStream::new(seed, RandomTopic::Traffic, &[number.into()]);
        Self {
            number,
            merchant: format!("Bearer merchant-{}", number % MERCHANTS),
            key: format!("order-{}", number / MERCHANTS),
            order: PaymentOrder::new(number, &mut random),
            changed: PaymentOrder::new(number, &mut random),
            behavior: ClientBehavior::new(&mut random),
            leaves: HangUp::of_a_leaver(seed, number),
        }
    }

    /// Returns the order that a request sends.
    pub(super) fn order(&self, version: OrderVersion) -> &PaymentOrder {
        match version {
            OrderVersion::Original => &self.order,
            OrderVersion::Changed => &self.changed,
        }
    }

    /// Whether the client sends the changed order at some time.
    pub(super) fn has_changed_order(&self) -> bool {
        matches!(self.behavior, ClientBehavior::ChangedAfter | ClientBehavior::ChangedMeanwhile)
    }
}

const MERCHANTS: u32 = 4;

impl PaymentOrder {
    fn new(payment: u32, random: &mut RandomStream) -> Self {
        Self { payment, amount_cents: random.in_range(100, 50_000), nonce: format!("{:016x}", random.next_number()) }
    }

    /// Returns the body of the request.
    pub(super) fn body(&self) -> Bytes {
        self.fields().to_string().into()
    }

    /// The order as JSON, with an id under this name.
    pub(super) fn json(&self, name: &str, id: i64) -> serde_json::Value {
        let mut json = self.fields();
        json[name] = id.into();
        json
    }

    fn fields(&self) -> serde_json::Value {
        json!({ "payment": self.payment, "amount_cents": self.amount_cents, "nonce": self.nonce })
    }

    /// Reads the order in a request body, a receipt or a line of the log.
    pub(super) fn read(json: &serde_json::Value) -> Option<Self> {
        Some(Self {
            payment: json.get("payment")?.as_u64()?.try_into().ok()?,
            amount_cents: json.get("amount_cents")?.as_u64()?,
            nonce: json.get("nonce")?.as_str()?.to_owned(),
        })
    }
}

impl ClientBehavior {
    fn new(random: &mut RandomStream) -> Self {
        match random.in_range(0, 99) {
            0..=19 => Self::Plain,
            20..=44 => Self::Again { times: count(random, 1, 3) },
            45..=64 => Self::Concurrent { count: count(random, 2, 5) },
            65..=72 => Self::ChangedAfter,
            73..=79 => Self::ChangedMeanwhile,
            _ => Self::HangUp(HangUp::new(random)),
        }
    }
}

impl HangUp {
    /// Every fortieth client leaves.
    fn of_a_leaver(seed: u64, number: u32) -> Option<Self> {
        let mut random = RandomStream::new(seed, RandomTopic::Leaving, &[number.into()]);
        random.next_number().is_multiple_of(40).then(|| Self::new(&mut random))
    }

    fn new(random: &mut RandomStream) -> Self {
        Self {
            part: match random.in_range(0, 2) {
                0 => SentPart::Half,
                _ => SentPart::Whole,
            },
            pause: Duration::from_millis(random.in_range(0, 10)),
        }
    }
}

fn count(random: &mut RandomStream, low: u32, high: u32) -> u32 {
    low + (random.next_number() % u64::from(high - low + 1)) as u32
}

/// The payment service's reaction to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceBehavior {
    /// Charges and responds with a receipt.
    Charge,
    /// Responds 503 with Retry-After and charges nothing.
    Busy,
    /// Declines the card permanently.
    Decline,
    /// Charges, then responds 500.
    ChargeAndFail,
}

impl ServiceBehavior {
    /// Returns the behaviour for one request for a payment. `arrival` counts the requests for that payment from 0.
    pub(super) fn new(seed: u64, payment: u32, arrival: u32) -> Self {
        let mut random = RandomStream::new(seed, RandomTopic::ServiceBehavior, &[payment.into()]);
        // Only the first request is busy or fails, so that a retry can succeed.
        match (random.in_range(0, 99), arrival) {
            (0..=1, 0) => Self::Busy,
            (2..=3, _) => Self::Decline,
            (4, 0) => Self::ChargeAndFail,
            _ => Self::Charge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payment_follows_from_seed_and_number() {
        let show = |seed, number| format!("{:?}", Payment::new(seed, number));
        assert_eq!(show(7, 3), show(7, 3));
        assert_ne!(show(7, 3), show(8, 3));
    }

    #[test]
    fn the_changed_order_differs() {
        for number in 0..500 {
            let payment = Payment::new(1, number);
            assert_ne!(payment.order.nonce, payment.changed.nonce);
        }
    }

    #[test]
    fn every_behavior_occurs() {
        let mut clients = [0; 6];
        let mut services = [0; 4];
        for number in 0..500 {
            let client = match Payment::new(1, number).behavior {
                ClientBehavior::Plain => 0,
                ClientBehavior::Again { .. } => 1,
                ClientBehavior::Concurrent { .. } => 2,
                ClientBehavior::ChangedAfter => 3,
                ClientBehavior::ChangedMeanwhile => 4,
                ClientBehavior::HangUp(_) => 5,
            };
            clients[client] += 1;
            services[ServiceBehavior::new(1, number, 0) as usize] += 1;
        }
        assert!(clients.iter().all(|seen| *seen > 10), "{clients:?}");
        assert!(services.iter().all(|seen| *seen > 0), "{services:?}");
    }

    #[test]
    fn an_order_is_read_back_from_its_body() {
        let order = Payment::new(1, 1).order;
        let body = serde_json::from_slice(&order.body()).unwrap();
        assert_eq!(PaymentOrder::read(&body), Some(order));
    }
}
