//! Which server the sentinels of a master name.
//!
//! Every sentinel in the URL is asked, and the address that more than half of them name counts: while a master is being
//! replaced, one sentinel may still name the old one when the new one takes writes.

pub(super) mod checks;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Error, ErrorKind, Result};
use hapax_net::url::Host;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value, cmd};

use super::RedisUrl;
use super::call_error::{DriverError, RedisCallError, Transport, UNKNOWN_COMMAND};
use super::value;
use crate::errors::unusable;

/// How long the sentinels may take, all at once: as long as the connection that follows. One takes several round trips,
/// and more over TLS.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Asks the sentinels for the address of the master, until enough of them name it.
///
/// # Errors
/// If no address has a majority. Nothing was sent to a server.
pub(super) async fn master(url: &RedisUrl, runtime: &dyn Runtime) -> Result<Host> {
    let mut votes = SentinelVotes::of(url);
    let mut answers = answers(url, runtime);
    while let Some((sentinel, answer)) = answers.next().await {
        votes.count(sentinel, answer);
        if let Some(master) = votes.elected() {
            return Ok(master);
        }
    }
    Err(votes.failure())
}

/// The answer of one sentinel: an address, or none for a master that it does not know.
type SentinelAnswer = Result<Option<Host>>;

/// Asks all sentinels at once. The answers come in any order.
fn answers<'a>(
    url: &'a RedisUrl,
    runtime: &'a dyn Runtime,
) -> FuturesUnordered<impl Future<Output = (&'a Host, SentinelAnswer)>> {
    let ask_one = |sentinel| async move {
        let in_time = runtime::timeout(runtime, ANSWER_TIME, ask(url, sentinel)).await;
        let silent = || Err(Error::new(ErrorKind::NotApplied, "it does not answer"));
        (sentinel, in_time.unwrap_or_else(silent))
    };
    url.hosts().iter().map(ask_one).collect()
}

async fn ask(url: &RedisUrl, sentinel: &Host) -> SentinelAnswer {
    let mut command = cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(url.master_name());
    let asked = exchange(&url.sentinel_client(sentinel)?, &command).await;
    parse_address(asked.map_err(|error| refusal(error, url.transport()))?)
}

/// Sends one command on a connection of its own.
async fn exchange(client: &Client, command: &Cmd) -> Result<Value, RedisError> {
    // The caller sets the deadline.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    connection.send_packed_command(command).await?.extract_error()
}

/// Why a sentinel does not tell the master.
fn refusal(error: RedisError, transport: Transport) -> Error {
    let message = match error.code() {
        Some("NOAUTH") => "it asks for a password; name its file by ?sentinel-password-file=",
        Some("WRONGPASS") => "it rejects sentinel-user, or the password in sentinel-password-file",
        Some("NOPERM") => "its user needs +sentinel|get-master-addr-by-name",
        _ if error.detail().is_some_and(|detail| detail.starts_with(UNKNOWN_COMMAND)) => {
            // The server repeats the command, and that of a handshake contains the password.
            return unusable("it is no sentinel, or lacks HELLO; the URL of a server is redis://HOST");
        }
        _ => return RedisCallError::NotConnected(error, transport).into(),
    };
    unusable(message).caused_by(DriverError(error))
}

fn parse_address(reply: Value) -> SentinelAnswer {
    if reply == Value::Nil {
        return Ok(None);
    }
    let Value::Array(parts) = reply else { return Err(value::unexpected_reply()) };
    host(parts).map(Some).ok_or_else(value::unexpected_reply)
}

/// Reads a host from a reply that begins with its name and its port.
fn host(parts: impl IntoIterator<Item = Value>) -> Option<Host> {
    let mut texts = parts.into_iter().map(|part| {
        let text = value::reply_bytes(part).ok()??;
        str::from_utf8(&text).map(str::to_owned).ok()
    });
    let (name, port) = (texts.next()??, texts.next()??);
    Some(Host { name, port: port.parse().ok()? })
}

/// The answers of the sentinels so far.
struct SentinelVotes {
    sentinels: usize,
    /// How many must agree: more than half.
    enough: usize,
    votes: BTreeMap<String, (usize, Host)>,
    /// How many know no master of the name.
    unaware: usize,
    /// The sentinels that told nothing, each with the reason.
    failures: Vec<(ErrorKind, String)>,
}

impl SentinelVotes {
    fn of(url: &RedisUrl) -> Self {
        Self::among(url.hosts().len())
    }

    fn among(sentinels: usize) -> Self {
        Self { sentinels, enough: sentinels / 2 + 1, votes: BTreeMap::new(), unaware: 0, failures: Vec::new() }
    }

    fn count(&mut self, sentinel: &Host, answer: SentinelAnswer) {
        match answer {
            Ok(Some(host)) => self.votes.entry(host.to_string()).or_insert((0, host)).0 += 1,
            Ok(None) => self.unaware += 1,
            Err(error) => self.failures.push((error.kind(), format!("sentinel {sentinel}: {error}"))),
        }
    }

