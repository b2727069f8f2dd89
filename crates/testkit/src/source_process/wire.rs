//! Lines of JSON, with the types of the seam spelled out: those have no form outside of a process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{
    Acknowledges, BrokerLease, Capability, Coordinates, Delivery, DeliveryId, Event, Lane, Message, Position, Room,
    Settlement,
};
use hapax_core::{Error, ErrorKind, Timestamp};
use serde::{Deserialize, Serialize};

/// What the parent process asks for.
#[derive(Serialize, Deserialize)]
pub(super) enum Ask {
    Next(SentRoom),
    Settle(u64, Vec<(SentId, SentSettlement)>),
    Leave(u64, Vec<SentLane>),
    Lag(u64),
    Stop(u64),
    Close(u64),
}

/// What the child process tells. Numbers name the question.
#[derive(Serialize, Deserialize)]
pub(super) enum Tell {
    Opened { name: String, capability: SentCapability },
    Event(Result<SentEvent, SentError>),
    Settled(u64, Vec<Result<(), SentError>>),
    Done(u64, Result<(), SentError>),
    Lag(u64, Result<Option<u64>, SentError>),
}

impl Ask {
    pub(super) fn line(&self) -> Vec<u8> {
        line(self)
    }
}

impl Tell {
    pub(super) fn line(&self) -> Vec<u8> {
        line(self)
    }
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("everything here has a form in JSON");
    line.push(b'\n');
    line
}

/// Messages, bytes, closed lanes.
#[derive(Serialize, Deserialize)]
pub(super) struct SentRoom(usize, usize, Vec<SentLane>);

#[derive(Serialize, Deserialize)]
pub(super) struct SentLane(String, u32, u64);

#[derive(Serialize, Deserialize)]
pub(super) struct SentId(SentLane, u64, Vec<u8>);

#[derive(Serialize, Deserialize)]
pub(super) enum SentSettlement {
    Ack,
    Retry(Duration),
    Extend(Duration),
    UpTo,
}

#[derive(Serialize, Deserialize)]
pub(super) enum SentEvent {
    Deliveries(Vec<SentDelivery>),
    Revoking(Vec<SentLane>, Duration),
    Lost(Vec<SentLane>),
}

#[derive(Serialize, Deserialize)]
pub(super) struct SentDelivery {
    id: SentId,
    attempt: Option<u32>,
    /// The boot-time clock is the same in all processes.
    leased_until: Option<Duration>,
    payload: Vec<u8>,
    headers: Vec<(String, Vec<u8>)>,
    ordering_key: Option<Vec<u8>>,
    coordinates: Option<(String, u32, SentPosition)>,
    timestamp: Option<u64>,
    damage: Option<String>,
}

#[derive(Serialize, Deserialize)]
enum SentPosition {
    Number(u64),
    Id(Vec<u8>),
}

#[derive(Serialize, Deserialize)]
pub(super) struct SentCapability {
    is_prefix: bool,
    redelivers: bool,
    delays: bool,
    lease: Option<(Duration, Option<Duration>)>,
    keeps_order: bool,
    delivery_limit: Option<u32>,
}

/// The name of the kind, and the text with all causes.
#[derive(Serialize, Deserialize)]
pub(super) struct SentError(String, String);

pub(super) fn sent_room(room: &Room) -> SentRoom {
    SentRoom(room.messages, room.bytes, room.closed.iter().cloned().map(SentLane::from).collect())
}

pub(super) fn room(sent: SentRoom) -> Room {
    let closed: BTreeSet<Lane> = sent.2.into_iter().map(Lane::from).collect();
    Room { messages: sent.0, bytes: sent.1, closed: Arc::new(closed) }
}

pub(super) fn sent_settlements(settlements: Vec<(DeliveryId, Settlement)>) -> Vec<(SentId, SentSettlement)> {
    let sent = |settlement| match settlement {
        Settlement::Ack => SentSettlement::Ack,
        Settlement::Retry(after) => SentSettlement::Retry(after),
        Settlement::Extend(by) => SentSettlement::Extend(by),
        Settlement::UpTo => SentSettlement::UpTo,
    };
    settlements.into_iter().map(|(id, settlement)| (id.into(), sent(settlement))).collect()
}

pub(super) fn settlements(sent: Vec<(SentId, SentSettlement)>) -> Vec<(DeliveryId, Settlement)> {
    let settlement = |sent| match sent {
        SentSettlement::Ack => Settlement::Ack,
        SentSettlement::Retry(after) => Settlement::Retry(after),
        SentSettlement::Extend(by) => Settlement::Extend(by),
        SentSettlement::UpTo => Settlement::UpTo,
    };
    sent.into_iter().map(|(id, sent)| (id.into(), settlement(sent))).collect()
}

impl From<Lane> for SentLane {
    fn from(lane: Lane) -> Self {
        Self(lane.topic.to_string(), lane.partition, lane.generation)
    }
}

