use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::UNIX_EPOCH;

use aws_credential_types::provider::{self, future};
use futures_util::FutureExt;
use hapax_core::Timestamp;
use hapax_core::runtime::{BoxFuture, Tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::*;
use crate::http::HttpSettings;

/// A runtime whose clocks a test moves.
#[derive(Debug)]
struct Moved {
    tokio: Tokio,
    seconds: AtomicUsize,
}

impl Runtime for Moved {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.tokio.spawn(task);
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.tokio.sleep(duration)
    }
    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> std::io::Result<()> {
        self.tokio.thread(name, task)
    }
    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        self.tokio.blocking(name, body)
    }
    fn boottime_now(&self) -> Duration {
        Duration::from_secs(self.seconds.load(Ordering::Relaxed) as u64)
    }
    fn wall_now(&self) -> Timestamp {
        Timestamp(0).plus(self.boottime_now())
    }
    fn fill_random(&self, bytes: &mut [u8]) {
        self.tokio.fill_random(bytes);
    }
}

/// Gives a new key, which holds for an hour, each time, when the test lets it.
#[derive(Debug)]
struct Hourly {
    begun: AtomicUsize,
    is_down: AtomicBool,
    /// As many searches may end.
    ends: Semaphore,
    runtime: Arc<Moved>,
}

#[derive(Debug)]
struct Shared(Arc<Hourly>);

impl Hourly {
    async fn find(&self) -> provider::Result {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        self.ends.acquire().await.unwrap().forget();
        if self.is_down.load(Ordering::Relaxed) {
            return Err(CredentialsError::provider_error("it is down"));
        }
        let end = UNIX_EPOCH + self.runtime.boottime_now() + Duration::from_secs(3600);
        Ok(Credentials::new(format!("KEY{number}"), "secret", None, Some(end), "test"))
    }
}

impl ProvideCredentials for Shared {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.0.find())
    }
}

struct Fixture {
    runtime: Arc<Moved>,
    provider: Arc<Hourly>,
    credentials: AwsCredentials,
}

impl Fixture {
    fn new() -> Self {
        let runtime = Arc::new(Moved { tokio: Tokio::current(), seconds: AtomicUsize::new(0) });
        let (begun, is_down, ends) = (AtomicUsize::new(0), AtomicBool::new(false), Semaphore::new(0));
        let provider = Arc::new(Hourly { begun, is_down, ends, runtime: Arc::clone(&runtime) });
        let credentials =
            AwsCredentials::provided_by(Shared(Arc::clone(&provider)), Arc::clone(&runtime) as Arc<dyn Runtime>);
        Self { runtime, provider, credentials }
    }

    /// The key at this time, unless it has to be waited for.
    fn key_now(&self, second: usize) -> Option<String> {
        self.runtime.seconds.store(second, Ordering::Relaxed);
        let found = self.credentials.current().now_or_never()?;
        Some(found.unwrap().access_key_id().to_owned())
    }

    /// The key at this time. One search may end.
    async fn key(&self, second: usize) -> Result<String> {
        self.runtime.seconds.store(second, Ordering::Relaxed);
        self.provider.ends.add_permits(1);
        self.credentials.current().await.map(|found| found.access_key_id().to_owned())
    }

    /// Lets the search end that runs.
    async fn end_search(&self, is_down: bool) {
        let AwsCredentials(CredentialSource::Chain(chain)) = &self.credentials else { panic!("no chain") };
        self.provider.is_down.store(is_down, Ordering::Relaxed);
        let ended = chain.has_ended.notified();
        self.provider.ends.add_permits(1);
        ended.await;
    }

