//! Paths, and patterns of them.

use std::borrow::Cow;
use std::fmt;

use anyhow::bail;

/// A pattern of paths: literal segments, `{name}` for one segment, and at the end `{*name}` for one or more. A slash at the end of
/// a path does not count: many servers take it for the same path, and none may slip past its route by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// This text, decoded.
    Literal(String),
    /// Any but the empty one.
    Any,
    /// All that is left, and there is something left.
    Rest,
}

impl std::str::FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, anyhow::Error> {
        let Some(path) = text.strip_prefix('/') else {
            bail!("a path begins with a slash, /charges/{{id}} for instance");
        };
        if path.split('/').any(str::is_empty) && !path.is_empty() {
            bail!("a slash at the end or beside another one does not count; leave it out");
        }
        let last = path.split('/').count() - 1;
        let segments = path.split('/').enumerate().map(|(place, segment)| Segment::parse(segment, place == last));
        Ok(Self { text: text.to_owned(), segments: segments.collect::<Result<_, _>>()? })
    }
}

impl Segment {
    fn parse(text: &str, last: bool) -> Result<Self, anyhow::Error> {
        let name = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        match name.map(|name| name.strip_prefix('*').map_or((false, name), |name| (true, name))) {
            Some((_, name)) if name.is_empty() || name.contains(['{', '}', '*']) => {
                bail!("{text} has no name; write {{id}} or {{*rest}}")
            }
            Some((false, _)) => Ok(Self::Any),
            Some((true, _)) if last => Ok(Self::Rest),
            Some((true, _)) => bail!("{text} stands for all that is left; it can only be the last segment"),
            None if text.contains(['{', '}', '*']) => bail!("{text} is neither a text nor one {{name}}; split it up"),
            None if text.contains(['%', '?', '#', '\\']) => {
                bail!("{text} is compared with the decoded path, without its query; write it plainly")
            }
            None if matches!(text, "." | "..") => bail!("no path that is matched has a segment {text}; leave it out"),
            None => Ok(Self::Literal(text.to_owned())),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(own), Self::Literal(other)) => own == other,
            (Self::Any, Self::Literal(other)) => !other.is_empty(),
            (Self::Any, Self::Any) | (Self::Rest, Self::Literal(_) | Self::Any | Self::Rest) => true,
            (Self::Literal(_), Self::Any | Self::Rest) | (Self::Any, Self::Rest) => false,
        }
    }
}

