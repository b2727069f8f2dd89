//! Answers that do not fit into an item, which has room for 400 KB. They lie in items of their own, which are written
//! before the record that names them.
//!
//! The name of a part is the record key, the token, the check of the record and a number. The check covers the answer,
//! so a part is never written again with other bytes, and that of a late attempt is read by nobody.

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use hapax_core::{Record, RecordKey, Result, State, Timestamp};
use serde_json::Value;

use super::answers::{Attributes, TableFailure};
use super::api::TableApi;
use super::item::{PartsOfAnswer, TTL_MARGIN, binary, number, raw};
use super::request;

/// The longest answer that lies in the item of its record, in bytes.
const INLINE: usize = 300_000;

/// The longest part, in bytes.
const PART: usize = 350_000;

/// How long parts live after their record, in microseconds. DynamoDB removes both late, and in any order.
const LONGER: u64 = 7 * 24 * 3600 * 1_000_000;

impl PartsOfAnswer {
    /// The parts in which the answer of this record lies. None if it lies in the record.
    pub(super) fn of(record: &Record, rk: &RecordKey) -> Option<Self> {
        let State::Completed(completion) = &record.state else { return None };
        if completion.answer.len() <= INLINE {
            return None;
        }
        let count = u16::try_from(completion.answer.len().div_ceil(PART)).unwrap_or(u16::MAX);
        Some(Self { token: record.token, check: record.check(rk), count })
    }

    fn names(self, rk: &RecordKey) -> impl Iterator<Item = Vec<u8>> {
        let prefix = [&rk.as_bytes()[..], &self.token.0.to_be_bytes(), &self.check].concat();
        (0..self.count).map(move |index| [&prefix[..], &index.to_be_bytes()].concat())
    }

    /// Writes the answer. `expires` is the end of the record.
    pub(super) async fn write(
        self,
        api: &TableApi,
        rk: &RecordKey,
        (answer, expires): (&Bytes, Timestamp),
    ) -> Result<()> {
        let expires = expires.0.saturating_add(LONGER);
        let puts = self.names(rk).zip(answer.chunks(PART)).map(|(name, part)| {
            let fields = [
                ("k", binary(&name)),
                ("d", binary(part)),
                ("exp", number(expires)),
                ("ttl", number(expires / 1_000_000 + TTL_MARGIN)),
            ];
            let item: Attributes = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let body = request::overwrite(api.table(), item);
            async move { api.call("PutItem", &body).await }
        });
        try_join_all(puts).await.map(drop).map_err(TableFailure::into_error)
    }

    /// Reads the answer. None if a part is missing.
    pub(super) async fn read(self, api: &TableApi, rk: &RecordKey) -> Result<Option<Bytes>> {
        let gets = self.names(rk).map(|name| {
            let body = request::get(api.table(), &name);
            async move { api.call("GetItem", &body).await }
        });
        let mut answer = BytesMut::new();
        for found in try_join_all(gets).await.map_err(TableFailure::into_error)? {
            let Some(part) = found.get("Item").and_then(Value::as_object) else { return Ok(None) };
            answer.extend_from_slice(&raw(part, "d")?);
        }
        Ok(Some(answer.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::{Completion, Fingerprint, Token};

    use super::*;

    #[test]
    fn an_answer_that_does_not_fit_has_parts_whose_names_tell_its_bytes() {
        let rk = RecordKey::from_bytes([7; 16]);
        let record = |answer: Bytes| Record {
            token: Token(9),
            fingerprint: Fingerprint::NONE,
            state: State::Completed(Completion::whole(answer, 0)),
        };
        let parts = |length: usize, byte: u8| PartsOfAnswer::of(&record(vec![byte; length].into()), &rk);
        assert_eq!(parts(INLINE, 0), None);
        assert_eq!(parts(INLINE + 1, 0).unwrap().count, 1);
        assert_eq!(parts(1 << 20, 0).unwrap().count, 3);
        let names = |byte: u8| parts(1 << 20, byte).unwrap().names(&rk).collect::<Vec<_>>();
        let all = [names(0), names(1)].concat();
        assert!(all.iter().all(|name| name.len() == 34 && name.starts_with(rk.as_bytes())));
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 6);
    }
}