    fn searches(&self) -> usize {
        self.provider.begun.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn credentials_are_renewed_before_they_end_and_used_to_their_end() {
    let fixture = Fixture::new();
    assert_eq!(fixture.key(0).await.unwrap(), "KEY0");
    assert_eq!(fixture.key_now(3299).unwrap(), "KEY0", "it holds for longer than five minutes");
    assert_eq!(fixture.key_now(3301).unwrap(), "KEY0", "nobody waits for the next one");
    fixture.end_search(false).await;
    assert_eq!((fixture.key_now(3302).unwrap().as_str(), fixture.searches()), ("KEY1", 2));
    assert_eq!(fixture.key_now(3301 + 3400).unwrap(), "KEY1", "it still holds");
    fixture.end_search(true).await;
    assert_eq!(fixture.key_now(3301 + 3405).unwrap(), "KEY1");
    tokio::task::yield_now().await;
    assert_eq!(fixture.searches(), 3, "the provider is left alone for a while");
    assert_eq!(fixture.key(3301 + 3600).await.unwrap_err().kind(), ErrorKind::NotApplied, "it has ended");
    fixture.provider.is_down.store(false, Ordering::Relaxed);
    assert_eq!(fixture.key(3301 + 3600).await.unwrap(), "KEY4");
}

#[tokio::test]
async fn nobody_waits_for_a_slow_search_while_the_credentials_hold() {
    let fixture = Fixture::new();
    assert_eq!(fixture.key(0).await.unwrap(), "KEY0");
    for second in [3400, 3411, 3440, 3599] {
        assert_eq!(fixture.key_now(second).unwrap(), "KEY0");
    }
    tokio::task::yield_now().await;
    assert_eq!(fixture.searches(), 2);
    assert_eq!(fixture.key_now(3600), None, "it has ended");
    // All that wait have the end of the one search.
    let [first, second] = [fixture.credentials.clone(), fixture.credentials.clone()];
    let (first, second, ()) = tokio::join!(first.current(), second.current(), fixture.end_search(true));
    assert!(first.is_err() && second.is_err());
    assert_eq!(fixture.searches(), 2);
}

#[tokio::test]
async fn others_are_searched_for_if_the_service_refuses_the_present_ones() {
    let fixture = Fixture::new();
    fixture.key(0).await.unwrap();
    let refused = async || {
        let used = fixture.credentials.current().await.unwrap();
        (fixture.credentials.refused(&used), fixture.credentials.refused(&used))
    };
    assert_eq!(refused().await, (true, true));
    assert_eq!(fixture.key(1).await.unwrap(), "KEY1");
    assert_eq!(refused().await, (false, false), "others were searched for just now");
    assert_eq!(fixture.key_now(2).unwrap(), "KEY1");
    assert_eq!(fixture.key_now(11).unwrap(), "KEY1");
    assert_eq!(refused().await, (true, true));
    assert_eq!(fixture.key_now(12), None);
}

#[tokio::test]
async fn new_credentials_are_used_if_the_clock_of_the_host_is_fast() {
    let fixture = Fixture::new();
    fixture.key(0).await.unwrap();
    let AwsCredentials(CredentialSource::Chain(chain)) = &fixture.credentials else { panic!("no chain") };
    let ended = Credentials::new("OLD", "secret", None, Some(UNIX_EPOCH), "test");
    chain.state.lock().kept.as_mut().unwrap().credentials = ended;
    assert_eq!(fixture.key_now(9).unwrap(), "OLD");
    assert_eq!(fixture.searches(), 1);
    assert_eq!(fixture.key_now(10), None);
}

/// A file of credentials.
const PROFILE: &str = "[billing]\naws_access_key_id = PROFILE\naws_secret_access_key = secret\n";

/// Set in the child processes of the test, which print the key that they find.
const CHILD: &str = "HAPAX_TEST_CHAIN";

async fn print_the_key_of_the_chain() {
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let http = HttpClient::new(HttpSettings::new(Arc::clone(&runtime))).unwrap();
    let credentials = AwsCredentials::from_chain("eu-west-1", http, runtime);
    let found = match credentials.current().await {
        Ok(found) => found,
        Err(error) => return println!("{:?}", error.kind()),
    };
    println!("key {} of {:?}", found.access_key_id(), found.session_token());
    if let Ok(file) = std::env::var("AWS_SHARED_CREDENTIALS_FILE") {
        std::fs::write(file, PROFILE.replace("PROFILE", "ROTATED")).unwrap();
        assert!(credentials.refused(&found));
        println!("then {}", credentials.current().await.unwrap().access_key_id());
    }
}

/// What a process finds that has only these variables.
async fn found(variables: Vec<(&'static str, String)>) -> String {
    let program = std::env::current_exe().unwrap();
    let (reply, ended) = tokio::sync::oneshot::channel();
    let run = move || {
        let mut command = Command::new(program);
        command.args(["credentials_come_from_the_usual_places", "--nocapture", "--test-threads=1"]).env_clear();
        let none = [(CHILD, "yes"), ("AWS_EC2_METADATA_DISABLED", "true"), ("HOME", "/nonexistent")];
        let output: Output = command.envs(none).envs(variables).output().unwrap();
        let _ = reply.send(String::from_utf8_lossy(&output.stdout).into_owned());
    };
    Tokio::current().blocking("test-chain", Box::new(run)).unwrap();
    ended.await.unwrap()
}

/// A service of HTTP that gives this body to every request.
async fn serve(body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    Tokio::current().spawn(Box::pin(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 8192]).await;
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all((head + body).as_bytes()).await;
        }
    }));
    format!("http://{address}")
}

#[tokio::test]
async fn credentials_come_from_the_usual_places() {
    if std::env::var(CHILD).is_ok() {
        return print_the_key_of_the_chain().await;
    }
    let nothing = found(Vec::new()).await;
    assert!(nothing.contains("Unusable"), "{nothing}");
    let environment = [("AWS_ACCESS_KEY_ID", "ENVIRONMENT"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let environment = environment.map(|(name, value)| (name, value.to_owned())).to_vec();
    let key = found(environment.clone()).await;
    assert!(key.contains("key ENVIRONMENT of None"), "{key}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("credentials");
    std::fs::write(&path, PROFILE).unwrap();
    let profile = vec![
        ("AWS_SHARED_CREDENTIALS_FILE", path.display().to_string()),
        ("AWS_CONFIG_FILE", "/nonexistent".to_owned()),
        ("AWS_PROFILE", "billing".to_owned()),
    ];
    let key = found(profile.clone()).await;
    assert!(key.contains("key PROFILE of None"), "{key}");
    assert!(key.contains("then ROTATED"), "the file is read again after a refusal: {key}");
    let key = found(profile.into_iter().chain(environment).collect()).await;
    assert!(key.contains("key ENVIRONMENT"), "the environment comes first: {key}");
    let agent =
        serve(r#"{"AccessKeyId":"CONTAINER","SecretAccessKey":"s","Token":"t","Expiration":"2099-01-01T00:00:00Z"}"#);
    let key = found(vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.await + "/role")]).await;
    assert!(key.contains(r#"key CONTAINER of Some("t")"#), "{key}");
}
