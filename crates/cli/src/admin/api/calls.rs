//! The calls of the API as types: a path, arguments and an answer. The router reads them from requests. A command sends
//! them to a listener, or carries them out on a store.

use std::fmt;
use std::str::FromStr;

use form_urlencoded::Serializer;
use hapax::RecordKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::admin::api::values::{optional_text, unhex};
use crate::admin::api::{AdminApi, ApiError, PolicyDescription, no_audit_file};

/// The first part of every path of the API.
pub(crate) const PREFIX: &str = "/api/v1/";

/// A call with its arguments. Those that the path names are in the path, and the others are the query of a read or the
/// JSON body of a write.
pub(crate) trait ApiCall: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The path behind [`PREFIX`], with the names of arguments in braces.
    const PATH: &'static str;
    /// The name of a write in audit events. None for a read.
    const WRITE: Option<&'static str> = None;

    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Carries out the call, without audit events.
    fn carry_out(&self, api: &AdminApi) -> impl Future<Output = Result<Self::Answer, ApiError>> + Send;

    /// The target and the arguments of a write, for audit events. Headers and bodies are left out.
    fn subject(&self) -> Value {
        Value::Null
    }

    /// Whether a write only asks whether it would be carried out.
    fn is_dry_run(&self) -> bool {
        false
    }
}

/// Reads a call from its arguments.
///
/// # Errors
/// Which one is wrong, unknown, missing or given twice.
pub(super) fn read<C: ApiCall>(arguments: impl IntoIterator<Item = (String, Value)>) -> Result<C, ApiError> {
    let mut members = Map::new();
    for (name, value) in arguments {
        if members.contains_key(&name) {
            return Err(ApiError::invalid(format!("{name:?} is given twice")));
        }
        members.insert(name, value);
    }
    serde_path_to_error::deserialize(Value::Object(members)).map_err(|error| ApiError::invalid(error.to_string()))
}

/// A call as a client sends it.
#[derive(Debug)]
pub(crate) struct SentCall {
    /// The path behind [`PREFIX`], with the query of a read.
    pub(crate) target: String,
    /// The body of a write.
    pub(crate) body: Option<String>,
}

impl SentCall {
    pub(crate) fn of<C: ApiCall>(call: &C) -> Self {
        let mut members = members(call);
        members.retain(|_, value| !value.is_null());
        // A path names ids and record keys, which need no encoding.
        let segments = C::PATH.split('/').map(|segment| {
            let argument = segment.strip_prefix('{').and_then(|name| members.remove(name.strip_suffix('}')?));
            argument.map_or_else(|| segment.to_owned(), |value| plain(&value))
        });
        let path = segments.collect::<Vec<_>>().join("/");
        if C::WRITE.is_some() {
            return Self { target: path, body: Some(Value::Object(members).to_string()) };
        }
        let pairs = members.iter().map(|(name, value)| (name, plain(value)));
        Self { target: format!("{path}?{}", Serializer::new(String::new()).extend_pairs(pairs).finish()), body: None }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The members of a type that serializes to an object.
pub(crate) fn members(object: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(object) {
        Ok(Value::Object(members)) => members,
        Ok(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) | Err(_) => Map::new(),
    }
}

/// The first part of the `instance` of a problem.
pub(crate) const URN: &str = "urn:hapax:record:";

/// A record key as its 32 digits, which may follow [`URN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordName(pub(crate) RecordKey);

impl FromStr for RecordName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix(URN).unwrap_or(text);
        let is_lower = digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit));
        let bytes = unhex(digits).filter(|_| is_lower).and_then(|bytes| bytes.try_into().ok());
        let wrong = || format!("a record key is 32 lower-case hexadecimal digits, or {URN} and these");
        bytes.map(|bytes| Self(RecordKey::from_bytes(bytes))).ok_or_else(wrong)
    }
}

impl fmt::Display for RecordName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many entries a page has if the call does not say it, and at most.
const DEFAULT_PAGE: usize = 100;
pub(crate) const LARGEST_PAGE: usize = 500;

/// How many entries a page has at most, for this argument.
pub(super) fn page_limit(limit: Option<usize>) -> Result<usize, ApiError> {
    let limit = Some(limit.unwrap_or(DEFAULT_PAGE)).filter(|limit| (1..=LARGEST_PAGE).contains(limit));
    limit.ok_or_else(|| ApiError::invalid(format!("limit: a page has 1 to {LARGEST_PAGE} entries")))
}

pub(super) fn wrong_cursor() -> ApiError {
    ApiError::invalid("cursor: this process returned no such cursor")
}

/// A request for the policy of the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowPolicy {}

impl ApiCall for ShowPolicy {
    const PATH: &'static str = "policy";
    type Answer = PolicyDescription;

    async fn carry_out(&self, api: &AdminApi) -> Result<PolicyDescription, ApiError> {
        Ok(api.policy.clone())
    }
}

/// The newest events of the audit file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListEvents {
    #[serde(default, with = "optional_text")]
    pub(crate) record: Option<RecordName>,
    #[serde(default, with = "optional_text")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventPage {
    /// The newest first.
    pub(crate) events: Vec<Value>,
    /// Whether the file has no older ones.
    pub(crate) is_complete: bool,
}

impl ApiCall for ListEvents {
    const PATH: &'static str = "audit";
    type Answer = EventPage;

    async fn carry_out(&self, api: &AdminApi) -> Result<EventPage, ApiError> {
        let limit = page_limit(self.limit)?;
        api.audit.as_ref().ok_or_else(no_audit_file)?.read(self.record, limit).await
    }
}

/// The description of the API.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowOpenApi {}

impl ApiCall for ShowOpenApi {
    const PATH: &'static str = "openapi.json";
    type Answer = Value;

    async fn carry_out(&self, _: &AdminApi) -> Result<Value, ApiError> {
        Ok(serde_json::from_str(include_str!("openapi.json")).expect("the document is JSON"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_key_has_two_forms() {
        let digits = "0123456789abcdef0123456789abcdef";
        let rk: RecordName = digits.parse().unwrap();
        assert_eq!((rk.to_string(), format!("{URN}{digits}").parse()), (digits.to_owned(), Ok(rk)));
        for wrong in ["", "0123", &digits.to_uppercase(), "../../../../../../../../../..", &digits.replace('0', "%30")]
        {
            assert!(wrong.parse::<RecordName>().is_err(), "{wrong}");
        }
    }
}
