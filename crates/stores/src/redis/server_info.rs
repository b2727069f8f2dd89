//! Reads the server's version, role and settings from its `INFO`, and finds what endangers the guarantee.

use hapax_core::store::{Finding, Severity};

use super::link::WriteConfirmation;

/// How the server is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerPlace {
    /// It has all records.
    Alone,
    /// It is a node of a cluster: a master with its part of the records, or a replica that may take over.
    InCluster,
    /// It is the master that sentinels name, and they may name another one.
    BehindSentinels {
        /// Whether it may take writes that no replica has.
        allows_lone_master: bool,
    },
    /// It is a replica of that master, and may become the master.
    ReplicaBehindSentinels {
        /// Whether it may then take writes that no replica has.
        allows_lone_master: bool,
    },
}

impl ServerPlace {
    /// Whether a master must refuse writes while it has no replica.
    fn needs_replicas(self) -> bool {
        match self {
            Self::Alone | Self::InCluster => false,
            Self::BehindSentinels { allows_lone_master } | Self::ReplicaBehindSentinels { allows_lone_master } => {
                !allows_lone_master
            }
        }
    }

    /// Whether it is the server that sentinels name.
    pub(super) fn is_master_of_sentinels(self) -> bool {
        match self {
            Self::Alone | Self::InCluster | Self::ReplicaBehindSentinels { .. } => false,
            Self::BehindSentinels { .. } => true,
        }
    }

    /// Whether a replica may be there.
    fn allows_replica(self) -> bool {
        match self {
            Self::Alone | Self::BehindSentinels { .. } => false,
            Self::InCluster | Self::ReplicaBehindSentinels { .. } => true,
        }
    }
}

/// The reply to `INFO`.
pub(super) struct ServerInfo<'a>(&'a str);

