//! Which operation a message is.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::broker::{Coordinates, DeadReason, Headers, Message, Position};
use hapax_core::worker::{EVENT_RULE, KeyRule, MESSAGE_RULE, MessageIdentity, TenantRule};
use hapax_core::{Identity, Key, Rule, Scope, Timestamp};

fn message(headers: &[(&str, &str)], payload: &str) -> Message {
    let headers: Headers = headers.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())).collect();
    let coordinates = Coordinates { origin: "kafka/c/orders".into(), partition: 2, position: Position::Number(9) };
    Message {
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        headers,
        ordering_key: None,
        coordinates: Some(coordinates),
        timestamp: Some(Timestamp(1_800_000_000_000_000)),
        damage: None,
    }
}

fn identity(rules: &[&str]) -> MessageIdentity {
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    MessageIdentity::new("billing").unwrap().keys(rules)
}

fn key(rules: &[&str], message: &Message) -> Result<Vec<u8>, DeadReason> {
    identity(rules).identify(message).map(|found| found.key.as_bytes().to_vec())
}

#[test]
fn a_message_that_cannot_be_read_has_no_key_whatever_its_headers_say() {
    let readable = message(&[("Idempotency-Key", "order-7")], "{}");
    let damaged = Message { damage: Some("its headers are not UTF-8".into()), ..readable };
    assert_eq!(MessageIdentity::new("billing").unwrap().identify(&damaged), Err(DeadReason::Unreadable));
}

#[test]
fn a_key_header_is_found_without_case_and_gives_the_operation_of_layer_1() {
    let message = message(&[("IDEMPOTENCY-key", "order-7")], "{}");
    let found = MessageIdentity::new("billing").unwrap().identify(&message).unwrap();
    let scope = Scope::untenanted("billing").unwrap();
    let derived = Identity::plain().record_key(&scope, &Key::new("order-7").unwrap());
    assert_eq!((found.record_key, found.call.operation()), (derived, derived.operation()));
    assert_eq!(found.call.newest_fingerprint().rule(), MESSAGE_RULE);
}

#[test]
fn two_groups_that_get_one_message_have_two_operations() {
    let message = message(&[("idempotency-key", "order-7")], "");
    let operation = |group: &str| MessageIdentity::new(group).unwrap().identify(&message).unwrap().call.operation();
    assert_ne!(operation("billing"), operation("shipping"));
}

#[test]
fn two_equal_key_headers_are_one_and_two_others_are_malformed_and_so_is_an_empty_one() {
    let equal = message(&[("Idempotency-Key", "a"), ("idempotency-key", "a")], "");
    assert_eq!(key(&["header:idempotency-key"], &equal), Ok(b"a".to_vec()));
    let two = message(&[("Idempotency-Key", "a"), ("idempotency-key", "b"), ("idempotency-key", "a")], "");
    assert_eq!(key(&["header:idempotency-key"], &two), Err(DeadReason::KeyMalformed));
    let empty = message(&[("idempotency-key", "")], "");
    assert_eq!(key(&["header:idempotency-key"], &empty), Err(DeadReason::KeyMalformed));
    let long = message(&[("idempotency-key", &"x".repeat(1025))], "");
    assert_eq!(key(&["header:idempotency-key"], &long), Err(DeadReason::KeyMalformed));
}

#[test]
fn a_message_without_a_key_is_no_operation() {
    let none = message(&[], "{}");
    assert_eq!(key(&["header:idempotency-key", "cloudevents"], &none), Err(DeadReason::KeyMissing));
    assert_eq!(key(&["json:/id"], &message(&[], "no json")), Err(DeadReason::KeyMissing));
}

