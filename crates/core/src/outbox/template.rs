use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::outbox::OutgoingEvent;

/// Maps an event to the name under which a sink publishes it: a topic of Kafka, a subject of NATS, a queue or an
/// endpoint. `{topic}` stands for the topic of the event, `{namespace}` for its namespace. The default is `{topic}`.
///
/// ```
/// use hapax::EventId;
/// use hapax::outbox::{OutgoingEvent, TopicTemplate};
///
/// let template: TopicTemplate = "orders.{topic}".parse()?;
/// let event = OutgoingEvent::new(EventId::from_random([7; 16]), "paid", "5");
/// assert_eq!(template.name(&event), "orders.paid");
/// assert!("orders.{topc}".parse::<TopicTemplate>().is_err());
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    parts: Arc<[TemplatePart]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(Box<str>),
    Topic,
    Namespace,
}

impl TopicTemplate {
    /// The name of an event. Whether a sink can use it, the sink decides.
    pub fn name(&self, event: &OutgoingEvent) -> String {
        self.fill(&event.topic, &event.namespace)
    }

    /// The name of an event.
    ///
    /// # Errors
    /// Why the sink cannot use the name, in words for an operator. `check` returns what is wrong with a name, for
    /// instance "has a blank".
    pub fn checked_name(
        &self,
        event: &OutgoingEvent,
        check: impl FnOnce(&str) -> Result<(), &'static str>,
    ) -> Result<String, String> {
        let name = self.name(event);
        match check(&name) {
            Ok(()) => Ok(name),
            Err(wrong) => Err(format!("the topic {:?} becomes the name {name:?}, which {wrong}", event.topic)),
        }
    }

    /// The name with these words in the places of the topic and of the namespace.
    pub fn fill(&self, topic: &str, namespace: &str) -> String {
        let words = self.parts.iter().map(|part| match part {
            TemplatePart::Text(text) => text,
            TemplatePart::Topic => topic,
            TemplatePart::Namespace => namespace,
        });
        words.collect()
    }

    /// The only name that there is, if the template has no place.
    pub fn constant(&self) -> Option<String> {
        let is_text = |part: &TemplatePart| matches!(part, TemplatePart::Text(_));
        self.parts.iter().all(is_text).then(|| self.fill("", ""))
    }
}

impl Default for TopicTemplate {
    fn default() -> Self {
        Self { parts: [TemplatePart::Topic].into() }
    }
}

impl FromStr for TopicTemplate {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is empty, or has another place than `{topic}` and `{namespace}`.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        if text.is_empty() {
            return Err(invalid(
                "the template of a topic is not empty; write {topic} for the topic of the event".into(),
            ));
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some(place) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(place);
            let Some((name, behind)) = brace.strip_prefix('{').and_then(|inner| inner.split_once('}')) else {
                return Err(invalid(format!("the template {text:?} has a brace without its other half")));
            };
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before.into()));
            }
            parts.push(match name {
                "topic" => TemplatePart::Topic,
                "namespace" => TemplatePart::Namespace,
                other => {
                    let message =
                        format!("{{{other}}} in {text:?} is unknown; a template has {{topic}} and {{namespace}}");
                    return Err(invalid(message));
                }
            });
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Text(rest.into()));
        }
        Ok(Self { parts: parts.into() })
    }
}

impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fill("{topic}", "{namespace}"))
    }
}

impl fmt::Debug for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicTemplate({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::EventId;

    #[test]
    fn a_template_is_filled_and_printed() {
        let mut event = OutgoingEvent::new(EventId::from_bytes([1; 16]), "paid", "");
        event.namespace = "shop".into();
        for (text, name) in [
            ("{topic}", "paid"),
            ("orders.{topic}", "orders.paid"),
            ("{namespace}-{topic}.v1", "shop-paid.v1"),
            ("{topic}{topic}", "paidpaid"),
            ("all", "all"),
        ] {
            let template: TopicTemplate = text.parse().unwrap();
            assert_eq!((template.name(&event).as_str(), template.to_string().as_str()), (name, text));
            assert_eq!(template.constant().is_some(), text == "all");
        }
        assert_eq!(TopicTemplate::default().to_string(), "{topic}");
    }

    #[test]
    fn a_template_with_an_unknown_or_a_broken_place_is_told_what_is_wrong() {
        for (text, word) in
            [("", "not empty"), ("a{topc}", "{topc}"), ("{topic", "half"), ("topic}", "half"), ("}{topic}{", "half")]
        {
            let error = text.parse::<TopicTemplate>().unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_that_the_sink_cannot_use_is_told_with_its_topic() {
        let template: TopicTemplate = "orders.{topic}".parse().unwrap();
        let event = OutgoingEvent::new(EventId::from_bytes([1; 16]), "a b", "");
        let refused = template.checked_name(&event, |_| Err("has a blank")).unwrap_err();
        assert_eq!(refused, r#"the topic "a b" becomes the name "orders.a b", which has a blank"#);
    }
}
