//! What the client has sent, and what it was told. The audit believes this journal and the database, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use parking_lot::Mutex;

use crate::http_session::WholeAnswer;
use crate::order::TransferOrder;

/// Which payload a request had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// That of the order.
    Own,
    /// Another one, under the same key.
    Other,
}

/// A definite answer: the client has no reason to send the request again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefiniteAnswer {
    pub(crate) payload: Payload,
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl DefiniteAnswer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the outcome is unknown. It is definite where the gateways hold such an operation.
    pub(crate) fn is_unknown(&self) -> bool {
        self.status == 409
    }
}

/// The journal of a run. It is also written to a file, one line for each answer.
#[derive(Debug)]
pub(crate) struct TransferJournal {
    state: Mutex<JournalContents>,
    /// Whether the gateways hold an operation whose outcome is unknown.
    is_held: bool,
}

#[derive(Debug)]
struct JournalContents {
    /// The definite answers of each order, by its number.
    answers: Vec<Vec<DefiniteAnswer>>,
    counts: BTreeMap<String, u64>,
    /// The orders that still ran when every lease had expired.
    stuck: BTreeSet<u32>,
    file: BufWriter<File>,
}

/// The copies that the records of the gateway did not catch.
const LET_THROUGH: &str = "copies that the gateway let through, and the service answered again";

impl TransferJournal {
    pub(crate) fn create(path: &Path, orders: u32, is_held: bool) -> io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let answers = (0..orders).map(|_| Vec::new()).collect();
        let contents = JournalContents { answers, counts: BTreeMap::new(), stuck: BTreeSet::new(), file };
        Ok(Self { state: Mutex::new(contents), is_held })
    }

    /// Notes a request that got no answer.
    pub(crate) fn note_silence(&self, order: &TransferOrder, payload: Payload, error: &io::Error) -> io::Result<()> {
        let mut state = self.state.lock();
        state.count("requests");
        state.count("requests without an answer");
        writeln!(state.file, "{} {} {payload:?} {:?}: {error}", order.caller, order.key, body(order, payload))
    }

    /// Notes that the client gave an order up until the end of the run.
    pub(crate) fn note_patience_lost(&self) {
        self.state.lock().count("transfers that had no definite answer after two minutes");
    }

    /// Notes an answer. Returns whether it is definite.
    pub(crate) fn note(&self, order: &TransferOrder, payload: Payload, answer: WholeAnswer) -> io::Result<bool> {
        let WholeAnswer { status, is_replay, body: text } = answer;
        let is_unknown = status == 409 && problem(&text) == Some("outcome-unknown");
        let is_definite = is_definite(status) || (self.is_held && is_unknown);
        let mut state = self.state.lock();
        let sent = body(order, payload);
        writeln!(state.file, "{} {} {payload:?} {sent:?}: {status} {is_replay} {text:?}", order.caller, order.key)?;
        state.count("requests");
        state.count(&match (status, problem(&text)) {
            (200..=299, _) if is_replay => "answered from the records of the gateway".to_owned(),
            (200..=299, _) => "answered by the service".to_owned(),
            (_, Some(problem)) => format!("{status} {problem}"),
            (_, None) => status.to_string(),
        });
        if is_definite {
            let answers = &mut state.answers[order.number as usize];
            if payload == Payload::Own && !is_replay && answers.iter().any(DefiniteAnswer::is_success) {
                state.count(LET_THROUGH);
            }
            state.answers[order.number as usize].push(DefiniteAnswer { payload, status, body: text });
        }
        Ok(is_definite)
    }

    /// Notes the answer to a copy that was sent when every lease had expired.
    pub(crate) fn note_last(&self, order: &TransferOrder, answer: WholeAnswer) -> io::Result<()> {
        if answer.status == 409 && problem(&answer.body) == Some("in-progress") {
            self.state.lock().stuck.insert(order.number);
        }
        self.note(order, Payload::Own, answer).map(drop)
    }

    /// The orders that still ran when every lease had expired.
    pub(crate) fn stuck(&self) -> BTreeSet<u32> {
        self.state.lock().stuck.clone()
    }

    /// The definite answers of an order.
    pub(crate) fn answers(&self, number: u32) -> Vec<DefiniteAnswer> {
        self.state.lock().answers[number as usize].clone()
    }

    /// Whether the order has a definite answer.
    pub(crate) fn is_settled(&self, number: u32) -> bool {
        self.state.lock().answers[number as usize].iter().any(|answer| answer.payload == Payload::Own)
    }

    /// How many copies the records of the gateway did not catch.
    pub(crate) fn let_through(&self) -> u64 {
        self.state.lock().counts.get(LET_THROUGH).copied().unwrap_or_default()
    }

    /// How often what happened. Also writes the file to its end.
    pub(crate) fn counts(&self) -> io::Result<BTreeMap<String, u64>> {
        let mut state = self.state.lock();
        state.file.flush()?;
        Ok(state.counts.clone())
    }
}

impl JournalContents {
    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }
}

fn body(order: &TransferOrder, payload: Payload) -> String {
    match payload {
        Payload::Own => order.body(),
        Payload::Other => order.other_body(),
    }
}

/// The statuses after which a client sends the same request again.
fn is_definite(status: u16) -> bool {
    !matches!(status, 408 | 409 | 425 | 429 | 500..)
}

/// The name of the problem in an answer of the gateway or of the layer.
fn problem(text: &str) -> Option<&str> {
    text.split_once("idempotency#")?.1.split_once('"').map(|(name, _)| name)
}
