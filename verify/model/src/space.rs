//! A setting with the record keys of its calls.

use hapax_core::{OperationId, RecordKey};

use crate::request::Sender;
use crate::setting::{ModelCall, ModelSetting, record_keys};
use crate::store::KEYS;

/// A setting with the record keys of its calls.
#[derive(Clone, Debug)]
pub(crate) struct StateSpace {
    pub(crate) setting: ModelSetting,
    pub(crate) record_keys: [RecordKey; KEYS],
    /// The operations of the record keys.
    pub(crate) operations: [OperationId; KEYS],
}

impl StateSpace {
    /// The space of a setting.
    pub(crate) fn new(setting: ModelSetting) -> Self {
        let record_keys = record_keys();
        Self { setting, record_keys, operations: record_keys.map(|rk| rk.operation()) }
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        KEYS
    }

    /// The slot of a call. It depends on the record key only.
    pub(crate) fn slot(&self, call: ModelCall) -> usize {
        let rk = self.record_keys[usize::from(call.tenant)];
        self.record_keys.iter().position(|other| *other == rk).expect("it is one of them")
    }

    pub(crate) fn slot_of(&self, sender: Sender) -> usize {
        match sender {
            Sender::Attempt(number) | Sender::Journal(number) => self.slot(self.setting.call(number)),
            Sender::Operator => 0,
        }
    }
}