#[test]
fn the_first_rule_that_finds_a_key_wins() {
    let both = message(&[("order-id", "7")], r#"{"id": 8}"#);
    assert_eq!(key(&["json:/id", "header:order-id"], &both), Ok(b"8".to_vec()));
    assert_eq!(key(&["header:order-id", "json:/id"], &both), Ok(b"7".to_vec()));
}

#[test]
fn a_cloud_event_has_the_same_key_on_every_broker_and_in_both_modes() {
    let rules = &["cloudevents"];
    let nats = key(rules, &message(&[("ce-source", "/shop"), ("ce-id", "7")], "{}"));
    let kafka = key(rules, &message(&[("ce_source", "/shop"), ("ce_id", "7")], "{}"));
    let amqp = key(rules, &message(&[("cloudEvents:source", "/shop"), ("cloudEvents:id", "7")], "{}"));
    let content_type = ("Content-Type", "application/cloudevents+json; charset=utf-8");
    let structured = key(rules, &message(&[content_type], r#"{"source": "/shop", "id": "7"}"#));
    assert_eq!(nats, Ok(b"\0\0\0\x05/shop\0\0\0\x017".to_vec()));
    assert!(nats == kafka && nats == amqp && nats == structured);
    let half = message(&[("ce-id", "7")], "{}");
    assert_eq!(key(rules, &half), Err(DeadReason::KeyMalformed));
    let mixed = message(&[("ce-source", "/shop"), ("ce-id", "7"), ("ce_id", "8")], "{}");
    assert_eq!(key(rules, &mixed), Err(DeadReason::KeyMalformed));
}

#[test]
fn copies_of_a_cloud_event_in_both_modes_are_compared_by_their_data() {
    let call = |message: &Message| identity(&["cloudevents"]).identify(message).unwrap().call;
    let binary = |content_type: &'static str, data: &str| {
        message(&[("ce-source", "/shop"), ("ce-id", "7"), ("content-type", content_type)], data)
    };
    let structured = |members: &str| {
        let payload = format!(r#"{{"specversion":"1.0","source":"/shop","id":"7"{members}}}"#);
        message(&[("content-type", "application/cloudevents+json")], &payload)
    };
    let large = r#"{"b": 9007199254740993, "a": 1.0}"#;
    for (binary, structured) in [
        (binary("application/json", large), structured(r#","data":{"a":1,"b":9007199254740993}"#)),
        (binary("application/json", r#""a""#), structured(r#","datacontenttype":"application/json","data":"a""#)),
        (binary("text/plain", "a"), structured(r#","datacontenttype":"text/plain","data":"a""#)),
        (binary("image/png", "abc"), structured(r#","datacontenttype":"image/png","data_base64":"YWJj""#)),
        (binary("application/json", "[1]"), structured(r#","data_base64":"WzFd""#)),
        (binary("application/json", ""), structured("")),
    ] {
        let (first, second) = (call(&binary), call(&structured));
        assert_eq!(first.operation(), second.operation());
        assert_eq!(first.newest_fingerprint(), second.newest_fingerprint(), "{structured:?}");
        assert_eq!(first.newest_fingerprint().rule(), EVENT_RULE);
    }
    for members in [
        r#","data":{"a":1,"b":9007199254740994}"#,
        r#","data":{"a":1}"#,
        r#","datacontenttype":"text/plain","data":"{}""#,
        "",
    ] {
        let other = call(&structured(members)).newest_fingerprint();
        assert_ne!(other, call(&binary("application/json", large)).newest_fingerprint(), "{members}");
    }
    let ambiguous = call(&structured(r#","data":{"a":1,"a":2}"#));
    assert_eq!(ambiguous.newest_fingerprint().rule(), MESSAGE_RULE);
    let keyed = identity(&["header:k"]).identify(&message(&[("k", "7"), ("ce-id", "7")], "{}")).unwrap();
    assert_eq!(keyed.call.newest_fingerprint().rule(), MESSAGE_RULE, "its key is not that of the event");
    let older = call(&binary("text/plain", "a")).older_fingerprint().unwrap();
    assert_eq!(older.rule(), MESSAGE_RULE, "rows of the rule before are still recognized");
}

#[test]
fn coordinates_name_one_message_of_one_topic() {
    let here = message(&[], "");
    let differs_by = |change: fn(&mut Message)| {
        let mut other = here.clone();
        change(&mut other);
        key(&["coordinates"], &other).unwrap() != key(&["coordinates"], &here).unwrap()
    };
    assert!(!differs_by(|_| {}));
    assert!(differs_by(|other| other.coordinates.as_mut().unwrap().position = Position::Number(10)));
    assert!(differs_by(|other| other.coordinates.as_mut().unwrap().position = Position::Id("9".into())));
    assert!(differs_by(|other| other.coordinates.as_mut().unwrap().partition = 3));
    assert!(differs_by(|other| other.coordinates.as_mut().unwrap().origin = "kafka/c/refunds".into()));
    assert!(differs_by(|other| other.timestamp = Some(Timestamp(1_800_000_000_000_001))), "the topic was recreated");
    assert!(!differs_by(|other| other.payload = "another".into()), "a payload has no place");
}

#[test]
fn a_payload_hash_ignores_the_order_of_members_and_what_is_excluded() {
    let rules = &["payload-hash:1h;/sent_at"];
    let first = message(&[], r#"{"amount": 1.0, "to": "b", "sent_at": 1}"#);
    let again = message(&[], r#"{"to":"b","sent_at":2,"amount":1}"#);
    let other = message(&[], r#"{"to":"c","sent_at":1,"amount":1}"#);
    assert_eq!(key(rules, &first), key(rules, &again));
    assert_ne!(key(rules, &first), key(rules, &other));
    let mut later = first.clone();
    later.timestamp = Some(Timestamp(1_800_003_600_000_000));
    assert_ne!(key(rules, &first), key(rules, &later), "another bucket");
    assert_eq!(key(rules, &Message { timestamp: None, ..first }), Err(DeadReason::KeyMissing));
}

#[test]
fn a_payload_hash_of_a_number_that_a_double_cannot_hold_is_malformed() {
    let hash = |payload: &str| key(&["payload-hash:1h"], &message(&[], payload));
    let refused = [
        r#"{"transfer": 1234567890123456789}"#,
        r#"{"transfer": 1234567890123456788}"#,
        r#"["\\\"", 9007199254740993]"#,
        "-9007199254740993",
        r#"[[{"amount": 0.12345678901234567891}]]"#,
        "12345678901234567.5",
        "36893488147419103232",
        "1e300",
        "123456789012345678901234567890e-15",
        "1e-400",
        "1e-99999999999999999999",
    ];
    for payload in refused {
        assert_eq!(hash(payload), Err(DeadReason::KeyMalformed), "{payload}");
    }
    let held = [
        "9007199254740992",
        "-9007199254740992",
        "0.1",
        "[-0.0, 0e99999999999999999999, 1.50e+3, 123456789012300000000e-5]",
        "0.30000000000000004",
        r#"{"1234567890123456789": "a \" 1234567890123456789"}"#,
    ];
    for payload in held {
        assert!(hash(payload).is_ok(), "{payload}");
    }
    assert_eq!(hash("1234567890123450000000e-7"), hash("123456789012345"));
    let rules = &["payload-hash:1h;/sent_at"];
    let sent = |at: &str| key(rules, &message(&[], &format!(r#"{{"amount": 1, "sent_at": {at}}}"#)));
    assert_eq!(sent("1800000000.1234567891"), sent("1800000000123456789"), "an excluded number does not count");
}

#[test]
fn a_number_at_a_pointer_that_loses_digits_is_no_key_and_no_tenant() {
    let at = |number: &str| key(&["json:/id"], &message(&[], &format!(r#"{{"id": {number}, "other": 0.1}}"#)));
    for number in [u64::MAX.to_string(), i64::MIN.to_string(), "9007199254740993".into(), "1.5".into()] {
        assert_eq!(at(&number), Ok(number.into_bytes()));
    }
    for number in ["18446744073709551616", "18446744073709551617", "100000000000000000000", "0.12345678901234567891"] {
        assert_eq!(at(number), Err(DeadReason::KeyMalformed), "{number}");
        let tenant = identity(&["header:k"]).tenant("json:/shop".parse().unwrap());
        let found = tenant.identify(&message(&[("k", "7")], &format!(r#"{{"shop": {number}}}"#)));
        assert_eq!(found.unwrap_err(), DeadReason::CallerUnknown, "{number}");
    }
    let elsewhere = message(&[], r#"{"id": 7, "other": 18446744073709551617}"#);
    assert_eq!(key(&["json:/id"], &elsewhere), Ok(b"7".to_vec()));
}

#[test]
fn payloads_are_compared_unless_the_key_comes_from_the_payload_or_the_place() {
    let rule =
        |rules: &[&str], message: &Message| identity(rules).identify(message).unwrap().call.newest_fingerprint().rule();
    let json = message(&[], r#"{"id": "7"}"#);
    assert_eq!(rule(&["json:/id"], &json), MESSAGE_RULE);
    assert_eq!(rule(&["coordinates"], &json), Rule::NONE);
    assert_eq!(rule(&["payload-hash:1d"], &json), Rule::NONE);
    let compared = identity(&["coordinates"]).fingerprint(true).identify(&json).unwrap();
    assert_eq!(compared.call.newest_fingerprint().rule(), MESSAGE_RULE);
}

#[test]
fn a_fingerprint_is_about_payload_and_content_type_and_not_about_the_place() {
    let fingerprint = |message: &Message| identity(&["header:k"]).identify(message).unwrap().call.newest_fingerprint();
    let first = message(&[("k", "7")], "a");
    let mut moved = first.clone();
    moved.coordinates = None;
    moved.timestamp = None;
    assert_eq!(fingerprint(&first), fingerprint(&moved));
    assert_ne!(fingerprint(&first), fingerprint(&message(&[("k", "7")], "b")));
    let typed = message(&[("k", "7"), ("content-type", "text/plain")], "a");
    assert_ne!(fingerprint(&first), fingerprint(&typed));
}

#[test]
fn a_tenant_separates_keys_and_a_message_without_one_is_no_operation() {
    let operation = |tenant: &str| {
        let message = message(&[("k", "7"), ("shop", tenant)], "");
        let rule = TenantRule::Header("Shop".into());
        identity(&["header:k"]).tenant(rule).identify(&message).map(|found| found.call.operation())
    };
    assert_ne!(operation("a").unwrap(), operation("b").unwrap());
    assert_eq!(operation(""), Err(DeadReason::CallerUnknown));
    let rule: TenantRule = "json:/tenant".parse().unwrap();
    let none = identity(&["header:k"]).tenant(rule).identify(&message(&[("k", "7")], "{}"));
    assert_eq!(none.unwrap_err(), DeadReason::CallerUnknown);
}

#[test]
fn a_received_operation_counts_only_if_it_is_trusted() {
    let operation = "0190a1b2-c3d4-8e5f-8a6b-7c8d9e0f1a2b";
    let headers = [
        ("hapax-operation", operation),
        ("Hapax-Fingerprint", "1:000102030405060708090a0b, 7:0b0a09080706050403020100"),
        ("idempotency-key", "7"),
    ];
    let message = message(&headers, "");
    let plain = MessageIdentity::new("billing").unwrap();
    assert_ne!(plain.identify(&message).unwrap().call.operation().to_string(), operation);
    let found = plain.clone().trust_operation().identify(&message).unwrap();
    assert_eq!(found.call.operation().to_string(), operation);
    assert_eq!(found.call.newest_fingerprint().rule(), Rule(1));
    for (name, value) in [("hapax-operation", operation), ("hapax-fingerprint", "1:00"), ("hapax-operation", "7")] {
        let mut broken = message.clone();
        if name == "hapax-operation" && value == operation {
            broken.headers.push(name, b"0190a1b2-c3d4-8e5f-8a6b-000000000000".to_vec());
        } else {
            broken.headers = [("hapax-operation", if name == "hapax-operation" { value } else { operation })]
                .into_iter()
                .map(|(name, value)| (name, value.as_bytes().to_vec()))
                .collect();
            if name == "hapax-fingerprint" {
                broken.headers.push(name, value.as_bytes().to_vec());
            }
        }
        let found = plain.clone().trust_operation().identify(&broken);
        assert_eq!(found.unwrap_err(), DeadReason::KeyMalformed, "{name}: {value}");
    }
}

#[test]
fn rules_are_read_from_their_text_and_others_are_refused() {
    assert_eq!("cloudevents".parse::<KeyRule>().unwrap(), KeyRule::CloudEvents);
    assert_eq!("header:A:b".parse::<KeyRule>().unwrap(), KeyRule::Header(Arc::from("A:b")));
    for text in ["", "header", "header:", "json:id", "coordinates:x", "payload-hash:", "payload-hash:0s"] {
        assert!(text.parse::<KeyRule>().is_err(), "{text}");
    }
    for text in ["payload-hash:5", "payload-hash:1w", "payload-hash:1h;at", "payload-hash:1h,/at"] {
        assert!(text.parse::<KeyRule>().is_err(), "{text}");
    }
    assert!("none:x".parse::<TenantRule>().is_err() && "none".parse::<TenantRule>().is_ok());
    assert!(MessageIdentity::new("").is_err() && MessageIdentity::new("hapax/x").is_err());
}
