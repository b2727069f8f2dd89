//! The bodies of calls, with the conditions of writes.
//!
//! In a condition `#name` is an attribute and `:name` a value. DynamoDB reserves many words, so every attribute is
//! written in this way.

use hapax_core::machine::{Claim, Complete};
use hapax_core::{RecordKey, Timestamp};
use serde_json::{Map, Value, json};

use super::answers::Attributes;
use super::item::{AHEAD, TTL_MARGIN, binary, fingerprint_bytes, number};

/// The condition of a write.
#[derive(Debug, Default)]
pub(super) struct Condition {
    text: String,
    values: Map<String, Value>,
}

/// The key is free.
const NOTHING: &str = "attribute_not_exists(#k)";

impl Condition {
    /// There is no item.
    pub(super) fn nothing() -> Self {
        Self { text: NOTHING.to_owned(), values: Map::new() }
    }

    /// The item with these columns is there, with this end, which every write and every renewal moves. It may have
    /// expired.
    pub(super) fn unchanged(columns: &Attributes, expires: Timestamp) -> Self {
        Self::same(columns).and("#exp = :e", [(":e", number(expires.0))])
    }

    /// As [`unchanged`](Self::unchanged), and it has not expired.
    pub(super) fn unchanged_and_live(columns: &Attributes, expires: Timestamp, low: Timestamp) -> Self {
        Self::unchanged(columns, expires).and("#exp > :low", [(":low", number(low.0))])
    }

    /// The item with these columns is there, and still expired; or it is gone.
    pub(super) fn still_expired(columns: &Attributes, low: Timestamp) -> Self {
        let same = Self::same(columns).and("#exp <= :low", [(":low", number(low.0))]);
        Self { text: format!("{NOTHING} OR ({})", same.text), ..same }
    }

    /// The grant of this claim is in progress, and neither abandoned nor expired. Its last write was earlier, or so
    /// much later that the clock has stepped back since: a renewal that arrives late must not shorten the lease.
    pub(super) fn renewable(claim: &Claim, (low, now): (Timestamp, Timestamp)) -> Self {
        let far = [(":n", number(now.0)), (":far", number(now.plus(AHEAD).0))];
        let running =
            Self::of_claim(claim, low).and("#st = :p AND #les > :zero", [(":p", number(1)), (":zero", number(0))]);
        running.and("(#arm < :n OR #arm > :far)", far)
    }

    /// The grant of this completion is open and not dead.
    pub(super) fn completable(ask: &Complete, low: Timestamp) -> Self {
        let states = [(":p", number(1)), (":r", number(3)), (":i", number(4))];
        let open = Self::of_claim(&ask.claim, low).and("#st IN (:p, :r, :i)", states);
        open.and("#fp = :f", [(":f", binary(&fingerprint_bytes(ask.fingerprint)))])
    }

    /// This condition holds, or there is no item.
    pub(super) fn or_nothing(self) -> Self {
        Self { text: format!("{NOTHING} OR ({})", self.text), ..self }
    }

    fn of_claim(claim: &Claim, low: Timestamp) -> Self {
        let token = Self::default().and("#tok = :t", [(":t", number(claim.token.0))]);
        token.and("#own = :o AND #exp > :low", [(":o", binary(&claim.owner.0)), (":low", number(low.0))])
    }

    fn same(columns: &Attributes) -> Self {
        columns.iter().fold(Self::default(), |same, (name, value)| {
            let mut same = same.and(&format!("#{name} = :{name}"), []);
            same.values.insert(format!(":{name}"), value.clone());
            same
        })
    }

