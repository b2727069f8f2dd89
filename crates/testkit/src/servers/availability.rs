//! Finds out which services are available, and ignores or fails the tests of missing ones.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::process::ExitCode;
use std::sync::LazyLock;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use parking_lot::Mutex;

use super::starter;
use crate::suite_runner::run_trials;

/// A comma-separated list of services. If one of them is missing, its tests fail instead of being ignored.
const REQUIRE: &str = "HAPAX_REQUIRE";

/// The exit codes with which a service's script reports that the service is unavailable. Other codes mean that it is
/// broken.
const ABSENT: [Option<i32>; 2] = [Some(3), Some(4)];

/// A service that is unavailable or broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingService {
    reason: String,
    is_failure: bool,
}

impl MissingService {
    /// The outcome of a test that needs the service: ignored with the reason, or failed.
    ///
    /// # Errors
    ///
    /// If the service is broken, or `HAPAX_REQUIRE` names it.
    pub fn outcome(self) -> Result<Completion, Failed> {
        if self.is_failure { Err(self.reason.into()) } else { Ok(Completion::ignored_with(self.reason)) }
    }
}

impl fmt::Display for MissingService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for MissingService {}

/// The version of a service, by the name of its folder in `fixtures/`. Runs the service's script once.
///
/// # Errors
///
/// If the service is unavailable or broken. [`MissingService::outcome`] gives the outcome of a test that needs it.
pub fn required(service: &str) -> Result<String, MissingService> {
    static RESULTS: LazyLock<Mutex<BTreeMap<String, Result<String, MissingService>>>> = LazyLock::new(Mutex::default);
    // The lock is held while the script runs, so that concurrent tests run it once.
    let mut results = RESULTS.lock();
    let required = env::var(REQUIRE).unwrap_or_default();
    results.entry(service.to_owned()).or_insert_with(|| evaluate(service, run_script(service), &required)).clone()
}

/// A script's exit code, standard output and standard error.
type ScriptOutput = (Option<i32>, String, String);

fn run_script(service: &str) -> ScriptOutput {
    match starter::script(service).arg("--version").output() {
        Ok(output) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        }
        Err(error) => (None, String::new(), error.to_string()),
    }
}

fn evaluate(service: &str, (code, output, complaint): ScriptOutput, required: &str) -> Result<String, MissingService> {
    if code == Some(0) {
        return Ok(version(&output).to_owned());
    }
    let is_required = required.split(',').any(|name| name.trim() == service);
    let reason = match (ABSENT.contains(&code), is_required) {
        (true, false) => complaint,
        (true, true) => format!("{complaint}; {REQUIRE} demands it"),
        (false, _) => format!("{service} is broken: {complaint}"),
    };
    Err(MissingService { reason, is_failure: is_required || !ABSENT.contains(&code) })
}

/// The version in a line such as `Valkey server v=8.0.1 sha=00000000`.
fn version(line: &str) -> &str {
    let mut words = line.split_whitespace().map(|word| word.trim_start_matches("v=").trim_start_matches('v'));
    words.find(|word| word.starts_with(|first: char| first.is_ascii_digit())).unwrap_or(line)
}

/// A test that needs a service, on its own runtime. If the service is missing, the test is ignored with the reason.
pub fn test<F, T>(name: &str, service: &'static str, body: F) -> Trial
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()>,
{
    Trial::ignorable_test(format!("{service}::{name}"), move || {
        if let Err(missing) = required(service) {
            return missing.outcome();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(body());
        Ok(Completion::Completed)
    })
}

/// Runs the tests. Accepts the arguments of a standard test binary.
pub fn main(tests: impl IntoIterator<Item = Trial>) -> ExitCode {
    run_trials(Arguments::from_args(), tests.into_iter().collect())
}

/// Ends the servers that the tests of this process share.
pub(crate) fn end_shared() {
    #[cfg(feature = "postgres")]
    {
        super::PgBouncer::end_shared();
        super::PostgresServer::end_shared();
    }
    super::NatsServer::end_shared();
    super::KafkaServer::end_shared();
    super::RabbitMqServer::end_shared();
    super::RabbitMq3Server::end_shared();
    super::ElasticMqServer::end_shared();
    super::MinioServer::end_shared();
    super::PubSubServer::end_shared();
    super::PsTestServer::end_shared();
    super::SpannerServer::end_shared();
    super::DynamoDbServer::end_idle();
    super::RedisCluster::end_idle();
    super::RedisSentinels::end_idle();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(code: i32) -> ScriptOutput {
        (Some(code), "Redis server v=7.0.15 sha=00000000:0".into(), "why not".into())
    }

    #[test]
    fn the_version_of_an_available_service_is_found() {
        assert_eq!(evaluate("redis", output(0), ""), Ok("7.0.15".into()));
        assert_eq!(version("nats-server: v2.9.10"), "2.9.10");
        assert_eq!(version("postgres (PostgreSQL) 15.20 (Debian)"), "15.20");
        assert_eq!(version("no version"), "no version");
    }

    #[test]
    fn a_missing_service_is_ignored_with_the_reason() {
        let missing = evaluate("redis", output(3), "redis-stack,valkey").unwrap_err();
        assert_eq!(missing.to_string(), "why not");
        assert!(missing.outcome().is_ok());
    }

    #[test]
    fn a_required_service_that_is_missing_is_a_failure() {
        let missing = evaluate("redis", output(4), "valkey, redis").unwrap_err();
        assert_eq!(missing.to_string(), "why not; HAPAX_REQUIRE demands it");
        assert!(missing.outcome().is_err());
    }

    #[test]
    fn a_broken_service_is_always_a_failure() {
        assert!(evaluate("redis", output(1), "").unwrap_err().outcome().is_err());
        assert!(required("a folder that does not exist").unwrap_err().outcome().is_err());
    }
}