impl Pattern {
    /// Whether a path, by its decoded segments, is one of these.
    fn matches(&self, path: &[Cow<'_, [u8]>]) -> bool {
        let (end, start) = path.split_last().unwrap_or((&Cow::Borrowed(b""), path));
        self.is(path) || (end.is_empty() && self.is(start))
    }

    fn is(&self, path: &[Cow<'_, [u8]>]) -> bool {
        let mut left = path.iter();
        for segment in &self.segments {
            let fits = match (segment, left.next()) {
                (Segment::Rest, Some(_)) => return true,
                (Segment::Any, Some(next)) => !next.is_empty(),
                (Segment::Literal(text), Some(next)) => **next == *text.as_bytes(),
                (Segment::Rest | Segment::Any | Segment::Literal(_), None) => false,
            };
            if !fits {
                return false;
            }
        }
        left.next().is_none()
    }

    /// Whether every path of the other is one of these.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let ends_in_rest = self.segments.last() == Some(&Segment::Rest);
        let as_long = if ends_in_rest {
            self.segments.len() <= other.segments.len()
        } else {
            self.segments.len() == other.segments.len()
        };
        as_long && self.segments.iter().zip(&other.segments).all(|(own, other)| own.covers(other))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The path of a request, decoded, in the two ways in which servers read it.
#[derive(Debug)]
pub(crate) struct Path<'a> {
    /// Divided first and decoded then: an encoded slash is a letter, and dots are names.
    literal: Vec<Cow<'a, [u8]>>,
    /// Decoded first, divided then, and without dot segments and doubled slashes. Nothing where it is the same.
    normal: Option<Vec<Cow<'a, [u8]>>>,
}

impl<'a> Path<'a> {
    pub(crate) fn read(path: &'a str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let literal: Vec<_> = path.split('/').map(decoded).collect();
        let normal = normal(&decoded(path));
        let normal = (literal != normal).then_some(normal);
        Self { literal, normal }
    }

    pub(crate) fn is(&self, pattern: &Pattern) -> Reading {
        match &self.normal {
            None if pattern.matches(&self.literal) => Reading::Matches,
            Some(normal) if pattern.matches(&self.literal) || pattern.matches(normal) => Reading::Ambiguous,
            None | Some(_) => Reading::Differs,
        }
    }
}

/// How a path compares with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Matches,
    Differs,
    /// It matches in one of the ways to read it, and the server behind may read it in the other.
    Ambiguous,
}

fn decoded(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.contains(&b'%') {
        return Cow::Borrowed(bytes);
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut left = bytes;
    while let Some((first, rest)) = left.split_first() {
        let escaped = rest.split_at_checked(2).filter(|_| *first == b'%');
        let byte = escaped.and_then(|(digits, rest)| Some((hex(digits)?, rest)));
        let (byte, rest) = byte.unwrap_or((*first, rest));
        decoded.push(byte);
        left = rest;
    }
    Cow::Owned(decoded)
}

fn hex(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = digits.iter().try_fold(0, |value, byte| Some(value * 16 + digit(*byte)?))?;
    u8::try_from(value).ok()
}

/// As a server reads it that decodes first. Some take a backslash for a slash.
fn normal(path: &[u8]) -> Vec<Cow<'static, [u8]>> {
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut ends_in_slash = true;
    for segment in path.split(|byte| matches!(byte, b'/' | b'\\')) {
        ends_in_slash = true;
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            name => {
                segments.push(name);
                ends_in_slash = false;
            }
        }
    }
    if ends_in_slash {
        segments.push(b"");
    }
    segments.into_iter().map(|segment| Cow::Owned(segment.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_names_paths_segment_by_segment() {
        for (text, path, matches) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/charges", "/charges", true),
            ("/charges", "/charges/", true),
            ("/charges", "/Charges", false),
            ("/charges/{id}", "/charges/7", true),
            ("/charges/{id}", "/charges/7/", true),
            ("/charges/{id}", "/charges/", false),
            ("/charges/{id}", "/charges", false),
            ("/charges/{id}", "/charges/7/refunds", false),
            ("/charges/{id}/refunds", "/charges/7/refunds", true),
            ("/files/{*rest}", "/files/a/b/c", true),
            ("/files/{*rest}", "/files/", true),
            ("/files/{*rest}", "/files", false),
            ("/{*all}", "/", true),
            ("/café", "/caf%C3%A9", true),
            ("/charges", "/%63harges", true),
            ("/100", "/1%300", true),
        ] {
            let reading = if matches { Reading::Matches } else { Reading::Differs };
            assert_eq!(Path::read(path).is(&pattern(text)), reading, "{text} {path}");
        }
    }

    #[test]
    fn a_path_that_matches_in_one_of_two_readings_is_ambiguous() {
        for (text, path) in [
            ("/charges/{id}", "/charges/a%2Fb"),
            ("/charges/{id}", "/charges/a%2fb"),
            ("/charges", "/x/../charges"),
            ("/charges", "/./charges"),
            ("/charges", "/x/%2e%2E/charges"),
            ("/charges", "/x%2f..%2fcharges"),
            ("/charges/{id}", "/charges/.."),
            ("/charges", "//charges"),
            ("/charges/{id}", "/charges%2F7"),
            ("/charges/{id}", "/charges%5C7"),
            ("/charges", "/charges/."),
            ("/charges", "/charges//"),
        ] {
            assert_eq!(Path::read(path).is(&pattern(text)), Reading::Ambiguous, "{text} {path}");
        }
        // Where no pattern decides, a path may be what it likes.
        for path in ["/projects/group%2Fname/hooks", "/a/../b", "/a//b", "/%zz", "/%", "/%2"] {
            assert_eq!(Path::read(path).is(&pattern("/charges/{id}")), Reading::Differs, "{path}");
        }
    }

    /// Every path of up to four segments, of which one is in no pattern.
    fn paths() -> Vec<String> {
        let mut paths = vec![String::from("/")];
        let mut longest = vec![String::new()];
        for _ in 0..4 {
            let longer = |path: &String| ["a", "b", "other"].map(|segment| format!("{path}/{segment}"));
            longest = longest.iter().flat_map(longer).collect();
            paths.extend(longest.clone());
        }
        paths
    }

    #[test]
    fn a_pattern_covers_another_if_it_has_all_of_its_paths() {
        let texts =
            ["/", "/a", "/{x}", "/a/b", "/a/{x}", "/{x}/b", "/{x}/{y}", "/a/{*r}", "/{*r}", "/{x}/{*r}", "/a/b/{*r}"];
        let paths = paths();
        let has = |text: &str, path: &str| Path::read(path).is(&pattern(text)) == Reading::Matches;
        for text in texts {
            for other in texts {
                let all = paths.iter().all(|path| has(text, path) || !has(other, path));
                assert_eq!(pattern(text).covers(&pattern(other)), all, "{text} {other}");
            }
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_its_remedy() {
        for (text, remedy) in [
            ("", "begins with a slash"),
            ("charges", "begins with a slash"),
            ("/a//b", "leave it out"),
            ("/a/", "leave it out"),
            ("/{}", "has no name"),
            ("/{*}", "has no name"),
            ("/{*rest}/a", "only be the last"),
            ("/a{id}", "split it up"),
            ("/*", "split it up"),
            ("/a%20b", "write it plainly"),
            ("/a?b", "write it plainly"),
            ("/a/../b", "leave it out"),
        ] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
