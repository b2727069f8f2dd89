//! What is paid and how its client behaves, decided by the seed and the number of the payment alone.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::chance::{Chance, Topic};

/// One payment: it is to be charged once, whatever its client does.
#[derive(Debug, Clone)]
pub(super) struct Payment {
    /// From 0 upwards.
    pub(super) number: u32,
    /// What the client sends as `Authorization`: one of a few merchants.
    pub(super) merchant: String,
    /// What the client sends as `Idempotency-Key`. Merchants number their orders alike, so that their keys collide.
    pub(super) key: String,
    /// What is to be charged.
    pub(super) order: Order,
    /// Another order that a confused client sends under the same key; it must never be charged.
    pub(super) changed: Order,
    /// How its client behaves.
    pub(super) manner: Manner,
}

/// What the body of a request asks to be charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    /// The number of the payment.
    pub(super) payment: u32,
    /// How much, in hundredths.
    pub(super) amount_cents: u64,
    /// Tells this order from every other one.
    pub(super) nonce: String,
}

/// Which order of a payment a request carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The one that is to be charged.
    Order,
    /// The other one, under the same key.
    Changed,
}

/// How a client behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Manner {
    /// Asks until it has an answer.
    Plain,
    /// Goes on asking after the answer.
    Again {
        /// How often.
        times: u32,
    },
    /// Sends the same request several times at the same moment, each on a connection of its own.
    Twins {
        /// How many.
        count: u32,
    },
    /// Sends the changed order when it has the answer.
    ChangedAfter,
    /// Sends the changed order while the first one is being charged.
    ChangedMeanwhile,
    /// Hangs up in the middle of its first request.
    HangUp(HangUp),
}

/// How a client hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HangUp {
    /// Whether the body was sent to its end.
    pub(super) sent: Sent,
    /// How long it waits before it hangs up.
    pub(super) after: Duration,
}

/// How much of a body was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// All of it.
    Whole,
    /// The first half.
    Half,
}

impl Payment {
    /// The payment of this number in the traffic of this seed.
    pub(super) fn new(seed: u64, number: u32) -> Self {
        let mut chance = Chance::new(seed, Topic::Traffic, &[number.into()]);
        Self {
            number,
            merchant: format!("Bearer merchant-{}", number % MERCHANTS),
            key: format!("order-{}", number / MERCHANTS),
            order: Order::new(number, &mut chance),
            changed: Order::new(number, &mut chance),
            manner: Manner::new(&mut chance),
        }
    }

    /// The order that a request carries.
    pub(super) fn order(&self, asked: Asked) -> &Order {
        match asked {
            Asked::Order => &self.order,
            Asked::Changed => &self.changed,
        }
    }

    /// Whether its client ever sends the changed order.
    pub(super) fn is_changed(&self) -> bool {
        matches!(self.manner, Manner::ChangedAfter | Manner::ChangedMeanwhile)
    }
}

const MERCHANTS: u32 = 4;

impl Order {
    fn new(payment: u32, chance: &mut Chance) -> Self {
        Self { payment, amount_cents: chance.between(100, 50_000), nonce: format!("{:016x}", chance.draw()) }
    }

    /// The body of the request.
    pub(super) fn body(&self) -> Bytes {
        let body = json!({
            "payment": self.payment,
            "amount_cents": self.amount_cents,
            "nonce": self.nonce,
        });
        body.to_string().into()
    }

    /// Reads a body, or anything else that echoes an order.
    pub(super) fn read(json: &serde_json::Value) -> Option<Self> {
        Some(Self {
            payment: json.get("payment")?.as_u64()?.try_into().ok()?,
            amount_cents: json.get("amount_cents")?.as_u64()?,
            nonce: json.get("nonce")?.as_str()?.to_owned(),
        })
    }
}

impl Manner {
    fn new(chance: &mut Chance) -> Self {
        match chance.between(0, 99) {
            0..=19 => Self::Plain,
            20..=44 => Self::Again { times: count(chance, 1, 3) },
            45..=64 => Self::Twins { count: count(chance, 2, 5) },
            65..=72 => Self::ChangedAfter,
            73..=79 => Self::ChangedMeanwhile,
            _ => Self::HangUp(HangUp::new(chance)),
        }
    }
}

impl HangUp {
    fn new(chance: &mut Chance) -> Self {
        Self {
            sent: match chance.between(0, 2) {
                0 => Sent::Half,
                _ => Sent::Whole,
            },
            after: Duration::from_millis(chance.between(0, 10)),
        }
    }
}

fn count(chance: &mut Chance, low: u32, high: u32) -> u32 {
    low + (chance.draw() % u64::from(high - low + 1)) as u32
}

/// What the payment service does with a request, by payment and by how many came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conduct {
    /// Charges and says so.
    Charge,
    /// Is too busy: charges nothing and says when to come back.
    Busy,
    /// Declines the card, for good.
    Decline,
    /// Charges, then fails before it can say so.
    ChargeAndFail,
}

impl Conduct {
    /// What is done with the request of this number (from 0) for a payment.
    pub(super) fn new(seed: u64, payment: u32, arrival: u32) -> Self {
        let mut chance = Chance::new(seed, Topic::Conduct, &[payment.into()]);
        match (chance.between(0, 99), arrival) {
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
    fn the_changed_order_is_another_one() {
        for number in 0..500 {
            let payment = Payment::new(1, number);
            assert_ne!(payment.order.nonce, payment.changed.nonce);
        }
    }

    #[test]
    fn every_manner_and_every_conduct_occurs() {
        let mut manners = [0; 6];
        let mut conducts = [0; 4];
        for number in 0..500 {
            let manner = match Payment::new(1, number).manner {
                Manner::Plain => 0,
                Manner::Again { .. } => 1,
                Manner::Twins { .. } => 2,
                Manner::ChangedAfter => 3,
                Manner::ChangedMeanwhile => 4,
                Manner::HangUp(_) => 5,
            };
            manners[manner] += 1;
            conducts[Conduct::new(1, number, 0) as usize] += 1;
        }
        assert!(manners.iter().all(|seen| *seen > 10), "{manners:?}");
        assert!(conducts.iter().all(|seen| *seen > 0), "{conducts:?}");
    }

    #[test]
    fn an_order_is_read_back_from_its_body() {
        let order = Payment::new(1, 1).order;
        let body = serde_json::from_slice(&order.body()).unwrap();
        assert_eq!(Order::read(&body), Some(order));
    }
}
