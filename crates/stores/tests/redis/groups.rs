//! The suite's setup of a cluster, and of a master with sentinels. The cases take turns on a few of them: to start one
//! takes seconds.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Value, cmd};
use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::runtime::Tokio;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::{
    LentRedisCluster, LentRedisSentinels, RedisCluster, RedisClusterOptions, RedisKind, RedisSentinelOptions,
    RedisSentinels, RedisServer, RedisTls,
};
use hapax_testkit::{Backend, Capability, ClockStep, Setup, StoredPart, golden_call};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::{LACKING, golden_value, name};

/// Redis in plain text, and Valkey over TLS with a password.
pub(crate) fn cluster_backend(kind: RedisKind) -> Backend {
    let (name, sequences) = match kind {
        RedisKind::Redis => ("redis_cluster", 200),
        RedisKind::Valkey => ("valkey_cluster", 50),
    };
    let setup = move || async move {
        let cluster = RedisCluster::lent(cluster_options(kind)).await.expect("the servers become a cluster");
        Box::new(GroupSetup::new(kind, RedisGroup::Cluster(cluster)).await) as Box<dyn Setup>
    };
    Backend::new(name, setup).sequences(sequences).requiring(kind.name()).lacking(LACKING)
}

/// As [`cluster_backend`].
pub(crate) fn sentinel_backend(kind: RedisKind) -> Backend {
    let name = match kind {
        RedisKind::Redis => "redis_sentinel",
        RedisKind::Valkey => "valkey_sentinel",
    };
    let setup = move || async move {
        let sentinels = RedisSentinels::lent(sentinel_options(kind)).await.expect("the sentinels start");
        Box::new(GroupSetup::new(kind, RedisGroup::Sentinels(sentinels)).await) as Box<dyn Setup>
    };
    Backend::new(name, setup).sequences(50).requiring(kind.name()).lacking(LACKING_BEHIND_SENTINELS)
}

const LACKING_BEHIND_SENTINELS: &[(Capability, &str)] = &[
    LACKING[0],
    (
        Capability::RoomToComplete,
        "a master without its replicas refuses completions too; the gate keeps them in its journal",
    ),
];

const PASSWORD: &str = "a-password";
const SENTINEL_PASSWORD: &str = "another-password";

fn sentinel_options(kind: RedisKind) -> RedisSentinelOptions {
    let options = RedisSentinelOptions::new(kind).with_args(&["--maxmemory", "32mb"]);
    match kind {
        RedisKind::Redis => options,
        RedisKind::Valkey => options.with_passwords(PASSWORD, SENTINEL_PASSWORD).with_tls(TLS.clone()),
    }
}

fn cluster_options(kind: RedisKind) -> RedisClusterOptions {
    // A small limit, so that the case of a full server fills it quickly.
    let options = RedisClusterOptions::new(kind).with_args(&["--maxmemory", "16mb"]);
    match kind {
        RedisKind::Redis => options,
        RedisKind::Valkey => options.with_password(PASSWORD).with_tls(TLS.clone()),
    }
}

static TLS: LazyLock<RedisTls> = LazyLock::new(|| {
    let mut params = CertificateParams::new(Vec::new()).expect("no name is wrong");
    // Another name than that of the certificate, which would count as signed by itself.
    params.distinguished_name.push(DnType::CommonName, "the authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pair = || KeyPair::generate().expect("the kernel gives random bytes");
    let (authority_key, key) = (pair(), pair());
    let authority = params.self_signed(&authority_key).expect("the authority is valid").pem();
    let leaf = CertificateParams::new(vec!["127.0.0.1".into()]).expect("an address is a name");
    let certificate = leaf.signed_by(&key, &Issuer::new(params, authority_key)).expect("it is valid");
    RedisTls { certificate: certificate.pem(), key: key.serialize_pem(), authority }
});

/// Servers that are used together.
enum RedisGroup {
    Cluster(LentRedisCluster),
    Sentinels(LentRedisSentinels),
}

impl RedisGroup {
    fn url(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinels(sentinels) => sentinels.url(),
        }
    }

    fn masters(&self) -> &[RedisServer] {
        match self {
            Self::Cluster(cluster) => cluster.masters(),
            Self::Sentinels(sentinels) => &sentinels.servers()[..1],
        }
    }

    fn step_clock(&self, step: ClockStep) -> std::io::Result<()> {
        match self {
            Self::Cluster(cluster) => cluster.step_clock(step),
            Self::Sentinels(sentinels) => sentinels.step_clock(step),
        }
    }
}

