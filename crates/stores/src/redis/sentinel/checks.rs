//! Settings and states of a master, its replicas and its sentinels that endanger the guarantee.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::StreamExt;
use hapax_core::runtime;
use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, ErrorKind, Result};
use hapax_net::url::Host;
use redis::{Value, cmd};

use super::{SentinelVotes, answers, exchange, host};
use crate::redis::call_error::RedisCallError;
use crate::redis::link::Link;
use crate::redis::server_info::{ServerInfo, ServerPlace};
use crate::redis::{RedisUrl, checks, value};

/// How long a replica may take. The others are reported all the same.
const ANSWER_TIME: Duration = Duration::from_millis(700);

/// Asks every sentinel, and looks at the master that they name and at each of its replicas. The sentinels come first: a
/// server that was replaced while nobody called it still takes calls.
pub(in crate::redis) async fn findings(url: &RedisUrl, link: &Link) -> Result<Vec<Finding>> {
    let mut findings = of_sentinels(url, link).await;
    let allows_lone_master = url.allows_lone_master();
    let settings = checks::settings(link, ServerPlace::BehindSentinels { allows_lone_master }).await?;
    let master = link.monitor().master().map_or_else(String::new, |host| format!("master {host}: "));
    let at_master = |finding: Finding| Finding { message: format!("{master}{}", finding.message), ..finding };
    findings.extend(settings.into_iter().map(at_master));
    findings.extend(of_replicas(url, link).await?);
    // From here on nothing waits: what is reported once must not be lost on the way.
    findings.extend(checks::observed(link.monitor()).into_iter().map(at_master));
    Ok(findings)
}

fn warning(message: String) -> Finding {
    Finding { severity: Severity::Warn, message }
}

/// Notes the master that the sentinels name now. A sentinel that does not tell is a finding.
async fn of_sentinels(url: &RedisUrl, link: &Link) -> Vec<Finding> {
    let (mut votes, question) = (SentinelVotes::of(url), link.monitor().begin_question());
    let mut answers = answers(url, link.monitor().runtime());
    while let Some((sentinel, answer)) = answers.next().await {
        votes.count(sentinel, answer);
    }
    let mut findings: Vec<_> = votes.failures.iter().map(|(_, message)| warning(message.clone())).collect();
    match votes.elected() {
        Some(master) => {
            link.monitor().note_master(question, &master);
        }
        None => findings.push(warning(format!("a new master would go unnoticed: {}", votes.failure()))),
    }
    findings
}

/// Looks at each replica: one of them may become the master.
async fn of_replicas(url: &RedisUrl, link: &Link) -> Result<Vec<Finding>> {
    let replicas = link.call(&cmd("ROLE"), parse_replicas).await?;
    let runtime = link.monitor().runtime();
    let checked = join_all(replicas.iter().map(|replica| async move {
        let in_time = runtime::timeout(runtime, ANSWER_TIME, of_replica(url, replica)).await;
        let silent = || Err(Error::new(ErrorKind::NotApplied, "it does not answer"));
        let unchecked = |error| vec![warning(format!("it cannot be checked: {error}"))];
        let found = in_time.unwrap_or_else(silent).unwrap_or_else(unchecked);
        let name = |finding: Finding| Finding { message: format!("replica {replica}: {}", finding.message), ..finding };
        found.into_iter().map(name).collect::<Vec<_>>()
    }));
    Ok(checked.await.into_iter().flatten().collect())
}

async fn of_replica(url: &RedisUrl, replica: &Host) -> Result<Vec<Finding>> {
    let (client, _) = url.at(replica.clone()).client()?;
    let asked = exchange(&client, &cmd("INFO")).await;
    let reply = asked.map_err(|error| RedisCallError::NotConnected(error, url.transport()))?;
    let info = value::reply_bytes(reply)?.unwrap_or_default();
    let info = String::from_utf8_lossy(&info);
    // Such a replica never becomes the master.
    if info.lines().any(|line| line.trim_end() == "slave_priority:0") {
        return Ok(Vec::new());
    }
    let place = ServerPlace::ReplicaBehindSentinels { allows_lone_master: url.allows_lone_master() };
    let info = ServerInfo::new(&info);
    let mut findings = info.findings(place);
    findings.extend(url.confirmation().into_iter().flat_map(|confirmation| info.findings_for(confirmation)));
    Ok(findings)
}

/// Reads the reply of a master to `ROLE`: `master, offset, [[host, port, offset] …]`.
fn parse_replicas(role: Value) -> Result<Vec<Host>> {
    let Value::Array(parts) = role else { return Err(value::unexpected_reply()) };
    // A server that has become a replica has something else in the third place.
    let Some(Value::Array(replicas)) = parts.into_iter().nth(2) else { return Ok(Vec::new()) };
    let hosts = replicas.into_iter().map(|replica| {
        let Value::Array(parts) = replica else { return Err(value::unexpected_reply()) };
        host(parts).ok_or_else(value::unexpected_reply)
    });
    hosts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_tells_its_replicas() {
        let text = |text: &str| Value::BulkString(text.into());
        let replica = Value::Array(vec![text("::1"), text("6380"), text("14")]);
        let role = |third| Value::Array(vec![text("master"), Value::Int(14), third]);
        let found = parse_replicas(role(Value::Array(vec![replica]))).unwrap();
        assert_eq!(found, [Host { name: "::1".into(), port: 6380 }]);
        assert_eq!(parse_replicas(role(Value::Array(Vec::new()))).unwrap(), []);
        assert_eq!(parse_replicas(role(Value::Int(6379))).unwrap(), [], "a replica names its master's port there");
        assert!(parse_replicas(role(Value::Array(vec![Value::Nil]))).is_err());
        assert!(parse_replicas(Value::Nil).is_err());
    }
}