    /// The address that more than half of the sentinels name.
    fn elected(&self) -> Option<Host> {
        self.votes.values().find(|(count, _)| *count >= self.enough).map(|(_, host)| host.clone())
    }

    /// Which addresses they named, and how often.
    fn named(&self) -> String {
        let named: Vec<_> =
            self.votes.values().map(|(count, host)| format!("{count} of {} name {host}", self.sentinels)).collect();
        if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) }
    }

    /// Why no address has a majority.
    fn failure(&self) -> Error {
        if self.unaware >= self.enough {
            return unusable("the sentinels know no master of the name in the URL");
        }
        let named = self.named();
        let message = format!("the sentinels do not agree on the master{named}");
        // A wrong password stays wrong. But as long as the others can agree, only they keep the master unknown.
        let lasting = || self.failures.iter().filter(|(kind, _)| *kind == ErrorKind::Unusable);
        let first = if lasting().count() > self.sentinels - self.enough { lasting().next() } else { None };
        match first.or(self.failures.iter().find(|(kind, _)| *kind != ErrorKind::Unusable)) {
            Some((ErrorKind::Unusable, cause)) => unusable(format!("{message}: {cause}")),
            Some((_, cause)) => Error::new(ErrorKind::NotApplied, format!("{message}: {cause}")),
            None => Error::new(ErrorKind::NotApplied, message),
        }
    }
}

/// Fails unless the reply to `ROLE` is that of a master.
pub(super) fn expect_master(role: Value) -> Result<(), RedisCallError> {
    let first = if let Value::Array(parts) = role { parts.into_iter().next() } else { None };
    let role = first.and_then(|role| value::reply_bytes(role).ok()?);
    if role.is_some_and(|role| role == b"master"[..]) {
        return Ok(());
    }
    let message = "the server that the sentinels name is no master yet";
    Err(RedisCallError::Judged(Error::new(ErrorKind::NotApplied, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Host {
        Host { name: name.into(), port: 6379 }
    }

    /// The outcome of the answers of three sentinels. One of them tells nothing where there is no answer.
    fn found(answers: [Option<Option<&str>>; 3]) -> Result<Host> {
        let mut votes = SentinelVotes::among(3);
        for answer in answers {
            let silent = || Err(Error::new(ErrorKind::NotApplied, "it does not answer"));
            votes.count(&named("s"), answer.map_or_else(silent, |name| Ok(name.map(named))));
        }
        votes.elected().ok_or_else(|| votes.failure())
    }

    #[test]
    fn more_than_half_of_the_sentinels_must_name_the_master() {
        let (old, new) = (Some(Some("old")), Some(Some("new")));
        assert_eq!(found([old, new, new]).unwrap(), named("new"));
        assert_eq!(found([old, old, None]).unwrap(), named("old"));
        for apart in [[old, new, None], [new, None, None], [None, None, None], [old, new, Some(None)]] {
            assert_eq!(found(apart).unwrap_err().kind(), ErrorKind::NotApplied, "{apart:?}");
        }
        let error = found([Some(None), Some(None), old]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unusable, "{error}");
        let apart = found([old, new, None]).unwrap_err().to_string();
        assert!(apart.contains("(1 of 3 name new:6379, 1 of 3 name old:6379): sentinel s:6379: it does"), "{apart}");
    }

    #[test]
    fn a_host_that_repeats_its_command_tells_no_password() {
        let reply = b"-ERR unknown command `HELLO`, with args beginning with: `3` `AUTH` `some` `secret`\r\n";
        let refused = redis::parse_redis_value(reply).unwrap().extract_error().unwrap_err();
        let error = refusal(refused, Transport::Plain);
        assert!(error.to_string().contains("no sentinel") && !format!("{error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn only_a_master_is_taken() {
        let role = |name: &str| Value::Array(vec![Value::BulkString(name.into()), Value::Int(0)]);
        assert!(expect_master(role("master")).is_ok());
        for other in [role("slave"), role("sentinel"), Value::Nil] {
            assert!(expect_master(other).is_err());
        }
    }

    #[test]
    fn wrong_passwords_last_only_where_they_prevent_a_majority() {
        let mut votes = SentinelVotes::among(3);
        votes.count(&named("a"), Err(Error::new(ErrorKind::NotApplied, "it does not answer")));
        votes.count(&named("b"), Err(unusable("it asks for a password")));
        assert_eq!(votes.failure().kind(), ErrorKind::NotApplied, "a and c may agree later");
        votes.count(&named("c"), Err(unusable("it asks for a password")));
        let error = votes.failure();
        assert_eq!(error.kind(), ErrorKind::Unusable);
        assert!(error.to_string().ends_with("sentinel b:6379: it asks for a password"), "{error}");
    }
}
