//! `hapax gateway` with large answers in a bucket.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use futures_util::future::{join, join_all};
use hapax_testkit::servers::{self, MinioServer, Trial};

use crate::harness::{Api, ClientResponse, Gateway, free_address, hapax, sqlite, until};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("each_answer_is_the_same_after_kills_at_any_moment", "minio", killed_again_and_again),
        servers::test("a_gateway_works_without_its_bucket_and_records_the_answers_later", "minio", without_its_bucket),
        servers::test("keys_of_a_bucket_are_shown_and_removed_with_their_answers", "minio", shown_and_purged),
    ]
}

/// The sizes of answers, below and above the limit of their records.
const SIZES: [usize; 6] = [100, 4_000, 65_000, 70_000, 1 << 20, 5 << 20];

/// How often the gateway is killed.
const KILLS: usize = 8;

fn with_key(mut command: Command) -> Command {
    command.env("AWS_ACCESS_KEY_ID", MinioServer::KEY).env("AWS_SECRET_ACCESS_KEY", MinioServer::SECRET);
    command
}

struct Started<'a> {
    api: &'a Api,
    store: String,
    flags: Vec<String>,
    public: SocketAddr,
}

impl<'a> Started<'a> {
    fn new(api: &'a Api, directory: &Path, answers: &str) -> Self {
        let upstream = format!("http://{}", api.address);
        let flags = ["--upstream", &upstream, "--answers", answers, "--max-stored-body", "8MiB", "--lease", "1s"];
        let flags = flags.map(str::to_owned).to_vec();
        Self { api, store: sqlite(directory), flags, public: free_address() }
    }

    async fn gateway(&self) -> Gateway {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        Gateway::run(with_key(hapax()), &self.store, &flags, self.public).await
    }

    /// How many requests with this key had an effect.
    fn effects(&self, key: &str) -> usize {
        let is_same = |seen: &crate::harness::ApiRequest| seen.headers.get("idempotency-key").is_some_and(|k| k == key);
        self.api.seen().iter().filter(|seen| is_same(seen)).count()
    }
}

/// How many objects the server has under this prefix.
fn objects(server: &MinioServer, prefix: &str) -> usize {
    fn count(folder: &Path) -> usize {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let under = |path: &Path| if path.ends_with("xl.meta") { 1 } else { count(path) };
        entries.map(|entry| under(&entry.path())).sum()
    }
    count(&server.data_folder().join("data/hapax").join(prefix))
}

fn path(size: usize) -> String {
    format!("/sized/{size}")
}

async fn replayed(gateway: &Gateway, size: usize, key: &str) -> ClientResponse {
    let answer = gateway.post(&path(size), key, "{}").await.unwrap();
    assert!(answer.status == 201 && answer.is_replayed(), "{key}: {} {:.300}", answer.status, answer.body);
    answer
}

/// A kill may come after the effect, while an answer is written, after that, and after its record. An answer that a
/// client got is the answer of each copy.
async fn killed_again_and_again() {
    let (server, api, directory) =
        (MinioServer::shared().await.unwrap(), Api::start().await, tempfile::tempdir().unwrap());
    let started = Started::new(&api, directory.path(), &server.answers("killed"));
    let mut given: HashMap<String, (usize, String)> = HashMap::new();
    for round in 0..=KILLS {
        let mut gateway = started.gateway().await;
        for (key, (size, body)) in &given {
            assert!(replayed(&gateway, *size, key).await.body == *body, "another answer for {key}");
        }
        let (client, keys) = (gateway.client(), SIZES.map(|size| (size, format!("killed-{round}-{size}"))));
        let posts = join_all(keys.iter().map(async |(size, key)| client.post(&path(*size), key, "{}").await));
        let (requests, before) = (api.count(), objects(&server, "killed"));
        let kill = async {
            match round {
                // The last round ends by itself.
                KILLS => {}
                _ if round % 2 == 0 => {
                    until("an answer is in the bucket", async || objects(&server, "killed") > before).await;
                    gateway.kill();
                }
                _ => {
                    api.wait_for_requests(requests + 1 + round % SIZES.len()).await;
                    gateway.kill();
                }
            }
        };
        let (answers, ()) = join(posts, kill).await;
        for ((size, key), answer) in keys.iter().zip(answers) {
            let Some(answer) = answer.filter(|answer| answer.status == 201) else { continue };
            assert!(answer.body.len() == *size && !answer.is_replayed(), "{key}");
            given.insert(key.clone(), (*size, answer.body));
        }
    }
    let gateway = started.gateway().await;
    for (key, (size, body)) in &given {
        assert!(replayed(&gateway, *size, key).await.body == *body, "another answer for {key}");
        assert_eq!(started.effects(key), 1, "{key}");
    }
    for key in (0..=KILLS).flat_map(|round| SIZES.map(|size| format!("killed-{round}-{size}"))) {
        assert!(started.effects(&key) <= 1, "{key}");
    }
    // The last round alone gives as many as there are sizes.
    assert!(given.len() > SIZES.len(), "only {} calls had an answer", given.len());
    println!("{} of {} calls had an answer before a kill", given.len(), SIZES.len() * (KILLS + 1));
}

