//! Which services are to be had here, and what becomes of a test whose service is not.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::process::ExitCode;
use std::sync::{LazyLock, Mutex, PoisonError};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use super::starter;

/// The services, by comma, without which a test fails instead of being ignored.
const REQUIRE: &str = "HAPAX_REQUIRE";

/// With these a script says that the service is not to be had; with others, that something is broken.
const ABSENT: [Option<i32>; 2] = [Some(3), Some(4)];

/// A service that is not to be had here, or is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    reason: String,
    is_failure: bool,
}

impl Missing {
    /// What becomes of a test that needs it: ignored with the reason, or failed.
    ///
    /// # Errors
    ///
    /// The service is broken, or `HAPAX_REQUIRE` names it.
    pub fn verdict(self) -> Result<Completion, Failed> {
        if self.is_failure { Err(self.reason.into()) } else { Ok(Completion::ignored_with(self.reason)) }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Missing {}

/// The version of a service, by the name of its folder in `fixtures/`. It is asked once.
///
/// # Errors
///
/// It is not to be had here; [`Missing::verdict`] says what that means for a test.
pub fn required(service: &str) -> Result<String, Missing> {
    static ASKED: LazyLock<Mutex<BTreeMap<String, Result<String, Missing>>>> = LazyLock::new(Mutex::default);
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let required = env::var(REQUIRE).unwrap_or_default();
    asked.entry(service.to_owned()).or_insert_with(|| judge(service, ask(service), &required)).clone()
}

/// How a script ended, and what it wrote to its output and its errors.
type Answer = (Option<i32>, String, String);

fn ask(service: &str) -> Answer {
    match starter::script(service).arg("--version").output() {
        Ok(output) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        }
        Err(error) => (None, String::new(), error.to_string()),
    }
}

fn judge(service: &str, (code, said, complaint): Answer, required: &str) -> Result<String, Missing> {
    if code == Some(0) {
        return Ok(version(&said).to_owned());
    }
    let is_required = required.split(',').any(|name| name.trim() == service);
    let reason = match (ABSENT.contains(&code), is_required) {
        (true, false) => complaint,
        (true, true) => format!("{complaint}; {REQUIRE} demands it"),
        (false, _) => format!("{service} is broken: {complaint}"),
    };
    Err(Missing { reason, is_failure: is_required || !ABSENT.contains(&code) })
}

/// The first word of a greeting that is a number with dots: `8.0.1` in `Valkey server v=8.0.1 sha=00000000`.
fn version(said: &str) -> &str {
    let mut words = said.split_whitespace().map(|word| word.trim_start_matches("v=").trim_start_matches('v'));
    words.find(|word| word.starts_with(|first: char| first.is_ascii_digit())).unwrap_or(said)
}

/// A test that needs a service, on a runtime of its own. Without the service it is shown as ignored, with the reason.
pub fn test<F, T>(name: &str, service: &'static str, body: F) -> Trial
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()>,
{
    Trial::ignorable_test(format!("{service}::{name}"), move || {
        if let Err(missing) = required(service) {
            return missing.verdict();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(body());
        Ok(Completion::Completed)
    })
}

/// Runs the tests. Takes the arguments of a usual test binary.
pub fn main(tests: impl IntoIterator<Item = Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().collect()).exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: i32) -> Answer {
        (Some(code), "Redis server v=7.0.15 sha=00000000:0".into(), "why not".into())
    }

    #[test]
    fn a_service_that_answers_is_there_in_its_version() {
        assert_eq!(judge("redis", answer(0), ""), Ok("7.0.15".into()));
        assert_eq!(version("nats-server: v2.9.10"), "2.9.10");
        assert_eq!(version("postgres (PostgreSQL) 15.20 (Debian)"), "15.20");
        assert_eq!(version("who knows"), "who knows");
    }

    #[test]
    fn a_service_that_is_not_to_be_had_is_ignored_with_the_reason() {
        let missing = judge("redis", answer(3), "redis-stack,valkey").unwrap_err();
        assert_eq!(missing.to_string(), "why not");
        assert!(missing.verdict().is_ok());
    }

    #[test]
    fn a_service_that_is_demanded_and_not_to_be_had_is_a_failure() {
        let missing = judge("redis", answer(4), "valkey, redis").unwrap_err();
        assert_eq!(missing.to_string(), "why not; HAPAX_REQUIRE demands it");
        assert!(missing.verdict().is_err());
    }

    #[test]
    fn a_service_that_is_broken_is_a_failure_in_any_case() {
        assert!(judge("redis", answer(1), "").unwrap_err().verdict().is_err());
        assert!(required("a folder that is not there").unwrap_err().verdict().is_err());
    }
}
