//! The little of XML in the answers of S3: elements by their names, and the text in them.

use std::borrow::Cow;

/// The text in the first element of this name. None if there is no such element.
pub(crate) fn text(xml: &str, name: &str) -> Option<String> {
    elements(xml, name).next().map(|content| unescaped(content.trim()).into_owned())
}

/// The contents of the elements with this name, in their order. A nested element of the same name is part of the outer
/// one.
pub(crate) fn elements<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (begin, end, empty) = (format!("<{name}>"), format!("</{name}>"), format!("<{name}/>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let is_empty = |at: usize| rest.find(&empty).is_some_and(|other| other < at);
        let at = rest.find(&begin).unwrap_or(rest.len());
        if is_empty(at) {
            rest = &rest[rest.find(&empty)? + empty.len()..];
            return Some("");
        }
        let inside = rest.get(at + begin.len()..)?;
        let (content, behind) = inside.split_once(&*end)?;
        rest = behind;
        Some(content)
    })
}

/// A text without references to characters.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    let references = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#34;", "\""), ("&apos;", "'"), ("&#39;", "'")];
    let plain = references.iter().fold(text.to_owned(), |text, (written, meant)| text.replace(written, meant));
    plain.replace("&amp;", "&").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_their_names() {
        let xml = "<?xml version=\"1.0\"?><Error xmlns=\"x\"><Code>NoSuchKey</Code><Message>a &lt;b&gt; &amp;lt; \
                   c</Message><Empty/><Key> k </Key><Empty>1</Empty></Error>";
        assert_eq!(text(xml, "Code").as_deref(), Some("NoSuchKey"));
        assert_eq!(text(xml, "Message").as_deref(), Some("a <b> &lt; c"));
        assert_eq!(text(xml, "Key").as_deref(), Some("k"));
        assert_eq!(text(xml, "Other"), None);
        assert_eq!(elements(xml, "Empty").collect::<Vec<_>>(), ["", "1"]);
        assert_eq!(elements("<A>1</A><A>2", "A").collect::<Vec<_>>(), ["1"]);
    }
}