async fn without_its_bucket() {
    let (server, api, directory) =
        (MinioServer::start(&[]).await.unwrap(), Api::start().await, tempfile::tempdir().unwrap());
    let started = Started::new(&api, directory.path(), &server.answers("late"));
    // It does not even refuse connections.
    server.pause().unwrap();
    let gateway = started.gateway().await;
    let small = gateway.post(&path(100), "small-1", "{}").await.unwrap();
    assert_eq!((small.status.as_u16(), small.headers.get("hapax-recorded")), (201, None));
    assert_eq!(replayed(&gateway, 100, "small-1").await.body, small.body);
    let large = gateway.post(&path(70_000), "large-1", "{}").await.unwrap();
    assert_eq!(large.status, 201);
    assert_eq!(large.headers["hapax-recorded"], "pending");
    server.resume().unwrap();
    until("the answer is recorded", async || {
        gateway.post(&path(70_000), "large-1", "{}").await.is_some_and(|copy| copy.is_replayed())
    })
    .await;
    assert!(replayed(&gateway, 70_000, "large-1").await.body == large.body);
    // It is known that the answer exists, and not that it can be given.
    server.kill();
    let refused = gateway.post(&path(70_000), "large-1", "{}").await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.problem()), (503, "store-unavailable"));
    server.restart().await.unwrap();
    assert!(replayed(&gateway, 70_000, "large-1").await.body == large.body);
    // As an operator would by accident.
    std::fs::remove_dir_all(server.data_folder().join("data/hapax/late")).unwrap();
    let damaged = gateway.post(&path(70_000), "large-1", "{}").await.unwrap();
    assert_eq!((damaged.status.as_u16(), damaged.problem()), (500, "record-damaged"));
    assert_eq!(started.effects("large-1"), 1);
    gateway.terminate();
    let (code, logs) = gateway.wait_for_exit();
    assert_eq!(code, Some(0), "{logs}");
}

async fn shown_and_purged() {
    let (server, api, directory) =
        (MinioServer::shared().await.unwrap(), Api::start().await, tempfile::tempdir().unwrap());
    let started = Started::new(&api, directory.path(), &server.answers("purged"));
    let gateway = started.gateway().await;
    let answer = gateway.post(&path(70_000), "purged-1", "{}").await.unwrap();
    assert_eq!((answer.status.as_u16(), objects(&server, "purged")), (201, 1));
    until("the check of the bucket has found something", async || {
        let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
        page.contains("hapax_store_findings{severity=\"warn\"} 1")
    })
    .await;
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    assert!(logs.contains("keeps the answers of expired records for ever"), "{logs}");
    let keys = |more: &[&str]| {
        let mut command = with_key(hapax());
        command.args(["keys"]).args(more).args(["--store", &started.store]);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
    };
    let (code, listed) = keys(&["list", "--json"]);
    assert_eq!(code, Some(0), "{listed}");
    // The others are trials of the start.
    let records = listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let is_large = |record: &serde_json::Value| record["answer_bytes"].as_u64().is_some_and(|bytes| bytes > 70_000);
    let record = records.into_iter().find(is_large).unwrap();
    let (rk, answers) = (record["rk"].as_str().unwrap(), server.answers("purged"));
    let (code, alone) = keys(&["show", rk, "--answer"]);
    assert!(code != Some(0) && alone.contains("bucket"), "{alone}");
    let (code, shown) = keys(&["show", rk, "--answer", "--answers", &answers]);
    assert!(code == Some(0) && shown.contains(&answer.body[..1_000]), "{shown:.300}");
    let token = record["token"].to_string();
    let (code, purged) = keys(&["purge", rk, "--token", &token, "--answers", &answers]);
    assert_eq!((code, objects(&server, "purged")), (Some(0), 0), "{purged}");
}
