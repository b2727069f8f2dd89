//! Compares ids and encoded records with the files that `tests/vectors/derive.py` computed. That program shares no code
//! with this one.

use std::collections::HashMap;

use bytes::Bytes;
use hapax_core::{
    Completion, ErrorKind, Fingerprint, Holding, Identity, Key, Millis, Owner, Phase, Record, RecordKey, Rule, Scope,
    Seconds, State, StoredAnswer, Token,
};

const KEYS: &str = include_str!("../vectors/keys.txt");
const RECORDS: &str = include_str!("../vectors/records.txt");

/// The fields of one line in a vector file.
struct VectorFields(HashMap<&'static str, &'static str>);

fn lines(file: &'static str, kind: &str) -> Vec<VectorFields> {
    let lines = file.lines().filter(|line| !line.starts_with('#'));
    let fields =
        |line: &'static str| line.split('\t').map(|field| field.split_once('=').expect("name=value")).collect();
    let lines = lines.map(|line| VectorFields(fields(line)));
    lines.filter(|line| line.text("kind") == kind).collect()
}

impl VectorFields {
    fn text(&self, name: &str) -> &'static str {
        self.0.get(name).unwrap_or_else(|| panic!("the field {name} is missing"))
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        unhex(self.text(name))
    }

    fn array<const N: usize>(&self, name: &str) -> [u8; N] {
        self.bytes(name).try_into().expect("the field has its length")
    }

    fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(&self, name: &str) -> T {
        self.text(name).parse().expect("the field is a number")
    }

    fn identity(&self) -> Identity {
        match self.text("secret") {
            "" => Identity::plain(),
            _ => Identity::keyed(self.array("secret")),
        }
    }
}

fn unhex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2), "{digits}");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_line_has_a_known_kind() {
    let count = |file: &str| file.lines().filter(|line| !line.starts_with('#')).count();
    let known: usize = ["record", "fingerprint", "tenant", "pin"].map(|kind| lines(KEYS, kind).len()).iter().sum();
    assert_eq!(known, count(KEYS));
    assert_eq!(lines(RECORDS, "record_v1").len(), count(RECORDS));
}

#[test]
fn ids_match_the_vectors() {
    let (mut derived, mut refused) = (0, 0);
    for line in lines(KEYS, "record") {
        let namespace = String::from_utf8(line.bytes("namespace")).expect("a namespace is text");
        let tenant = line.bytes("tenant");
        if namespace.is_empty() {
            for scope in [Scope::untenanted(&namespace), Scope::tenant(&namespace, "acme")] {
                assert_eq!(scope.expect_err("it is empty").kind(), ErrorKind::Invalid);
            }
            let key = Key::new(line.bytes("key"));
            assert_eq!(key.expect_err("it is empty").kind(), ErrorKind::Invalid);
            refused += 1;
            continue;
        }
        let scope = if tenant.is_empty() {
            let refusal = Scope::tenant(&namespace, &tenant).expect_err("an empty tenant is refused");
            assert_eq!(refusal.kind(), ErrorKind::Invalid);
            Scope::untenanted(&namespace)
        } else {
            Scope::tenant(&namespace, &tenant)
        };
        let scope = scope.expect("the scope is valid").principal(line.bytes("principal"));
        let key = Key::new(line.bytes("key")).expect("the key is valid");
        let rk = line.identity().record_key(&scope, &key);
        assert_eq!(rk.to_string(), line.text("rk"));
        let operation = rk.operation();
        assert_eq!(operation.to_string(), line.text("operation"));
        for n in [0, 1, u32::MAX] {
            assert_eq!(operation.event(scope.namespace(), n).to_string(), line.text(&format!("event{n}")));
        }
        derived += 1;
    }
    // The counts fail if lines of the file are lost.
    assert_eq!((derived, refused), (16, 1));
}

#[test]
fn fingerprints_match_the_vectors() {
    let lines = lines(KEYS, "fingerprint");
    for line in &lines {
        let parts: Vec<Vec<u8>> = match line.text("parts") {
            "" => Vec::new(),
            parts => parts.split(',').map(part).collect(),
        };
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let fingerprint = line.identity().fingerprint(Rule(1), &parts);
        assert_eq!(hex(fingerprint.as_bytes()), line.text("fingerprint"));
        assert_eq!(fingerprint.rule(), Rule(1));
    }
    assert_eq!(lines.len(), 11);
}

fn part(text: &str) -> Vec<u8> {
    let Some(repeated) = text.strip_prefix("repeat:") else {
        return unhex(text);
    };
    let (byte, count) = repeated.split_once(':').expect("a byte and a count");
    unhex(byte).repeat(count.parse().expect("a count"))
}

#[test]
fn tenants_match_the_vectors() {
    let lines = lines(KEYS, "tenant");
    for line in &lines {
        let digest = line.identity().tenant_of(&line.bytes("value"));
        assert_eq!(hex(&digest), line.text("digest"));
    }
    assert_eq!(lines.len(), 3);
}

