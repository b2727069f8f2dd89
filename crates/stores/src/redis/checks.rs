//! What a server is and how it is set, by its own `INFO`.

use hapax_core::store::{Finding, Severity};

/// Reads the fields of an `INFO`.
pub(super) struct Info<'a>(&'a str);

impl<'a> Info<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self(text)
    }

    fn field(&self, name: &str) -> Option<&'a str> {
        self.0.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.field(name) == Some(value)
    }

    /// What the server calls itself, and its version.
    fn product(&self) -> (&'static str, &'a str) {
        match self.field("valkey_version") {
            Some(version) => ("Valkey", version),
            None => ("Redis", self.field("redis_version").unwrap_or("of no version")),
        }
    }

    fn is_too_old(&self) -> bool {
        let (product, version) = self.product();
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        product == "Redis" && major.is_none_or(|major| major < 7)
    }

    /// What tells this process of the server from the next.
    pub(super) fn process(&self) -> Option<&'a str> {
        self.field("run_id")
    }

    /// Everything that stands in the way of the guarantee.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let policy = self.field("maxmemory_policy").unwrap_or("noeviction");
        let (product, version) = self.product();
        let (used, most) = (self.number("used_memory"), self.number("maxmemory"));
        let refusals = [
            (
                self.is_too_old(),
                format!("{product} {version} is too old: Redis 7.0 or later, or any Valkey, is needed"),
            ),
            (
                policy != "noeviction",
                format!(
                    "the server evicts records when its memory is full ({policy}), and an evicted record runs again; set maxmemory-policy noeviction"
                ),
            ),
            (self.is("role", "slave"), "the server is a replica; name its primary".into()),
            (self.is("cluster_enabled", "1"), "the server is part of a cluster, which is not supported yet".into()),
        ];
        let warnings = [
            (
                self.is("aof_enabled", "0"),
                "the server keeps no log of its writes: a restart forgets records, and what they stand for may run again; set appendonly yes".into(),
            ),
            (
                self.is("aof_last_write_status", "err") || self.is("rdb_last_bgsave_status", "err"),
                "the server cannot write to its disk".into(),
            ),
            (
                self.is("min_slaves_good_slaves", "0"),
                "the server wants replicas for each write and none keeps up: new keys are refused; mend the replicas, or set min-replicas-to-write 0".into(),
            ),
            (
                most > 0 && used / 4 > most / 5,
                "more than four fifths of the server's memory are in use; when it is full, new keys are refused".into(),
            ),
        ];
        let of = |severity| move |(found, message): (bool, String)| found.then_some(Finding { severity, message });
        let refused = refusals.into_iter().filter_map(of(Severity::Refuse));
        refused.chain(warnings.into_iter().filter_map(of(Severity::Warn))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nused_memory:79\r\nmaxmemory:100\r\n\
        maxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\naof_last_write_status:ok\r\n\
        rdb_last_bgsave_status:ok\r\n# Replication\r\nrole:master\r\n# Cluster\r\ncluster_enabled:0\r\n";

    fn found(from: &str, to: &str) -> Vec<(Severity, String)> {
        let info = SOUND.replace(from, to);
        assert!(from.is_empty() || info != SOUND, "{from} is not there");
        Info::new(&info).findings().into_iter().map(|finding| (finding.severity, finding.message)).collect()
    }

    #[test]
    fn a_sound_server_gives_no_cause() {
        assert_eq!(found("", ""), []);
        assert_eq!(
            found("redis_version:7.0.15", "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1"),
            []
        );
        assert_eq!(found("redis_version:7.0.15", "redis_version:10.0.0"), []);
        assert_eq!(found("maxmemory:100", "maxmemory:0"), [], "no limit");
    }

    #[test]
    fn each_fault_is_named_with_its_remedy() {
        for (from, to, severity, named) in [
            ("redis_version:7.0.15", "redis_version:6.2.14", Severity::Refuse, "Redis 6.2.14 is too old"),
            ("policy:noeviction", "policy:allkeys-lru", Severity::Refuse, "allkeys-lru"),
            ("policy:noeviction", "policy:volatile-ttl", Severity::Refuse, "set maxmemory-policy noeviction"),
            ("role:master", "role:slave", Severity::Refuse, "name its primary"),
            ("cluster_enabled:0", "cluster_enabled:1", Severity::Refuse, "cluster"),
            ("aof_enabled:1", "aof_enabled:0", Severity::Warn, "set appendonly yes"),
            ("write_status:ok", "write_status:err", Severity::Warn, "disk"),
            ("bgsave_status:ok", "bgsave_status:err", Severity::Warn, "disk"),
            ("role:master", "role:master\r\nmin_slaves_good_slaves:0", Severity::Warn, "set min-replicas-to-write 0"),
            ("used_memory:79", "used_memory:85", Severity::Warn, "four fifths"),
        ] {
            let findings = found(from, to);
            let [(is, message)] = findings.as_slice() else { panic!("{to}: {findings:?}") };
            assert_eq!(*is, severity, "{to}");
            assert!(message.contains(named), "{message}");
        }
    }
}
