//! Patterns of paths, and how the path of a request is compared with them.

use std::borrow::Cow;
use std::fmt;

use anyhow::bail;
use percent_encoding::percent_decode_str;

/// A pattern of paths: literal segments, `{name}` for one segment, and at the end `{*name}` for one or more segments. A
/// slash at the end of a path is ignored: many servers treat both paths alike, so a client could bypass its route
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// Exactly this text, compared with the decoded segment.
    Literal(String),
    /// Any segment that is not empty.
    Any,
    /// All remaining segments, at least one.
    Rest,
}

impl std::str::FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, anyhow::Error> {
        let Some(path) = text.strip_prefix('/') else {
            bail!("a path begins with a slash, /charges/{{id}} for instance");
        };
        if path.split('/').any(str::is_empty) && !path.is_empty() {
            bail!("a slash at the end or after another slash is ignored; leave it out");
        }
        let last = path.split('/').count() - 1;
        let segments = path.split('/').enumerate().map(|(index, segment)| Segment::parse(segment, index == last));
        Ok(Self { text: text.to_owned(), segments: segments.collect::<Result<_, _>>()? })
    }
}

impl Segment {
    fn parse(text: &str, is_last: bool) -> Result<Self, anyhow::Error> {
        let name = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        match name.map(|name| name.strip_prefix('*').map_or((false, name), |name| (true, name))) {
            Some((_, name)) if name.is_empty() || name.contains(['{', '}', '*']) => {
                bail!("{text} has no name; write {{id}} or {{*rest}}")
            }
            Some((false, _)) => Ok(Self::Any),
            Some((true, _)) if is_last => Ok(Self::Rest),
            Some((true, _)) => bail!("{text} matches all remaining segments; it can only be the last segment"),
            None if text.contains(['{', '}', '*']) => bail!("{text} mixes text and {{name}}; split it up"),
            None if text.contains(['%', '?', '#', '\\']) => {
                bail!("{text} is compared with the decoded path, without its query; write it plainly")
            }
            None if matches!(text, "." | "..") => bail!("a path with the segment {text} never matches; leave it out"),
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
    /// Whether a path matches, given as its decoded segments.
    fn matches(&self, path: &[Cow<'_, [u8]>]) -> bool {
        // A slash at the end leaves an empty last segment; `start` is the path without it.
        let (end, start) = path.split_last().unwrap_or((&Cow::Borrowed(b""), path));
        self.matches_exactly(path) || (end.is_empty() && self.matches_exactly(start))
    }

    fn matches_exactly(&self, path: &[Cow<'_, [u8]>]) -> bool {
        let mut segments = path.iter();
        for segment in &self.segments {
            let fits = match (segment, segments.next()) {
                (Segment::Rest, Some(_)) => return true,
                (Segment::Any, Some(next)) => !next.is_empty(),
                (Segment::Literal(text), Some(next)) => **next == *text.as_bytes(),
                (Segment::Rest | Segment::Any | Segment::Literal(_), None) => false,
            };
            if !fits {
                return false;
            }
        }
        segments.next().is_none()
    }

    /// Whether this pattern matches every path that the other one matches.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let ends_in_rest = self.segments.last() == Some(&Segment::Rest);
        let has_length = if ends_in_rest {
            self.segments.len() <= other.segments.len()
        } else {
            self.segments.len() == other.segments.len()
        };
        has_length && self.segments.iter().zip(&other.segments).all(|(own, other)| own.covers(other))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The path of a request, decoded in the two ways in which servers read it.
#[derive(Debug)]
pub(crate) struct RequestPath<'a> {
    /// Split first, then decoded: an encoded slash is part of a segment, and dot segments are names.
    literal: Vec<Cow<'a, [u8]>>,
    /// Decoded first, then split, without path parameters, dot segments and doubled slashes. None if it equals
    /// `literal`.
    normalized: Option<Vec<Cow<'a, [u8]>>>,
}

impl<'a> RequestPath<'a> {
    pub(crate) fn parse(path: &'a str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let literal: Vec<_> = path.split('/').map(decode).collect();
        let normalized = normalize(&decode(path));
        let normalized = (literal != normalized).then_some(normalized);
        Self { literal, normalized }
    }

    pub(crate) fn compare(&self, pattern: &Pattern) -> PathMatch {
        match &self.normalized {
            None if pattern.matches(&self.literal) => PathMatch::Matches,
            Some(normalized) if pattern.matches(&self.literal) || pattern.matches(normalized) => PathMatch::Ambiguous,
            None | Some(_) => PathMatch::Differs,
        }
    }
}

/// How a path compares with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathMatch {
    Matches,
    Differs,
    /// The path matches in at least one of two readings that differ. The API may read it in the other way.
    Ambiguous,
}

fn decode(text: &str) -> Cow<'_, [u8]> {
    percent_decode_str(text).into()
}

/// Splits a path as a server does that decodes first. Some servers read a backslash as a slash, and others leave out
/// the path parameters of a segment (`orders;v=1`).
fn normalize(path: &[u8]) -> Vec<Cow<'static, [u8]>> {
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut ends_in_slash = true;
    for segment in path.split(|byte| matches!(byte, b'/' | b'\\')) {
        ends_in_slash = true;
        match segment.split(|byte| *byte == b';').next().unwrap_or(segment) {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            name => {
                segments.push(name);
                ends_in_slash = false;
            }
        }
    }
    // As in `literal`, an empty last segment stands for a slash at the end.
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
    fn a_pattern_matches_segment_by_segment() {
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
            let expected = if matches { PathMatch::Matches } else { PathMatch::Differs };
            assert_eq!(RequestPath::parse(path).compare(&pattern(text)), expected, "{text} {path}");
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
            ("/charges/{id}", "/charges;v=1/7"),
            ("/charges/{id}", "/charges/7;v=1"),
            ("/charges/{id}", "/charges%3B/7"),
            ("/charges", "/;/charges"),
            ("/charges", "/x/..;v=1/charges"),
        ] {
            assert_eq!(RequestPath::parse(path).compare(&pattern(text)), PathMatch::Ambiguous, "{text} {path}");
        }
        // If no pattern matches in either reading, the path is not ambiguous.
        for path in ["/projects/group%2Fname/hooks", "/a/../b", "/a//b", "/a;b/c", "/%zz", "/%", "/%2"] {
            assert_eq!(RequestPath::parse(path).compare(&pattern("/charges/{id}")), PathMatch::Differs, "{path}");
        }
    }

    /// Every path of up to four segments; the segment `other` is in no pattern.
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
    fn a_pattern_covers_another_if_it_matches_all_of_its_paths() {
        let texts =
            ["/", "/a", "/{x}", "/a/b", "/a/{x}", "/{x}/b", "/{x}/{y}", "/a/{*r}", "/{*r}", "/{x}/{*r}", "/a/b/{*r}"];
        let paths = paths();
        let matches = |text: &str, path: &str| RequestPath::parse(path).compare(&pattern(text)) == PathMatch::Matches;
        for text in texts {
            for other in texts {
                let all = paths.iter().all(|path| matches(text, path) || !matches(other, path));
                assert_eq!(pattern(text).covers(&pattern(other)), all, "{text} {other}");
            }
        }
    }

    #[test]
    fn a_malformed_pattern_is_refused_with_its_remedy() {
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
