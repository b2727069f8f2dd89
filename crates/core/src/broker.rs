//! The seams of the worker: where messages come from, how they are settled, and what processes them.
//!
//! ```text
//! Source ── next(room) ──► Event::Deliveries ──► worker ──► Process ──► Verdict ──┐
//!    │      next(room) ──► Event::Revoking, Event::Lost                           │
//!    └── settler() ──► Settle ◄── Ack, Retry, Extend, UpTo ◄──────────────────────┘
//! ```
//!
//! ```text
//! source.rs    trait Source, and what it reports
//! settle.rs    trait Settle, and the actions
//! message.rs   a message: payload, headers, ordering key, coordinates, time
//! process.rs   trait Process: jobs in, verdicts out
//! dead.rs      trait DeadLetters: where messages go that nobody can process
//! dead_sink.rs   dead letters for a sink
//! dead_store.rs  trait DeadLetterStore: list, mark for a redrive, take the marked; dead_memory.rs keeps them for tests
//! ```
//!
//! # What every source promises
//!
//! 1. The source owns the connection. The [`Settle`] that it gives away shares it, and returns `NotApplied` once the
//!    source is closed or dropped.
//! 2. [`Source::next`] keeps the connection alive: it polls the broker also while there is no room. The worker calls it
//!    again at once, whatever the jobs do.
//! 3. [`Source::next`] can be dropped at each await. A delivery that was received by then is returned by the next call.
//! 4. Dropping a [`Delivery`] does nothing. It is neither acknowledged nor given back, and its lease is not extended.
//! 5. Only [`Settle::settle`] acknowledges. Nothing is acknowledged at its delivery, on a timer, or when the source is
//!    closed.
//! 6. A settlement for an old generation of a lane does nothing and returns `Ok`: another worker has the lane, and a
//!    late acknowledgement must not reach it.
//! 7. A delivery that is not acknowledged arrives again some time, here or at another worker.
//! 8. [`Capability`] tells the truth. The worker does for itself what a source cannot do: it holds messages that are to
//!    be retried, and it acknowledges up to the first one that has no end.
//!
//! # How brokers map to it
//!
//! | | [`next`](Source::next) | [`settle`](Settle::settle) | [`Capability`] |
//! |---|---|---|---|
//! | Kafka | an own thread polls; no room or a closed lane pauses the partition, and polling goes on | `UpTo` notes the offset of the watermark plus one, which is committed every second; `leave` commits it inside the revoke callback, which waits for it | `Prefix`, no redelivery before a restart, no lease, no delay |
//! | JetStream | pulls as many as there is room for | `Ack` is a double ack, `Extend` is in-progress, `Retry` is a nak with delay | `Each`, redelivers, lease `ack_wait`, delay |
//! | AMQP | prefetch; what arrives without room waits in the source | `Ack` for one tag, never `multiple`, and no broker confirms it: `Ok` means handed to the connection; `Retry` is a nack, so the worker waits first | `Each`, redelivers, no lease, no delay |
//! | SQS | receives at most 10 | batches of 10: delete, change visibility; `Extend` stops 12 h after the receive | `Each`, redelivers, lease with a longest time, delay |
//! | Pub/Sub | a stream, which a task reads; no room leaves the rest in it | unary acknowledge and modify deadline; `Retry` is a deadline as long as its delay | `Each`, redelivers, lease, delay |
//! | SQLite queue | leases rows | deletes a row by its id and lease, moves the end of a lease | `Each`, redelivers, lease, delay, keeps order |
//!
//! | | [`Lane`] | [`DeliveryId::number`] | [`DeliveryId::handle`] | [`Message::ordering_key`] | [`Delivery::attempt`] |
//! |---|---|---|---|---|---|
//! | Kafka | topic, partition, a number that grows with each assignment | offset | – | the record key | – |
//! | JetStream | stream, 0, 1: a delivery outlives its connection | a counter | reply subject | a header, if one is chosen | delivery count |
//! | AMQP | queue, 0, the number of the channel | delivery tag | – | the routing key or a header, if one is chosen | `x-delivery-count` + 1 of quorum queues, from the second delivery on |
//! | SQS | queue, 0, 0 | a counter | receipt handle | message group | receive count |
//! | Pub/Sub | subscription, 0, 0 | a counter | ack id | ordering key | delivery attempt, if dead-lettering is on |
//! | SQLite queue | queue, 0, 0 | a counter | row id and lease | the column | the column |

mod dead;
mod dead_memory;
mod dead_sink;
mod dead_store;
mod message;
mod process;
mod settle;
mod source;

pub use dead::{DeadCause, DeadLetter, DeadLetterId, DeadLetters, DeadReason};
pub use dead_memory::MemoryDeadLetterStore;
pub use dead_sink::SinkDeadLetters;
pub use dead_store::{
    DeadCursor, DeadLetterStore, KeptLetter, LetterChange, LetterWord, ListedLetter, ListedReason, MarkedLetter,
    SeenLetter,
};
pub use message::{Coordinates, Headers, Message, Position};
pub use process::{Job, Process, Verdict};
pub use settle::{Settle, Settlement};
pub use source::{Acknowledges, BrokerLease, Capability, Delivery, DeliveryId, Event, Lane, Pause, Room, Source};