impl<'a> ServerInfo<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self(text)
    }

    fn field(&self, name: &str) -> Option<&'a str> {
        self.0.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    fn has(&self, name: &str, value: &str) -> bool {
        self.field(name) == Some(value)
    }

    /// The product's name and version.
    fn product(&self) -> (&'static str, &'a str) {
        match self.field("valkey_version") {
            Some(version) => ("Valkey", version),
            None => ("Redis", self.field("redis_version").unwrap_or("without a version")),
        }
    }

    fn is_too_old(&self) -> bool {
        let (product, version) = self.product();
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        product == "Redis" && major.is_none_or(|major| major < 7)
    }

    pub(super) fn is_replica(&self) -> bool {
        self.has("role", "slave")
    }

    /// The random id that each server process has.
    pub(super) fn run_id(&self) -> Option<&'a str> {
        self.field("run_id")
    }

    /// Lists every setting and condition that endangers the guarantee.
    pub(super) fn findings(&self, place: ServerPlace) -> Vec<Finding> {
        let to_finding =
            |severity| move |(found, message): (bool, String)| found.then_some(Finding { severity, message });
        let refusals = self.refusals(place).into_iter().filter_map(to_finding(Severity::Refuse));
        refusals.chain(self.warnings().into_iter().filter_map(to_finding(Severity::Warn))).collect()
    }

    /// The settings that do not fit the confirmation of writes which the URL demands.
    pub(super) fn findings_for(&self, confirmation: WriteConfirmation) -> Vec<Finding> {
        let (demanded, connected) = (u64::from(confirmation.replicas), self.number("connected_slaves"));
        let warn = |message| Finding { severity: Severity::Warn, message };
        let mut findings = Vec::new();
        if confirmation.on_disk && self.has("aof_enabled", "0") {
            let message = "the URL has aof=synced, and the server has no append-only file; set appendonly yes";
            findings.push(Finding { severity: Severity::Refuse, message: message.into() });
        }
        if self.is_replica() {
            return findings;
        }
        if connected < demanded {
            findings.push(warn(format!(
                "the URL demands {demanded} replicas for each write and {connected} are connected: the outcome of each \
                 write is unknown, and new keys are refused"
            )));
        }
        if connected > demanded && demanded > 0 {
            findings.push(warn(format!(
                "{connected} replicas are connected and {demanded} confirm each write: another one may become the \
                 master without it, so raise the first number of wait= to {connected}"
            )));
        }
        findings
    }

    /// Conditions under which the store must not be used: whether each is present, and its message.
    fn refusals(&self, place: ServerPlace) -> [(bool, String); 5] {
        let policy = self.field("maxmemory_policy").unwrap_or("noeviction");
        let (product, version) = self.product();
        [
            (
                self.is_too_old(),
                format!("{product} {version} is too old: Redis 7.0 or later, or any Valkey, is needed"),
            ),
            (
                policy != "noeviction",
                format!(
                    "the server evicts records when its memory is full ({policy}), and the operation \
                     of an evicted record runs again; set maxmemory-policy noeviction"
                ),
            ),
            (
                !place.allows_replica() && self.is_replica(),
                "the server is a replica; use the URL of its primary".into(),
            ),
            (
                // The line is there only if the setting is, on a replica too.
                place.needs_replicas() && self.field("min_slaves_good_slaves").is_none(),
                "as a master, the server takes writes that no replica has: an old master that returns takes some that \
                 are lost; set min-replicas-to-write 1 on every server, or accept it by ?min-replicas=unchecked"
                    .into(),
            ),
            match place {
                ServerPlace::Alone
                | ServerPlace::BehindSentinels { .. }
                | ServerPlace::ReplicaBehindSentinels { .. } => (
                    self.has("cluster_enabled", "1"),
                    "the server is a node of a cluster; write redis+cluster:// instead of redis://".into(),
                ),
                ServerPlace::InCluster => (
                    self.has("cluster_enabled", "0"),
                    "the server is no node of a cluster; write redis:// instead of redis+cluster://".into(),
                ),
            },
        ]
    }

    /// Conditions that an operator should know: whether each is present, and its message.
    fn warnings(&self) -> [(bool, String); 4] {
        let (used, limit) = (self.number("used_memory"), self.number("maxmemory"));
        [
            (
                self.has("aof_enabled", "0"),
                "the server has no append-only file: a restart loses records, and their operations may run again; \
                 set appendonly yes"
                    .into(),
            ),
            (
                self.has("aof_last_write_status", "err") || self.has("rdb_last_bgsave_status", "err"),
                "the server cannot write to its disk".into(),
            ),
            (
                // A replica counts none.
                !self.is_replica() && self.has("min_slaves_good_slaves", "0"),
                "the server demands replicas for each write and none is connected and current, so new keys are \
                 refused; repair the replicas, or set min-replicas-to-write 0"
                    .into(),
            ),
            (
                limit > 0 && used / 4 > limit / 5,
                "more than 80 % of the server's memory is in use; when it is full, new keys are refused".into(),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: &str = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nused_memory:79\r\nmaxmemory:100\r\n\
        maxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\naof_last_write_status:ok\r\n\
        rdb_last_bgsave_status:ok\r\n# Replication\r\nrole:master\r\n# Cluster\r\ncluster_enabled:0\r\n";

    fn findings(from: &str, to: &str) -> Vec<(Severity, String)> {
        let info = HEALTHY.replace(from, to);
        assert!(from.is_empty() || info != HEALTHY, "{from} is not in the sample");
        let findings = ServerInfo::new(&info).findings(ServerPlace::Alone);
        findings.into_iter().map(|finding| (finding.severity, finding.message)).collect()
    }

    #[test]
    fn a_healthy_server_has_no_findings() {
        assert_eq!(findings("", ""), []);
        assert_eq!(
            findings("redis_version:7.0.15", "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1"),
            []
        );
        assert_eq!(findings("redis_version:7.0.15", "redis_version:10.0.0"), []);
        assert_eq!(findings("maxmemory:100", "maxmemory:0"), [], "a server without a memory limit");
    }

    #[test]
    fn a_node_of_a_cluster_may_be_a_replica() {
        let info = HEALTHY.replace("cluster_enabled:0", "cluster_enabled:1");
        for info in [info.replace("role:master", "role:slave"), info] {
            assert_eq!(ServerInfo::new(&info).findings(ServerPlace::InCluster), []);
        }
        let alone = ServerInfo::new(HEALTHY).findings(ServerPlace::InCluster);
        assert!(alone.iter().any(|finding| finding.message.contains("no node of a cluster")), "{alone:?}");
    }

    #[test]
    fn a_master_behind_sentinels_must_demand_a_replica() {
        let refusals = |info: &str, allows_lone_master| {
            let findings = ServerInfo::new(info).findings(ServerPlace::BehindSentinels { allows_lone_master });
            findings.into_iter().filter(|finding| finding.severity == Severity::Refuse).count()
        };
        let demanding = HEALTHY.replace("role:master", "role:master\r\nmin_slaves_good_slaves:1");
        assert_eq!([refusals(HEALTHY, false), refusals(HEALTHY, true), refusals(&demanding, false)], [1, 0, 0]);
    }

    #[test]
    fn a_replica_behind_sentinels_must_demand_a_replica_when_it_is_a_master() {
        let place = ServerPlace::ReplicaBehindSentinels { allows_lone_master: false };
        let replica = HEALTHY.replace("role:master", "role:slave");
        let found = ServerInfo::new(&replica).findings(place);
        assert!(matches!(&found[..], [one] if one.message.contains("min-replicas-to-write 1")), "{found:?}");
        let demanding = replica.replace("role:slave", "role:slave\r\nmin_slaves_good_slaves:0");
        assert_eq!(ServerInfo::new(&demanding).findings(place), []);
    }

    #[test]
    fn as_many_replicas_as_there_are_must_confirm_a_write() {
        let found = |connected: u32, replicas, on_disk| {
            let info = HEALTHY.replace("role:master", &format!("role:master\r\nconnected_slaves:{connected}"));
            let confirmation = WriteConfirmation { replicas, millis: 100, on_disk };
            let found = ServerInfo::new(&info).findings_for(confirmation);
            found.into_iter().map(|finding| finding.message).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(found(1, 1, false), "");
        assert_eq!(found(3, 0, true), "", "the master's disk confirms, and nothing else is asked for");
        assert!(found(1, 2, false).contains("outcome of each write is unknown"));
        assert!(found(2, 1, false).contains("raise the first number of wait= to 2"));
        let without = HEALTHY.replace("aof_enabled:1", "aof_enabled:0");
        let synced = WriteConfirmation { replicas: 0, millis: 100, on_disk: true };
        let found = ServerInfo::new(&without).findings_for(synced);
        assert!(matches!(&found[..], [one] if one.severity == Severity::Refuse), "{found:?}");
    }

    #[test]
    fn each_finding_names_its_remedy() {
        for (from, to, severity, expected) in [
            ("redis_version:7.0.15", "redis_version:6.2.14", Severity::Refuse, "Redis 6.2.14 is too old"),
            ("policy:noeviction", "policy:allkeys-lru", Severity::Refuse, "allkeys-lru"),
            ("policy:noeviction", "policy:volatile-ttl", Severity::Refuse, "set maxmemory-policy noeviction"),
            ("role:master", "role:slave", Severity::Refuse, "URL of its primary"),
            ("cluster_enabled:0", "cluster_enabled:1", Severity::Refuse, "cluster"),
            ("aof_enabled:1", "aof_enabled:0", Severity::Warn, "set appendonly yes"),
            ("write_status:ok", "write_status:err", Severity::Warn, "disk"),
            ("bgsave_status:ok", "bgsave_status:err", Severity::Warn, "disk"),
            ("role:master", "role:master\r\nmin_slaves_good_slaves:0", Severity::Warn, "set min-replicas-to-write 0"),
            ("used_memory:79", "used_memory:85", Severity::Warn, "80 %"),
        ] {
            let findings = findings(from, to);
            let [(found, message)] = findings.as_slice() else { panic!("{to}: {findings:?}") };
            assert_eq!(*found, severity, "{to}");
            assert!(message.contains(expected), "{message}");
        }
    }
}