#[test]
fn pins_of_a_namespace_match_the_vectors() {
    let lines = lines(KEYS, "pin");
    for line in &lines {
        let pin = line.identity().pin(&String::from_utf8(line.bytes("namespace")).unwrap());
        assert_eq!(pin.record_key(), RecordKey::from_bytes(line.array("rk")));
        assert_eq!(pin.newest_fingerprint(), Fingerprint::from_parts(Rule(1), line.array("fingerprint")));
    }
    assert_eq!(lines.len(), 3);
}

/// The record of a golden line. `None` for the two lines that no release writes: a record with an unknown codec, and a
/// completed record with the takeover flag.
fn record(line: &VectorFields) -> Option<Record> {
    let phase = Phase::from_stored(line.number("state")).expect("a known state");
    let takeover = line.text("takeover") == "1";
    let form = match line.text("codec") {
        "0" => StoredAnswer::Whole,
        "1" => StoredAnswer::Pointer,
        _ => return None,
    };
    if phase.is_none() && takeover {
        return None;
    }
    let state = match phase {
        None => {
            State::Completed(Completion { answer: line.bytes("answer").into(), form, expiry: line.number("expiry_s") })
        }
        Some(phase) => State::Open(
            phase,
            Holding {
                owner: Owner(line.array("owner")),
                attempt: line.number("attempt"),
                takeover,
                lease: Millis(line.number("lease_ms")),
                lifetime: Seconds(line.number("lifetime_s")),
            },
        ),
    };
    let fingerprint = Fingerprint::from_parts(Rule(line.number("rule")), line.array("fingerprint"));
    let token = Token(line.number("token"));
    Some(Record { token, fingerprint, state })
}

/// The golden records that this release can decode, with their keys and bytes.
fn golden() -> Vec<(RecordKey, Record, Bytes)> {
    let read = |line: VectorFields| {
        let rk = RecordKey::from_bytes(line.array("rk"));
        record(&line).map(|record| (rk, record, Bytes::from(line.bytes("bytes"))))
    };
    lines(RECORDS, "record_v1").into_iter().filter_map(read).collect()
}

#[track_caller]
fn assert_damaged(rk: &RecordKey, value: &Bytes) {
    match Record::decode(rk, value) {
        Ok(record) => panic!("{} was decoded as {record:?}", hex(value)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}"),
    }
}

#[test]
fn golden_records_are_encoded_and_decoded() {
    let golden = golden();
    for (rk, record, bytes) in &golden {
        assert_eq!(hex(&record.encode(rk)), hex(bytes));
        assert_eq!(&Record::decode(rk, bytes).expect("the record can be decoded"), record);
    }
    assert_eq!(golden.len(), 15);
}

#[test]
fn the_check_of_a_record_in_columns_is_the_check_in_its_value() {
    for (rk, record, bytes) in golden() {
        let header_len = if record.state.phase().is_none() { 36 } else { 58 };
        assert_eq!(record.check(&rk), bytes[header_len - 8..header_len]);
    }
}

#[test]
fn records_with_unknown_flags_are_damaged() {
    let lines = lines(RECORDS, "record_v1");
    let refused: Vec<_> = lines.iter().filter(|line| record(line).is_none()).collect();
    for line in &refused {
        assert_damaged(&RecordKey::from_bytes(line.array("rk")), &line.bytes("bytes").into());
    }
    let names: Vec<_> = refused.iter().map(|line| line.text("name")).collect();
    assert_eq!(names, ["completed_takeover", "codec_largest"]);
}

#[test]
fn any_changed_byte_is_damage() {
    for (rk, _, bytes) in golden() {
        for at in 0..bytes.len() {
            for change in 1..=u8::MAX {
                let mut altered = bytes.to_vec();
                altered[at] ^= change;
                assert_damaged(&rk, &altered.into());
            }
        }
    }
}

#[test]
fn a_truncated_record_is_damage() {
    for (rk, _, bytes) in golden() {
        for len in 0..bytes.len() {
            assert_damaged(&rk, &bytes.slice(..len));
        }
    }
}

#[test]
fn a_byte_after_a_record_is_damage() {
    for (rk, _, bytes) in golden() {
        assert_damaged(&rk, &[&bytes[..], b"\0"].concat().into());
    }
}

#[test]
fn a_record_of_another_key_is_damaged() {
    for (rk, _, bytes) in golden() {
        for at in 0..16 {
            let mut other = *rk.as_bytes();
            other[at] ^= 1;
            assert_damaged(&RecordKey::from_bytes(other), &bytes);
        }
    }
}

#[test]
fn only_a_record_of_a_later_version_is_called_one() {
    let rk = RecordKey::from_bytes([7; 16]);
    let error = |value: &[u8]| Record::decode(&rk, &Bytes::copy_from_slice(value)).unwrap_err().to_string();
    assert!(error(&[2; 60]).contains("a version that this release does not know"), "{}", error(&[2; 60]));
    for garbage in [&b"OK"[..], b"{\"status\":\"done\"}", &[0; 60], &[0xff; 60]] {
        assert!(error(garbage).contains("another program wrote it"), "{}", error(garbage));
    }
}