impl From<SentLane> for Lane {
    fn from(sent: SentLane) -> Self {
        Self { topic: sent.0.into(), partition: sent.1, generation: sent.2 }
    }
}

impl From<DeliveryId> for SentId {
    fn from(id: DeliveryId) -> Self {
        Self(id.lane.into(), id.number, id.handle.to_vec())
    }
}

impl From<SentId> for DeliveryId {
    fn from(sent: SentId) -> Self {
        Self { lane: sent.0.into(), number: sent.1, handle: sent.2.into() }
    }
}

impl From<Event> for SentEvent {
    fn from(event: Event) -> Self {
        let sent = |lanes: Vec<Lane>| lanes.into_iter().map(SentLane::from).collect();
        match event {
            Event::Deliveries(deliveries) => Self::Deliveries(deliveries.into_iter().map(Into::into).collect()),
            Event::Revoking { lanes, until } => Self::Revoking(sent(lanes), until),
            Event::Lost { lanes } => Self::Lost(sent(lanes)),
        }
    }
}

impl From<SentEvent> for Event {
    fn from(event: SentEvent) -> Self {
        let lanes = |sent: Vec<SentLane>| sent.into_iter().map(Lane::from).collect();
        match event {
            SentEvent::Deliveries(deliveries) => Self::Deliveries(deliveries.into_iter().map(Into::into).collect()),
            SentEvent::Revoking(sent, until) => Self::Revoking { lanes: lanes(sent), until },
            SentEvent::Lost(sent) => Self::Lost { lanes: lanes(sent) },
        }
    }
}

impl From<Delivery> for SentDelivery {
    fn from(delivery: Delivery) -> Self {
        let message = &delivery.message;
        let coordinates = message.coordinates.as_ref().map(|coordinates| {
            let position = match &coordinates.position {
                Position::Number(number) => SentPosition::Number(*number),
                Position::Id(id) => SentPosition::Id(id.to_vec()),
            };
            (coordinates.origin.to_string(), coordinates.partition, position)
        });
        Self {
            attempt: delivery.attempt,
            leased_until: delivery.leased_until,
            payload: message.payload.to_vec(),
            headers: message.headers.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect(),
            ordering_key: message.ordering_key.as_ref().map(|key| key.to_vec()),
            coordinates,
            timestamp: message.timestamp.map(|at| at.0),
            damage: message.damage.as_deref().map(str::to_owned),
            id: delivery.id.into(),
        }
    }
}

impl From<SentDelivery> for Delivery {
    fn from(sent: SentDelivery) -> Self {
        let coordinates = sent.coordinates.map(|(origin, partition, position)| {
            let position = match position {
                SentPosition::Number(number) => Position::Number(number),
                SentPosition::Id(id) => Position::Id(id.into()),
            };
            Coordinates { origin: origin.into(), partition, position }
        });
        let message = Message {
            payload: sent.payload.into(),
            headers: sent.headers.into_iter().collect(),
            ordering_key: sent.ordering_key.map(Bytes::from),
            coordinates,
            timestamp: sent.timestamp.map(Timestamp),
            damage: sent.damage.map(Into::into),
        };
        Self { id: sent.id.into(), message: Arc::new(message), attempt: sent.attempt, leased_until: sent.leased_until }
    }
}

impl From<Capability> for SentCapability {
    fn from(capability: Capability) -> Self {
        Self {
            is_prefix: capability.acknowledges == Acknowledges::Prefix,
            redelivers: capability.redelivers,
            delays: capability.delays,
            lease: capability.lease.map(|lease| (lease.length, lease.longest)),
            keeps_order: capability.keeps_order,
            delivery_limit: capability.delivery_limit,
        }
    }
}

impl From<SentCapability> for Capability {
    fn from(sent: SentCapability) -> Self {
        Self {
            acknowledges: if sent.is_prefix { Acknowledges::Prefix } else { Acknowledges::Each },
            redelivers: sent.redelivers,
            delays: sent.delays,
            lease: sent.lease.map(|(length, longest)| BrokerLease { length, longest }),
            keeps_order: sent.keeps_order,
            delivery_limit: sent.delivery_limit,
        }
    }
}

const KINDS: [ErrorKind; 6] = [
    ErrorKind::Invalid,
    ErrorKind::NotApplied,
    ErrorKind::Full,
    ErrorKind::Unknown,
    ErrorKind::Damaged,
    ErrorKind::Unusable,
];

impl From<Error> for SentError {
    fn from(error: Error) -> Self {
        Self(format!("{:?}", error.kind()), error.to_string())
    }
}

impl From<SentError> for Error {
    fn from(sent: SentError) -> Self {
        let kind = KINDS.into_iter().find(|kind| format!("{kind:?}") == sent.0);
        Self::new(kind.expect("a kind of error"), sent.1)
    }
}
