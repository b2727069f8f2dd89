//! The table: how it is made, and what is wrong with one.

use std::error::Error as StdError;
use std::time::Duration;

use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, Result};
use hapax_net::aws::AwsRefusal;
use serde_json::{Value, json};

use super::answers::{Attributes, TableFailure};
use super::api::TableApi;
use crate::errors::not_applied;

/// The attribute with the time at which DynamoDB may remove an item.
const TTL: &str = "ttl";

/// The pause between two looks at a table that is being made.
const POLL: Duration = Duration::from_millis(500);

/// How long a table may take until it can be used.
const PATIENCE: Duration = Duration::from_secs(120);

/// The parts of a table that are missing: the bodies of the calls of DynamoDB that make them, in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingTableParts {
    /// `CreateTable`.
    pub creation: Option<String>,
    /// `UpdateTimeToLive`.
    pub expiry: Option<String>,
}

/// What is known of the table.
#[derive(Debug)]
pub(super) struct TableState {
    description: Value,
    /// Whether DynamoDB removes what has expired. None without the right to know it.
    removes_expired: Option<bool>,
}

impl TableState {
    /// Reads the state of the table.
    ///
    /// # Errors
    /// `Unusable` if there is none.
    pub(super) async fn read(api: &TableApi) -> Result<Self> {
        let mut described = described(api).await.map_err(TableFailure::into_error)?;
        let description = described.remove("Table").unwrap_or_default();
        Ok(Self { description, removes_expired: removes_expired(api).await })
    }

    pub(super) fn removes_expired(&self) -> Option<bool> {
        self.removes_expired
    }

    /// Whether a TTL is to be turned on. A table that is consistent in all its regions can have none.
    fn lacks_expiry(&self) -> bool {
        self.removes_expired == Some(false) && !self.is_consistent_everywhere()
    }

    /// What endangers the guarantee, or costs more than it should.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut find = |severity, message: &str| findings.push(Finding { severity, message: message.into() });
        if !self.has_our_key() {
            find(
                Severity::Refuse,
                "the table has another key: its partition key must be `k` of type B (binary), without a sort key",
            );
        }
        match self.removes_expired {
            Some(true) => {}
            Some(false) | None if self.is_consistent_everywhere() => {}
            Some(false) => find(
                Severity::Warn,
                "the table has no TTL, so sweeps read the whole table: turn it on for the attribute `ttl`, or \
                 run `hapax migrate`",
            ),
            None => find(
                Severity::Warn,
                "whether the table has a TTL is not known, so nothing is swept: grant dynamodb:DescribeTimeToLive, \
                 and turn the TTL on for the attribute `ttl`",
            ),
        }
        if self.is_global() && !self.is_consistent_everywhere() {
            find(
                Severity::Warn,
                "the table is a global one, whose replicas settle conflicts by the last writer, so two regions may \
                 both run an operation: let one region write, or use strong consistency between regions",
            );
        }
        findings
    }

    /// Whether the table has the key that the store needs.
    pub(super) fn has_our_key(&self) -> bool {
        let keys = &self.description["KeySchema"];
        let attributes = self.description["AttributeDefinitions"].as_array();
        let types = attributes.into_iter().flatten();
        let is_binary = types.filter(|it| it["AttributeName"] == "k").any(|it| it["AttributeType"] == "B");
        let is_alone = keys.as_array().is_some_and(|keys| keys.len() == 1);
        is_binary && is_alone && keys[0]["AttributeName"] == "k" && keys[0]["KeyType"] == "HASH"
    }

    fn is_global(&self) -> bool {
        self.description["Replicas"].as_array().is_some_and(|replicas| !replicas.is_empty())
    }

    fn is_consistent_everywhere(&self) -> bool {
        self.description["MultiRegionConsistency"] == "STRONG"
    }
}

/// The bodies of the calls that [`create`] would make now. The TTL counts as missing if nobody may ask for it.
pub(super) async fn missing(api: &TableApi) -> Result<MissingTableParts> {
    let (creation, expiry) = (format!("{:#}", creation(api.table())), format!("{:#}", expiry(api.table())));
    if !exists(api).await? {
        return Ok(MissingTableParts { creation: Some(creation), expiry: Some(expiry) });
    }
    let state = TableState::read(api).await?;
    let lacks_expiry = state.removes_expired != Some(true) && !state.is_consistent_everywhere();
    Ok(MissingTableParts { creation: None, expiry: lacks_expiry.then_some(expiry) })
}

/// The body of the call that makes a table.
fn creation(table: &str) -> Value {
    json!({
        "TableName": table,
        "AttributeDefinitions": [{ "AttributeName": "k", "AttributeType": "B" }],
        "KeySchema": [{ "AttributeName": "k", "KeyType": "HASH" }],
        "BillingMode": "PAY_PER_REQUEST",
    })
}

