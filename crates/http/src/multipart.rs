//! Bodies in parts (RFC 2046, 5.1). A client that sends an upload again draws a new boundary, so the boundary is no
//! part of the payload.

use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};
use memchr::memmem;

/// The longest boundary (RFC 2046, 5.1.1).
const LONGEST_BOUNDARY: usize = 70;

/// How many parts are told apart, so that a body of tiny parts does not take many times its own memory.
const MOST_PARTS: usize = 1_000;

/// A body in parts, without its boundary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Multipart<'a> {
    /// The type, and the parameters beside the boundary, each followed by a zero byte. A field value has none, so this
    /// is no field value.
    pub(crate) content_type: Vec<u8>,
    /// The head and the content of each part.
    pub(crate) parts: Vec<&'a [u8]>,
}

impl<'a> Multipart<'a> {
    /// Splits a body. None if it is none in parts, or is one that some service may read in another way: then every byte
    /// counts.
    pub(crate) fn parse(headers: &HeaderMap, body: &'a [u8]) -> Option<Self> {
        let (content_type, boundary) = content_type(one(headers, &CONTENT_TYPE)?)?;
        let mut rest = body.strip_prefix(b"--")?.strip_prefix(boundary)?;
        let delimiter = [b"\r\n--", boundary].concat();
        let finder = memmem::Finder::new(&delimiter);
        let mut parts = Vec::new();
        let mut found = 1;
        // The line of the last delimiter ends with two hyphens.
        while let Some(part) = rest.strip_prefix(b"\r\n") {
            let end = finder.find(part)?;
            let (head, content) = head_and_content(&part[..end])?;
            parts.extend([head, content]);
            rest = &part[end + delimiter.len()..];
            found += 1;
            if found > MOST_PARTS {
                return None;
            }
        }
        // Some services look for the delimiter behind a line feed alone.
        let is_unambiguous = || memmem::find_iter(body, &delimiter[2..]).count() == found;
        let is_whole = found > 1 && matches!(rest, b"--" | b"--\r\n") && is_unambiguous();
        is_whole.then_some(Self { content_type, parts })
    }
}

/// The value of the only field of this name.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut fields = headers.get_all(name).iter();
    fields.next().filter(|_| fields.next().is_none())
}

/// Splits a content type into what counts and the boundary. None if it has no boundary or more than one, or a parameter
/// that is not plain.
fn content_type(field: &HeaderValue) -> Option<(Vec<u8>, &[u8])> {
    let mut parameters = field.to_str().ok()?.split(';').map(str::trim);
    let essence = parameters.next()?;
    if !essence.get(.."multipart/".len())?.eq_ignore_ascii_case("multipart/") {
        return None;
    }
    let (mut counting, mut boundary) = ([essence.as_bytes(), b"\0"].concat(), None);
    for parameter in parameters {
        let (name, value) = parameter.split_once('=')?;
        let value = unquoted(value)?;
        if !name.eq_ignore_ascii_case("boundary") {
            counting.extend_from_slice(parameter.as_bytes());
            counting.push(0);
        } else if boundary.replace(value).is_some() {
            return None;
        }
    }
    Some((counting, unquoted(boundary?)?.as_bytes()))
}

/// The boundary of a parameter. None if it has a character that a boundary cannot have, such as the semicolon that
/// would have split a quoted value.
fn unquoted(value: &str) -> Option<&str> {
    let text = value.strip_prefix('"').map_or(Some(value), |rest| rest.strip_suffix('"'))?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
    let is_boundary =
        (1..=LONGEST_BOUNDARY).contains(&text.len()) && !text.ends_with(' ') && text.bytes().all(is_allowed);
    is_boundary.then_some(text)
}

