use std::str::FromStr;
use std::time::Duration;

use hapax::broker::{DeadCursor, DeadReason};
use hapax::store::ScanPosition;
use hapax::{OperationId, Timestamp};
use percent_encoding::percent_decode_str;

use super::{ListEvents, ListLetters, ListParked, ListRecords, record_key, unhex};
use crate::admin::api::ApiError;
use crate::admin::api::record::RecordFilter;

/// The parameters of a query, each at most once. [`end`](Query::end) refuses those that nobody asked for.
#[derive(Debug)]
pub(super) struct Query {
    left: Vec<(String, String)>,
}

/// How many entries a page has at most.
const LARGEST_PAGE: usize = 500;

const DEFAULT_PAGE: usize = 100;

impl Query {
    pub(super) fn parse(query: &str) -> Result<Self, ApiError> {
        let mut left: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plus = value.replace('+', " ");
            let value =
                percent_decode_str(&plus).decode_utf8().map_err(|_| ApiError::invalid("a value is not UTF-8"))?;
            if left.iter().any(|(other, _)| other == name) {
                return Err(ApiError::invalid(format!("the parameter {name:?} is given twice")));
            }
            left.push((name.to_owned(), value.into_owned()));
        }
        Ok(Self { left })
    }

    pub(super) fn end(&self) -> Result<(), ApiError> {
        match self.left.first() {
            Some((name, _)) => Err(ApiError::invalid(format!("this path has no parameter {name:?}"))),
            None => Ok(()),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        self.parsed(name, "true or false").map(Option::unwrap_or_default)
    }

    pub(super) fn records(&mut self) -> Result<ListRecords, ApiError> {
        let position = |digits: String| unhex(&digits).map(|bytes| ScanPosition(bytes.into()));
        let (state, cursor) = (self.take("state"), self.take("cursor"));
        Ok(ListRecords {
            filter: state.as_deref().map(RecordFilter::named).transpose()?,
            idle_for: self.duration("older_than")?.unwrap_or_default(),
            operation: self.parsed::<OperationId>("operation", "a UUID")?,
            from: cursor.map(|cursor| position(cursor).ok_or_else(|| wrong("cursor", A_CURSOR))).transpose()?,
            limit: self.limit()?,
        })
    }

    pub(super) fn letters(&mut self) -> Result<ListLetters, ApiError> {
        let reason = self.take("reason");
        let known =
            |name: &str| DeadReason::from_name(name).ok_or_else(|| wrong("reason", "a reason of a dead letter"));
        Ok(ListLetters {
            reason: reason.as_deref().map(known).transpose()?,
            source: self.take("source"),
            older_than: self.duration("older_than")?,
            after: self.take("cursor").map(DeadCursor::new),
            limit: self.limit()?,
        })
    }

    pub(super) fn parked(&mut self) -> Result<ListParked, ApiError> {
        let read = |cursor: &str| {
            let (micros, key) = cursor.split_once('.')?;
            Some((Timestamp(micros.parse().ok()?), unhex(key)?))
        };
        let cursor = self.take("cursor");
        let after = cursor.map(|cursor| read(&cursor).ok_or_else(|| wrong("cursor", A_CURSOR))).transpose()?;
        Ok(ListParked { after, limit: self.limit()? })
    }

    pub(super) fn events(&mut self) -> Result<ListEvents, ApiError> {
        let record = self.take("record");
        Ok(ListEvents { record: record.as_deref().map(record_key).transpose()?, limit: self.limit()? })
    }

    fn limit(&mut self) -> Result<usize, ApiError> {
        match self.parsed("limit", A_LIMIT)? {
            None => Ok(DEFAULT_PAGE),
            Some(limit @ 1..=LARGEST_PAGE) => Ok(limit),
            Some(_) => Err(wrong("limit", A_LIMIT)),
        }
    }

    fn duration(&mut self, name: &str) -> Result<Option<Duration>, ApiError> {
        let read =
            |text: String| humantime::parse_duration(&text).map_err(|_| wrong(name, "a duration, 5min for instance"));
        self.take(name).map(read).transpose()
    }

    fn parsed<T: FromStr>(&mut self, name: &str, what: &str) -> Result<Option<T>, ApiError> {
        self.take(name).map(|text| text.parse().map_err(|_| wrong(name, what))).transpose()
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let place = self.left.iter().position(|(other, _)| other == name)?;
        Some(self.left.swap_remove(place).1)
    }
}

const A_CURSOR: &str = "a cursor that this process returned";
const A_LIMIT: &str = "a number from 1 to 500";

fn wrong(name: &str, what: &str) -> ApiError {
    ApiError::invalid(format!("{name} must be {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_known_and_given_once() {
        let read = |text: &str| {
            let mut query = Query::parse(text)?;
            let read = query.records()?;
            query.end().map(|()| read)
        };
        let listed = read("state=indeterminate&older_than=5+min&limit=7&cursor=00ff").unwrap();
        assert_eq!((listed.limit, listed.idle_for), (7, Duration::from_secs(300)));
        assert_eq!(listed.from.unwrap().0[..], [0, 0xff]);
        for wrong in [
            "state=odd",
            "limit=0",
            "limit=501",
            "limit=x",
            "cursor=0",
            "cursor=zz",
            "older_than=5",
            "operation=7",
            "state=dead&state=dead",
            "stat=dead",
            "%00=1",
            "older_than=%ff",
        ] {
            assert_eq!(read(wrong).unwrap_err().status, 400, "{wrong}");
        }
    }
}
