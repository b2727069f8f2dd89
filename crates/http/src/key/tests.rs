use super::*;
use http::HeaderValue;

fn read(field: &KeyField, values: &[&[u8]]) -> Result<Option<Vec<u8>>, KeyMalformed> {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
    }
    field.parse(&headers).map(|key| key.map(|key| key.as_bytes().to_vec()))
}

fn lenient(values: &[&[u8]]) -> Option<Vec<u8>> {
    read(&KeyField::default(), values).unwrap()
}

const BARE: &[u8] = b"8e03978e-40d5-43dd-bc93-6894a57f9324";
const QUOTED: &[u8] = b"\"8e03978e-40d5-43dd-bc93-6894a57f9324\"";

#[test]
fn quoted_and_bare_are_the_same_key() {
    assert_eq!(lenient(&[BARE]).unwrap(), BARE);
    assert_eq!(lenient(&[QUOTED]).unwrap(), BARE);
    assert_eq!(lenient(&[b"\"abc\";v=1"]).unwrap(), b"abc");
    assert_eq!(lenient(&[br#""a\"b\"\\""#]).unwrap(), br#"a"b"\"#);
    for grammar in [Grammar::Lenient, Grammar::Strict] {
        let field = KeyField::default().grammar(grammar);
        assert_eq!(read(&field, &[b"\"order 7\""]).unwrap().unwrap(), b"order 7");
        assert_eq!(read(&field, &[b"\" \""]).unwrap().unwrap(), b" ");
    }
    assert_eq!(lenient(&[]), None);
}

#[test]
fn every_malformed_field_is_refused() {
    let long = vec![b'a'; 256];
    let fields: &[&[u8]] = &[
        b"",
        b"\"\"",
        b"\"abc",
        b"abc\"",
        b"\"abc\" x",
        b"\"a\", \"b\"",
        b"a, b",
        b"a,b",
        b"a b",
        b"(\"a\")",
        b"\"caf\xc3\xa9\"",
        b"caf\xc3\xa9",
        b"\"a\\x\"",
        b"a;b",
        b"?1",
        b":YWJj:!",
        b"\"tab\there\"",
        &long,
    ];
    for field in fields {
        for grammar in [Grammar::Lenient, Grammar::Strict] {
            let read = read(&KeyField::default().grammar(grammar), &[field]);
            assert!(read.is_err(), "{grammar:?} {:?}", String::from_utf8_lossy(field));
        }
    }
    assert!(read(&KeyField::default(), &[b"a", b"a"]).is_err());
}

#[test]
fn the_strict_grammar_accepts_only_quoted_strings() {
    let strict = KeyField::default().grammar(Grammar::Strict);
    assert_eq!(read(&strict, &[QUOTED]).unwrap().unwrap(), BARE);
    for bare in [BARE, b"abc", b"123", b":YWJj:", b"?1"] {
        assert!(read(&strict, &[bare]).is_err(), "{:?}", String::from_utf8_lossy(bare));
    }
}

#[test]
fn a_key_of_another_format_is_refused() {
    let uuid = KeyField::default().format(KeyFormat::Uuid);
    assert!(read(&uuid, &[QUOTED]).is_ok() && read(&uuid, &[&BARE.to_ascii_uppercase()]).is_ok());
    assert!(read(&uuid, &[b"abc"]).is_err() && read(&uuid, &[&BARE.repeat(2)[..36].to_ascii_lowercase()]).is_ok());
    assert!(read(&uuid, &[b"8e03978e-40d5-43dd-bc93-6894a57f932g"]).is_err());
    let long = KeyField::default().format(KeyFormat::AtLeast(16));
    assert!(read(&long, &[b"0123456789abcdef"]).is_ok() && read(&long, &[b"0123456789abcde"]).is_err());
}

#[test]
fn a_key_may_have_255_bytes() {
    assert_eq!(lenient(&[&vec![b'a'; 255]]).unwrap().len(), 255);
}

fn key_at(pointer: &str, body: &'static str) -> Result<Option<Vec<u8>>, KeyMalformed> {
    let (parts, ()) = http::Request::new(()).into_parts();
    let key = JsonKey::at(pointer).unwrap().key_in_body(&parts, &Bytes::from(body));
    key.map(|key| key.map(|key| key.as_bytes().to_vec()))
}

#[test]
fn the_key_may_be_a_string_or_an_integer_of_the_body() {
    assert_eq!(key_at("/id", r#"{"id":"abc"}"#).unwrap().unwrap(), b"abc");
    assert_eq!(
        key_at("/a~1b/0/id", r#"{"a/b":[{"id":18446744073709551615}]}"#).unwrap().unwrap(),
        b"18446744073709551615"
    );
    assert_eq!(key_at("/id", r#"{"id":"a b"}"#).unwrap().unwrap(), b"a b");
    assert_eq!(key_at("/id", "{}").unwrap(), None);
    assert_eq!(key_at("/id", "").unwrap(), None);
    assert_eq!(key_at("/id", r#"{"id":null}"#).unwrap(), None);
    for body in ["id=abc", r#"{"id":""}"#, r#"{"id":"a\tb"}"#, r#"{"id":1.5}"#, r#"{"id":["abc"]}"#, r#"{"id":true}"#] {
        assert!(key_at("/id", body).is_err(), "{body}");
    }
    assert!(JsonKey::at("id").is_err() && JsonKey::at("").is_err());
}
