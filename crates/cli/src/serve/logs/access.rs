//! The lines of the access log.
//!
//! Each request has one, so an ordinary line does not become an event of `tracing`: that would cost several times as
//! much. It has the bytes that the event would have.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::OnceLock;

use hapax::{OperationId, RecordKey};
use http::Method;
use serde::{Serialize, Serializer};
use tracing::Span;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::serve::logs::{ACCESS, LogFormat, output};

/// The format of the log. Not set while nothing is logged, and if the access log is off.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

thread_local! {
    /// The line that this thread writes.
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Ordinary lines are written in this format from now on.
pub(super) fn start(format: LogFormat) {
    let _ = FORMAT.set(format);
}

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct AccessLine<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    /// Without a status, the request ended before its response.
    pub(crate) status: Option<u16>,
    pub(crate) outcome: &'static str,
    pub(crate) rk: Option<RecordKey>,
    /// How long the request took, in milliseconds.
    pub(crate) ms: u64,
    pub(crate) trace: Option<&'a str>,
    /// Whether the client did not get the whole response.
    pub(crate) is_cut: bool,
}

impl AccessLine<'_> {
    pub(crate) fn log(&self) {
        match FORMAT.get() {
            Some(format) if self.is_ordinary() => LINE.with_borrow_mut(|line| {
                line.clear();
                self.write(*format, line);
                output::push_access_line(line);
            }),
            Some(_) | None => self.log_as_event(),
        }
    }

    /// Whether the line needs nothing of `tracing`: neither fields of a span, nor escapes of unusual characters.
    fn is_ordinary(&self) -> bool {
        Span::current().is_none() && self.path.bytes().all(|byte| byte.is_ascii_graphic())
    }

    fn log_as_event(&self) {
        tracing::info!(
            target: ACCESS,
            method = %self.method,
            path = %self.path,
            status = self.status,
            outcome = self.outcome,
            rk = self.rk.as_ref().map(tracing::field::debug),
            operation = self.rk.map(|rk| tracing::field::display(rk.operation())),
            ms = self.ms,
            trace = self.trace,
            cut = self.is_cut.then_some(true),
            "request"
        );
    }

    fn write(&self, format: LogFormat, line: &mut Vec<u8>) {
        let mut timestamp = String::with_capacity(32);
        // Neither the time nor a line in memory can fail to be written.
        let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        match format {
            LogFormat::Json => self.write_json(&timestamp, line),
            LogFormat::Text => self.write_text(&timestamp, line),
        }
    }

    fn write_json(&self, timestamp: &str, line: &mut Vec<u8>) {
        let json = JsonLine {
            timestamp,
            level: "INFO",
            message: "request",
            method: self.method.as_str(),
            path: self.path,
            status: self.status,
            outcome: self.outcome,
            rk: self.rk.map(ShortRecordKey),
            operation: self.rk.map(|rk| HyphenatedId(rk.operation())),
            ms: self.ms,
            trace: self.trace,
            cut: self.is_cut.then_some(true),
            target: ACCESS,
        };
        let _ = serde_json::to_writer(line, &json);
    }

    fn write_text(&self, timestamp: &str, line: &mut Vec<u8>) {
        let mut text = format!("{timestamp}  INFO request method={} path={}", self.method, self.path);
        let mut add = |field: std::fmt::Arguments<'_>| {
            let _ = text.write_fmt(field);
        };
        if let Some(status) = self.status {
            add(format_args!(" status={status}"));
        }
        add(format_args!(" outcome={:?}", self.outcome));
        if let Some(rk) = self.rk {
            add(format_args!(" rk={rk:?} operation={}", rk.operation()));
        }
        add(format_args!(" ms={}", self.ms));
        if let Some(trace) = self.trace {
            add(format_args!(" trace={trace:?}"));
        }
        if self.is_cut {
            add(format_args!(" cut=true"));
        }
        line.extend_from_slice(text.as_bytes());
    }
}

/// The fields of a line in JSON, in their order.
#[derive(Serialize)]
struct JsonLine<'a> {
    timestamp: &'a str,
    level: &'static str,
    message: &'static str,
    method: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rk: Option<ShortRecordKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<HyphenatedId>,
    ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<bool>,
    target: &'static str,
}

struct ShortRecordKey(RecordKey);

impl Serialize for ShortRecordKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:?}", self.0))
    }
}

struct HyphenatedId(OperationId);

impl Serialize for HyphenatedId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::subscriber::with_default;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::serve::logs::lines_to;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The line that the formatter of events writes.
    fn event(line: &AccessLine<'_>, format: LogFormat) -> String {
        let written = Written::default();
        let writer = written.clone();
        let lines = lines_to(move || writer.clone(), format);
        with_default(tracing_subscriber::registry().with(lines), || line.log_as_event());
        let bytes = written.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// The line with zeros in the place of its time, which is as long.
    fn without_time(line: &str) -> String {
        let at = line.find("20").expect("a time");
        let length = line[at..].find('Z').expect("a time in UTC");
        format!("{}{}{}", &line[..at], "0".repeat(length), &line[at + length..])
    }

    #[test]
    fn an_ordinary_line_has_the_bytes_of_the_event() {
        let rk = RecordKey::from_bytes([0xa7; 16]);
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let paths = ["/", "/charges/17", r#"/a"b\c{d}'|<>%22&="#, "/~:@!$"];
        let methods = [Method::POST, Method::DELETE, Method::from_bytes(b"M-SEARCH'!#").unwrap()];
        for path in paths {
            for method in &methods {
                for (status, is_cut) in [(None, false), (Some(201), false), (Some(503), true)] {
                    for (rk, trace) in [(None, None), (Some(rk), Some(trace)), (Some(rk), None)] {
                        let line =
                            AccessLine { method, path, status, outcome: "replayed", rk, ms: 1234, trace, is_cut };
                        assert!(line.is_ordinary());
                        for format in [LogFormat::Json, LogFormat::Text] {
                            let mut ours = Vec::new();
                            line.write(format, &mut ours);
                            ours.push(b'\n');
                            let ours = String::from_utf8(ours).unwrap();
                            assert_eq!(without_time(&ours), without_time(&event(&line, format)));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_line_with_unusual_characters_is_an_event() {
        let method = &Method::POST;
        for path in ["/a\u{1b}[31m", "/\u{85}", "/\u{202e}", "/ö", "/a b", "/\u{7f}"] {
            let line = AccessLine {
                method,
                path,
                status: None,
                outcome: "passed",
                rk: None,
                ms: 0,
                trace: None,
                is_cut: false,
            };
            assert!(!line.is_ordinary(), "{path:?}");
        }
    }

    #[test]
    fn a_line_in_a_span_is_an_event() {
        let line = AccessLine {
            method: &Method::GET,
            path: "/",
            status: None,
            outcome: "passed",
            rk: None,
            ms: 0,
            trace: None,
            is_cut: false,
        };
        with_default(tracing_subscriber::registry(), || {
            assert!(line.is_ordinary());
            tracing::info_span!("a span").in_scope(|| assert!(!line.is_ordinary()));
        });
    }
}