struct GroupSetup {
    group: RedisGroup,
    store: Arc<Redis>,
    /// With the password of the sentinels.
    _folder: TempDir,
    /// Connections of the test to the masters.
    inspection: Vec<MultiplexedConnection>,
}

impl GroupSetup {
    async fn new(kind: RedisKind, group: RedisGroup) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let mut url = group.url();
        if let (RedisGroup::Sentinels(_), RedisKind::Valkey) = (&group, kind) {
            let file = folder.path().join("password");
            std::fs::write(&file, SENTINEL_PASSWORD).expect("the folder can be written");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&file, mode).expect("the file is ours");
            url = format!("{url}&sentinel-password-file={}", file.display());
        }
        let url = url.parse().expect("the URL is valid");
        let store = Redis::with(&url, Arc::new(Tokio::current())).expect("the URL can be used");
        let mut inspection = Vec::new();
        for master in group.masters() {
            let socket = format!("unix://{}?pass={PASSWORD}", master.socket_path().display());
            let plain = format!("unix://{}", master.socket_path().display());
            let url = if kind == RedisKind::Valkey { socket } else { plain };
            let client = Client::open(url).expect("the URL is valid");
            inspection.push(client.get_multiplexed_async_connection().await.expect("the node answers"));
        }
        Self { group, store: Arc::new(store), _folder: folder, inspection }
    }

    /// Sends a command about a record to its master. The others refuse it.
    async fn command(&self, words: &[&[u8]]) -> Value {
        let (verb, arguments) = words.split_first().expect("a command has a verb");
        let mut command = cmd(std::str::from_utf8(verb).expect("a verb is text"));
        for argument in arguments {
            command.arg(argument);
        }
        for master in &self.inspection {
            match command.query_async(&mut master.clone()).await {
                Err(error) if error.code() == Some("MOVED") => {}
                replied => return replied.expect("the node answers"),
            }
        }
        panic!("no master has the slot")
    }
}

#[async_trait]
impl Setup for GroupSetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as _
    }

    async fn lapse(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        self.step_clock(ClockStep::Forward(seen.lease_left)).await;
    }

    async fn expire(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        // The server's clock counts whole milliseconds, and a key expires only after its last one.
        self.step_clock(ClockStep::Forward(seen.life_left + Duration::from_millis(1))).await;
    }

    async fn step_clock(&self, step: ClockStep) {
        self.group.step_clock(step).expect("its clocks can be stepped");
    }

    /// Flips a bit of the fingerprint, or of the last byte of the answer.
    async fn corrupt(&self, rk: &RecordKey, part: StoredPart) {
        let name = name(rk);
        let value = self.value(rk).await.expect("the record must exist");
        let at = match part {
            StoredPart::Header => 12,
            StoredPart::Answer => value.len() - 1,
        };
        let flipped = [value[at] ^ 1];
        let written = self.command(&[b"SETRANGE", &name, at.to_string().as_bytes(), &flipped]).await;
        assert!(matches!(written, Value::Int(_)), "{written:?}");
    }

    async fn put_golden(&self) {
        let name = name(&golden_call().record_key());
        assert_eq!(self.command(&[b"SET", &name, &golden_value(), b"EX", b"86400"]).await, Value::Okay);
    }

    async fn value(&self, rk: &RecordKey) -> Option<Bytes> {
        let value = self.command(&[b"GET", &name(rk)]).await;
        if value == Value::Nil {
            return None;
        }
        let Value::BulkString(value) = value else { panic!("a record is a string") };
        Some(value.into())
    }
}
