//! Settings and states of one server that endanger the guarantee.

use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, Result};
use redis::cmd;

use super::call_error::RedisCallError;
use super::link::{CallWay, Confirmation, Link, WriteConfirmation};
use super::server_info::{ServerInfo, ServerPlace};
use super::server_monitor::ServerMonitor;
use super::value;

/// Looks at the server behind a link. A loss of data and a change of the process are reported once.
pub(super) async fn findings(link: &Link, place: ServerPlace) -> Result<Vec<Finding>> {
    let mut findings = settings(link, place).await?;
    findings.extend(observed(link.monitor()));
    Ok(findings)
}

/// Looks at the settings of the server, and observes it.
pub(super) async fn settings(link: &Link, place: ServerPlace) -> Result<Vec<Finding>> {
    link.observe_server().await?;
    let judge = |reply, _: &Confirmation| {
        let info = value::reply_bytes(reply).map_err(RedisCallError::Judged)?.unwrap_or_default();
        let info = String::from_utf8_lossy(&info).into_owned();
        // The URL is right, and the sentinels name another server by now.
        if place.is_master_of_sentinels() && ServerInfo::new(&info).is_replica() {
            return Err(RedisCallError::from_replica());
        }
        Ok(info)
    };
    let info = link.call_by(CallWay::READ, &cmd("INFO"), judge).await?;
    let info = ServerInfo::new(&info);
    let mut findings = info.findings(place);
    if let Some(confirmation) = link.confirmation() {
        findings.extend(info.findings_for(confirmation));
        if !info.is_replica() {
            findings.extend(refusal_to_confirm(link, confirmation).await?);
        }
    }
    Ok(findings)
}

/// Tries the command that confirms writes. A server that refuses it leaves every write unknown.
async fn refusal_to_confirm(link: &Link, confirmation: WriteConfirmation) -> Result<Option<Finding>> {
    match link.call(&confirmation.probe(), |_| Ok(())).await {
        Ok(()) => Ok(None),
        // A server that is busy or loads its data may confirm later.
        Err(error) if error.is_lasting_refusal() => {
            let command = if confirmation.on_disk { "WAITAOF (Redis 7.2 or later, any Valkey)" } else { "WAIT" };
            let message = format!("the server does not confirm writes by {command}: {}", Error::from(error));
            Ok(Some(Finding { severity: Severity::Refuse, message }))
        }
        Err(error) => Err(error.into()),
    }
}

/// What was observed of a server. It waits for nothing: what is reported once must not be lost on the way.
pub(super) fn observed(monitor: &ServerMonitor) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut warn = |message: &str| findings.push(Finding { severity: Severity::Warn, message: message.into() });
    // The count makes each message different, so that a repeated event is not taken for the one already reported.
    if let Some(times) = monitor.data_losses.take_unreported() {
        warn(&format!(
            "the server has lost records since the last check; their operations may run again \
             (times seen by this process: {times})"
        ));
    }
    if let Some(times) = monitor.process_changes.take_unreported() {
        warn(&format!(
            "another process now serves the server's address: a restarted server may lack writes that had not \
             reached its log, and a promoted replica may lack the last confirmed writes \
             (times seen by this process: {times})"
        ));
    }
    if let Some(problem) = monitor.sentinel_problem() {
        warn(problem);
    }
    if monitor.has_skew() {
        warn(
            "the server's clock and this host's clock are more than a second apart, so each begin first reads \
             the server's clock; synchronize both hosts, with NTP for instance",
        );
    }
    findings
}
