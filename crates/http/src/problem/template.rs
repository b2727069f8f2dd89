//! Problems in the shape of the other errors of an API.

use bytes::Bytes;
use hapax_core::{Error, ErrorKind, RecordKey};
use http::Response;
use serde_json::Value;

use crate::problem::{Problem, ProblemDetails, ShowProblem};

/// Shows problems as JSON in the shape of a template, for clients that read the errors of an API only in its own shape.
///
/// The template is JSON with placeholders in its strings: `{name}`, `{title}`, `{status}`, `{detail}`, `{retry}`,
/// `{type}`, `{instance}` and `{operation}`, which are those of [`ProblemDetails`]; `{name}` is the last part of
/// `{type}`. A string that is only `"{status}"` becomes a number. Without a record, `"{instance}"` and `"{operation}"`
/// become null. Status and header fields are those of [`ProblemDetails`], but for `Content-Type: application/json`.
///
/// ```
/// use hapax::http::{Problem, ProblemTemplate, ShowProblem};
///
/// let problems = ProblemTemplate::parse(r#"{"error":{"code":"{name}","status":"{status}","id":"{operation}"}}"#)?;
/// let response = problems.show(&Problem::KeyReused, None);
/// assert_eq!(response.status(), 422);
/// assert_eq!(&response.body()[..], br#"{"error":{"code":"key-reused","id":null,"status":422}}"#);
/// assert!(ProblemTemplate::parse(r#"{"error":"{message}"}"#).is_err(), "there is no such placeholder");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemTemplate {
    template: Value,
    details: ProblemDetails,
}

/// The members of problem details, and the name.
const PLACEHOLDERS: [&str; 8] = ["name", "title", "status", "detail", "retry", "type", "instance", "operation"];

impl ProblemTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// `Invalid` if the template is no JSON, or has a placeholder that does not exist. Braces of other texts count as
    /// placeholders.
    pub fn parse(template: &str) -> Result<Self, Error> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
        let template: Value = serde_json::from_str(template)
            .map_err(|error| invalid("a template of problems is JSON".into()).caused_by(error))?;
        check(&template).map_err(|unknown| {
            let known = PLACEHOLDERS.map(|name| format!("{{{name}}}")).join(", ");
            invalid(format!("{unknown:?} is no placeholder of a template of problems; write one of {known}"))
        })?;
        Ok(Self { template, details: ProblemDetails::default() })
    }

    /// The response with this detail instead of that of the problem.
    pub fn show_with_detail(&self, problem: &Problem, detail: &str, rk: Option<&RecordKey>) -> Response<Bytes> {
        let value = |name: &str| self.value(problem, name, (detail, rk));
        let document = filled(&self.template, &value);
        self.details.response(problem, rk, ("application/json", document))
    }

    /// The value of a placeholder.
    fn value(&self, problem: &Problem, name: &str, (detail, rk): (&str, Option<&RecordKey>)) -> Value {
        let spec = problem.spec();
        match name {
            "name" => spec.name.into(),
            "title" => spec.title.into(),
            "status" => spec.status.as_u16().into(),
            "detail" => detail.into(),
            "retry" => spec.retry.into(),
            "type" => format!("{}#{}", self.details.page, spec.name).into(),
            "instance" => rk.map(|rk| format!("urn:hapax:record:{rk}")).into(),
            "operation" => rk.map(|rk| rk.operation().to_string()).into(),
            _ => Value::Null,
        }
    }
}

impl ShowProblem for ProblemTemplate {
    fn show(&self, problem: &Problem, rk: Option<&RecordKey>) -> Response<Bytes> {
        self.show_with_detail(problem, &problem.detail(), rk)
    }
}

/// Splits a text at its first placeholder: the text before it, the name, and the text behind it. The name is empty if
/// the brace is not closed.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('{')?;
    let (name, after) = rest.split_once('}').unwrap_or(("", rest));
    Some((before, name, after))
}

/// Checks the placeholders of all strings. The error is the name of an unknown one.
fn check(template: &Value) -> Result<(), String> {
    match template {
        Value::String(text) => {
            let mut rest = text.as_str();
            while let Some((_, name, after)) = split(rest) {
                if !PLACEHOLDERS.contains(&name) {
                    return Err(name.to_owned());
                }
                rest = after;
            }
            Ok(())
        }
        Value::Array(elements) => elements.iter().try_for_each(check),
        Value::Object(members) => members.values().try_for_each(check),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// The template with values in place of its placeholders.
fn filled(template: &Value, value: &dyn Fn(&str) -> Value) -> Value {
    match template {
        Value::String(text) => match split(text) {
            Some(("", name, "")) => value(name),
            Some(_) => filled_text(text, value).into(),
            None => template.clone(),
        },
        Value::Array(elements) => elements.iter().map(|element| filled(element, value)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| (name.clone(), filled(member, value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
    }
}

fn filled_text(text: &str, value: &dyn Fn(&str) -> Value) -> String {
    let (mut filled, mut rest) = (String::new(), text);
    while let Some((before, name, after)) = split(rest) {
        filled.push_str(before);
        match value(name) {
            Value::String(text) => filled.push_str(&text),
            Value::Null => {}
            other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                filled.push_str(&other.to_string());
            }
        }
        rest = after;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_with_one_problem() {
        let text = r#"["{status}", "a {status} b {name}", {"deep": ["{detail}"]}, 5, "plain", "{operation}!"]"#;
        let shown = ProblemTemplate::parse(text).unwrap().show(&Problem::KeyMalformed("say \"a\"".into()), None);
        let document: Value = serde_json::from_slice(shown.body()).unwrap();
        let detail = "The idempotency key cannot be read: say \"a\".";
        let expected = serde_json::json!([400, "a 400 b key-malformed", {"deep": [detail]}, 5, "plain", "!"]);
        assert_eq!(document, expected);
        assert_eq!(shown.headers()["content-type"], "application/json");
        assert!(shown.headers().contains_key("link") && shown.extensions().get::<Problem>().is_some());
    }

    #[test]
    fn a_template_has_known_placeholders_only() {
        for text in ["", "{", "\"{}\"", "\"{a\"", "\"{Name}\"", "[\"{key}\"]", "{\"a\":{\"b\":\"{name}{x}\"}}"] {
            assert!(ProblemTemplate::parse(text).is_err(), "{text}");
        }
    }
}
