//! Settings and states of a cluster that endanger the guarantee.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::runtime;
use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, ErrorKind, Result};

use super::topology::ClusterNode;
use super::{Cluster, SlotMap};
use crate::redis::checks;
use crate::redis::server_info::ServerPlace;

/// How long a node may take. The others are reported all the same.
const ANSWER_TIME: Duration = Duration::from_millis(700);

/// Looks at every master and every replica. A node that does not answer is a finding, unless none answers.
pub(in crate::redis) async fn findings(cluster: &Cluster) -> Result<Vec<Finding>> {
    cluster.topology.refreshed().await?;
    let nodes = nodes(cluster);
    let checked = join_all(nodes.iter().map(|node| findings_of(cluster, node))).await;
    let (mut findings, mut answered, mut failure) = (Vec::new(), false, None);
    for (node, checked) in nodes.iter().zip(checked) {
        match checked {
            Ok(found) => {
                answered = true;
                findings.extend(found.into_iter().map(|finding| at(node, finding)));
            }
            Err(error) => {
                let message = format!("the node cannot be checked: {error}");
                findings.push(at(node, Finding { severity: Severity::Warn, message }));
                failure = failure.or(Some(error));
            }
        }
    }
    if let Some(error) = failure.filter(|_| !answered) {
        return Err(error);
    }
    // From here on nothing waits: what is reported once must not be lost on the way. A node that has left the cluster
    // may have lost its data before.
    findings.extend(of_the_cluster(cluster));
    for node in cluster.topology.known_nodes() {
        findings.extend(checks::observed(&node.monitor).into_iter().map(|finding| at(&node, finding)));
    }
    Ok(findings)
}

/// All masters and replicas, by their addresses.
fn nodes(cluster: &Cluster) -> Vec<Arc<ClusterNode>> {
    let nodes = cluster.topology.with_map(|map| {
        let nodes = map.shards().iter().flat_map(|shard| [&shard.master].into_iter().chain(&shard.replicas));
        nodes.map(|node| (node.address.to_string(), Arc::clone(node))).collect::<BTreeMap<_, _>>()
    });
    nodes.into_values().collect()
}

async fn findings_of(cluster: &Cluster, node: &ClusterNode) -> Result<Vec<Finding>> {
    let link = cluster.link(node, 0);
    let found = checks::settings(&link, ServerPlace::InCluster);
    let in_time = runtime::timeout(cluster.topology.runtime(), ANSWER_TIME, found).await;
    in_time.unwrap_or_else(|| Err(Error::new(ErrorKind::NotApplied, "it does not answer")))
}

fn at(node: &ClusterNode, finding: Finding) -> Finding {
    Finding { message: format!("node {}: {}", node.address, finding.message), ..finding }
}

fn of_the_cluster(cluster: &Cluster) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut warn = |message: String| findings.push(Finding { severity: Severity::Warn, message });
    let unowned = cluster.topology.with_map(SlotMap::unowned);
    if unowned > 0 {
        warn(format!("{unowned} of the cluster's slots have no node: calls for their keys fail"));
    }
    if let Some(times) = cluster.topology.failovers.take_unreported() {
        warn(format!(
            "a replica has become the master of its slots, and may lack the last confirmed writes \
             (times seen by this process: {times})"
        ));
    }
    findings
}