    fn and<const N: usize>(mut self, text: &str, values: [(&str, Value); N]) -> Self {
        if !self.text.is_empty() {
            self.text.push_str(" AND ");
        }
        self.text.push_str(text);
        self.values.extend(values.map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// Adds the condition to the body of a call. `expression` is another expression of the call.
    fn put_into(self, body: &mut Value, expression: &str) {
        body["ExpressionAttributeNames"] = names(&format!("{} {expression}", self.text));
        body["ConditionExpression"] = json!(self.text);
        if !self.values.is_empty() {
            body["ExpressionAttributeValues"] = Value::Object(self.values);
        }
        body["ReturnValuesOnConditionCheckFailure"] = json!("ALL_OLD");
    }
}

/// The attributes that an expression names.
fn names(expression: &str) -> Value {
    let words = expression.split(|letter: char| letter != '#' && !letter.is_ascii_alphanumeric());
    let names = words.filter_map(|word| word.strip_prefix('#'));
    Value::Object(names.map(|name| (format!("#{name}"), json!(name))).collect())
}

fn key_of(key: &[u8]) -> Value {
    json!({ "k": binary(key) })
}

/// Writes an item. The answer has the item before it.
pub(super) fn put(table: &str, item: Attributes, condition: Condition) -> Value {
    let mut body = json!({ "TableName": table, "Item": item, "ReturnValues": "ALL_OLD" });
    condition.put_into(&mut body, "");
    body
}

/// Writes an item in place of any other.
pub(super) fn overwrite(table: &str, item: Attributes) -> Value {
    json!({ "TableName": table, "Item": item })
}

/// Starts lease and life again. The answer has the item.
pub(super) fn renewal(table: &str, rk: &RecordKey, (condition, now): (Condition, Timestamp)) -> Value {
    const CHANGE: &str = "SET #arm = :n, #exp = :n + #lif, #ttl = :s + #lifs";
    let mut body = json!({
        "TableName": table,
        "Key": key_of(rk.as_bytes()),
        "UpdateExpression": CHANGE,
        "ReturnValues": "ALL_NEW",
    });
    condition.put_into(&mut body, CHANGE);
    body["ExpressionAttributeValues"][":s"] = number(now.0 / 1_000_000 + TTL_MARGIN);
    body
}

pub(super) fn get(table: &str, key: &[u8]) -> Value {
    json!({ "TableName": table, "Key": key_of(key), "ConsistentRead": true })
}

/// Asks for an item that never exists, to read the clock.
pub(super) fn clock_question(table: &str) -> Value {
    json!({ "TableName": table, "Key": key_of(b"clock") })
}

pub(super) fn deletion(table: &str, key: &[u8], condition: Condition) -> Value {
    let mut body = json!({ "TableName": table, "Key": key_of(key) });
    condition.put_into(&mut body, "");
    body
}

/// Reads a part of the table, behind this key.
pub(super) struct ScanRequest<'a> {
    pub(super) table: &'a str,
    pub(super) limit: usize,
    pub(super) from: Option<&'a [u8]>,
}

impl ScanRequest<'_> {
    /// The records, without the parts of answers.
    pub(super) fn of_records(&self) -> Value {
        self.body("size(#k) = :size", &[(":size", number(16))])
    }

    /// The keys and the ends of all that has expired, parts of answers too.
    pub(super) fn of_expired(&self, low: Timestamp) -> Value {
        let mut body = self.body("#exp <= :low", &[(":low", number(low.0))]);
        body["ProjectionExpression"] = json!("#k, #exp");
        body["ExpressionAttributeNames"] = names("#k, #exp");
        body
    }

    fn body(&self, filter: &str, values: &[(&str, Value)]) -> Value {
        let values: Map<String, Value> =
            values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let mut body = json!({
            "TableName": self.table,
            "Limit": self.limit.max(1),
            "ConsistentRead": true,
            "FilterExpression": filter,
            "ExpressionAttributeNames": names(filter),
            "ExpressionAttributeValues": values,
        });
        if let Some(from) = self.from {
            body["ExclusiveStartKey"] = key_of(from);
        }
        body
    }
}

/// The condition of a sweep: the item has not been written again.
pub(super) fn with_end(expires: Timestamp) -> Condition {
    Condition::default().and("#exp = :e", [(":e", number(expires.0))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_that_arrives_late_does_not_move_the_lease_back() {
        let claim = Claim { owner: hapax_core::Owner([1; 16]), token: hapax_core::Token(7) };
        let condition = Condition::renewable(&claim, (Timestamp(1), Timestamp(5_000_000)));
        assert!(condition.text.ends_with("(#arm < :n OR #arm > :far)"), "{}", condition.text);
        assert_eq!(
            (&condition.values[":n"]["N"], &condition.values[":far"]["N"]),
            (&json!("5000000"), &json!("8000000"))
        );
    }

    #[test]
    fn every_attribute_of_an_expression_is_named() {
        let expected = json!({ "#arm": "arm", "#exp": "exp", "#lif": "lif", "#k": "k" });
        assert_eq!(names("SET #arm = :n, #exp = :n + #lif attribute_not_exists(#k) OR (#exp <= :low)"), expected);
        let body = put("t", Attributes::new(), Condition::nothing());
        assert_eq!(body["ConditionExpression"], "attribute_not_exists(#k)");
        assert!(body.get("ExpressionAttributeValues").is_none(), "DynamoDB refuses values without a use: {body}");
    }
}