/// Splits a part behind its head. A part without fields begins with the empty line.
fn head_and_content(part: &[u8]) -> Option<(&[u8], &[u8])> {
    match part.strip_prefix(b"\r\n") {
        Some(content) => Some((b"", content)),
        None => memmem::find(part, b"\r\n\r\n").map(|end| (&part[..end], &part[end + 4..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<'a>(content_type: &[&str], body: &'a str) -> Option<Multipart<'a>> {
        let fields = content_type.iter().map(|value| (CONTENT_TYPE, HeaderValue::from_str(value).unwrap()));
        Multipart::parse(&fields.collect(), body.as_bytes())
    }

    const FORM: &str = "multipart/form-data; boundary=b17";

    fn form(boundary: &str) -> String {
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--{boundary}\r\n\r\n\r\n--\r\n\
             --{boundary}--\r\n"
        )
    }

    #[test]
    fn the_boundary_does_not_count() {
        let first = parse(&[FORM], &form("b17")).map(|parsed| (parsed.content_type, parsed.parts.concat()));
        assert!(first.is_some());
        for boundary in ["----WebKitFormBoundary7MA4YWxkTrZu0gW", "0", "a b", "'()+_,-./:=?", "b17--"] {
            let field = format!("multipart/form-data; Boundary=\"{boundary}\"");
            let body = form(boundary);
            let other = parse(&[&field], &body).map(|parsed| (parsed.content_type, parsed.parts.concat()));
            assert_eq!(other, first, "{boundary}");
        }
    }

    #[test]
    fn a_body_is_split_into_heads_and_contents() {
        let body = form("b17");
        let parsed = parse(&[FORM], &body).unwrap();
        let parts: [&[u8]; 4] = [b"Content-Disposition: form-data; name=\"a\"", b"1", b"", b"\r\n--"];
        assert_eq!(parsed, Multipart { content_type: b"multipart/form-data\0".to_vec(), parts: parts.to_vec() });
        let named = parse(&["multipart/related; type=\"a/b\"; boundary=b17; start=x"], &body).unwrap();
        assert_eq!(named.content_type, b"multipart/related\0type=\"a/b\"\0start=x\0");
        assert_eq!(parse(&[FORM], body.strip_suffix("\r\n").unwrap()), Some(parsed), "the last line may have no end");
    }

    #[test]
    fn what_does_not_follow_the_grammar_is_not_split() {
        let body = form("b17");
        for (content_types, body) in [
            (&[][..], body.clone()),
            (&["application/json; boundary=b17"], body.clone()),
            (&["multipart/form-data"], body.clone()),
            (&["multipart/form-data; boundary="], body.clone()),
            (&["multipart/form-data; boundary=b17; boundary=b17"], body.clone()),
            (&["multipart/form-data; boundary=\"b17"], body.clone()),
            (&["multipart/form-data; boundary=\"b;17\""], form("b;17")),
            (&["multipart/form-data; boundary=b@"], form("b@")),
            (&["multipart/form-data; boundary=\"b17 \""], form("b17 ")),
            (&["multipart/related; boundary=b17; start-info=\"text/xml; action=x\""], body.clone()),
            (&["multipart/related; a=\"; boundary=b17; c=d\""], body.clone()),
            (&["multipart/related; boundary=b17; a=\"\\\"\""], body.clone()),
            (&[FORM, FORM], body.clone()),
            (&[FORM], body.replace("\r\n\r\n1", "\r\n\r\n1\n--b17")),
            (&[FORM], String::new()),
            (&[FORM], form("b18")),
            (&[FORM], format!("before\r\n{body}")),
            (&[FORM], format!("{body}after")),
            (&[FORM], body.replace("--b17--", "--b17")),
            (&[FORM], body.replace("--b17--", "--b17 --")),
            (&[FORM], body.replace("\r\n", "\n")),
            (&[FORM], body.replace("\r\n\r\n1", "\r\n1")),
            (&[FORM], "--b17--\r\n".to_owned()),
            (&[FORM], "--b17\r\n\r\na\r\n--b17x\r\n--b17--\r\n".to_owned()),
        ] {
            assert_eq!(parse(content_types, &body), None, "{content_types:?} {body:?}");
        }
        let many = |count| format!("{}--b17--", "--b17\r\n\r\n\r\n".repeat(count));
        assert!(parse(&[FORM], &many(MOST_PARTS - 1)).is_some());
        assert_eq!(parse(&[FORM], &many(MOST_PARTS)), None);
        let long = "b".repeat(LONGEST_BOUNDARY + 1);
        assert_eq!(parse(&[&format!("multipart/form-data; boundary={long}")], &form(&long)), None);
    }
}