/// The body of the call that turns the TTL on.
fn expiry(table: &str) -> Value {
    json!({ "TableName": table, "TimeToLiveSpecification": { "Enabled": true, "AttributeName": TTL } })
}

/// Whether the table exists.
pub(super) async fn exists(api: &TableApi) -> Result<bool> {
    match described(api).await {
        Ok(_) => Ok(true),
        Err(TableFailure::Failed(error)) if is_missing(&error) => Ok(false),
        Err(failure) => Err(failure.into_error()),
    }
}

/// Makes the table if there is none, waits until it can be used, and turns its TTL on. Returns whether it changed
/// anything.
///
/// # Errors
/// `Unusable` without the right to do it; `NotApplied` if it takes too long. It may be tried again.
pub(super) async fn create(api: &TableApi) -> Result<bool> {
    let is_new = !exists(api).await?;
    if is_new {
        let created = api.call("CreateTable", &creation(api.table())).await;
        // Another process may have made it meanwhile; the next look says so.
        if let Err(failure) = created
            && !exists(api).await?
        {
            return Err(failure.into_error());
        }
    }
    wait_until_active(api).await?;
    let lacks_expiry = TableState::read(api).await?.lacks_expiry();
    if lacks_expiry {
        let turned_on = api.call("UpdateTimeToLive", &expiry(api.table())).await.map_err(TableFailure::into_error);
        turned_on.map_err(|error| {
            Error::new(error.kind(), "the table is there, but its TTL cannot be turned on").caused_by(error)
        })?;
    }
    Ok(is_new || lacks_expiry)
}

async fn wait_until_active(api: &TableApi) -> Result<()> {
    let runtime = api.runtime();
    let begun = runtime.boottime_now();
    loop {
        let described = described(api).await.map_err(TableFailure::into_error);
        let table = described.ok().and_then(|described| described.get("Table").cloned());
        if table.is_some_and(|table| table["TableStatus"] != "CREATING") {
            return Ok(());
        }
        if runtime.boottime_now().saturating_sub(begun) > PATIENCE {
            return Err(not_applied("DynamoDB is still making the table; try again in a few minutes"));
        }
        runtime.sleep(POLL).await;
    }
}

async fn described(api: &TableApi) -> Result<Attributes, TableFailure> {
    api.call("DescribeTable", &json!({ "TableName": api.table() })).await
}

/// Whether the error says that there is no such table.
fn is_missing(error: &Error) -> bool {
    let Some(source) = error.source() else { return false };
    source.downcast_ref::<AwsRefusal>().is_some_and(|refusal| refusal.code.starts_with("ResourceNotFound"))
}

async fn removes_expired(api: &TableApi) -> Option<bool> {
    let answer = api.call("DescribeTimeToLive", &json!({ "TableName": api.table() })).await.ok()?;
    let ttl = answer.get("TimeToLiveDescription")?;
    let is_on = ttl["TimeToLiveStatus"] == "ENABLED" || ttl["TimeToLiveStatus"] == "ENABLING";
    Some(is_on && ttl["AttributeName"] == TTL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(description: Value, removes_expired: Option<bool>) -> TableState {
        TableState { description, removes_expired }
    }

    fn ours() -> Value {
        creation("t")
    }

    #[test]
    fn a_table_with_another_key_is_refused() {
        let with = |changes: Value| {
            let mut description = ours();
            for (name, value) in changes.as_object().unwrap() {
                description[name] = value.clone();
            }
            state(description, Some(true)).findings()
        };
        assert_eq!(with(json!({})), []);
        for changes in [
            json!({ "AttributeDefinitions": [{ "AttributeName": "k", "AttributeType": "S" }] }),
            json!({ "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }] }),
            json!({ "KeySchema": [
                { "AttributeName": "k", "KeyType": "HASH" }, { "AttributeName": "s", "KeyType": "RANGE" },
            ] }),
        ] {
            let findings = with(changes.clone());
            assert!(matches!(&findings[..], [Finding { severity: Severity::Refuse, .. }]), "{changes}: {findings:?}");
        }
        let global = json!({ "Replicas": [{ "RegionName": "eu-west-2" }] });
        assert!(matches!(&with(global)[..], [Finding { severity: Severity::Warn, .. }]));
        let strong = json!({ "Replicas": [{ "RegionName": "eu-west-2" }], "MultiRegionConsistency": "STRONG" });
        assert_eq!(with(strong), []);
    }

    #[test]
    fn a_table_that_keeps_what_has_expired_is_worth_a_warning() {
        for removes_expired in [Some(false), None] {
            let findings = state(ours(), removes_expired).findings();
            assert!(matches!(&findings[..], [Finding { severity: Severity::Warn, .. }]), "{findings:?}");
        }
    }
}
