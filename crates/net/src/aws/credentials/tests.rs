use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_credential_types::provider::{self, future};
use hapax_core::Timestamp;
use hapax_core::runtime::{BoxFuture, Tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

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

/// Gives a new key, which holds for an hour, each time, unless it fails.
#[derive(Debug, Default)]
struct Hourly {
    given: AtomicUsize,
    fails: std::sync::atomic::AtomicBool,
    runtime: std::sync::OnceLock<Arc<Moved>>,
}

#[derive(Debug)]
struct Shared(Arc<Hourly>);

impl ProvideCredentials for Shared {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let Hourly { given, fails, runtime } = &*self.0;
        let number = given.fetch_add(1, Ordering::Relaxed);
        if fails.load(Ordering::Relaxed) {
            return future::ProvideCredentials::ready(Err(CredentialsError::provider_error("it is down")));
        }
        let end = UNIX_EPOCH + runtime.get().unwrap().boottime_now() + Duration::from_secs(3600);
        let found: provider::Result = Ok(Credentials::new(format!("KEY{number}"), "secret", None, Some(end), "test"));
        future::ProvideCredentials::ready(found)
    }
}

#[tokio::test]
async fn credentials_are_renewed_before_they_end_and_used_to_their_end() {
    let runtime = Arc::new(Moved { tokio: Tokio::current(), seconds: AtomicUsize::new(0) });
    let provider = Arc::new(Hourly::default());
    provider.runtime.set(Arc::clone(&runtime)).unwrap();
    let credentials =
        AwsCredentials::provided_by(Shared(Arc::clone(&provider)), Arc::clone(&runtime) as Arc<dyn Runtime>);
    let key = async |second: usize| {
        runtime.seconds.store(second, Ordering::Relaxed);
        credentials.current().await.map(|found| found.access_key_id().to_owned())
    };
    assert_eq!(key(0).await.unwrap(), "KEY0");
    assert_eq!(key(3299).await.unwrap(), "KEY0", "it holds for longer than five minutes");
    assert_eq!(key(3301).await.unwrap(), "KEY1");
    provider.fails.store(true, Ordering::Relaxed);
    assert_eq!(key(3301 + 3400).await.unwrap(), "KEY1", "it still holds");
    assert_eq!(provider.given.load(Ordering::Relaxed), 3);
    assert_eq!(key(3301 + 3405).await.unwrap(), "KEY1");
    assert_eq!(provider.given.load(Ordering::Relaxed), 3, "the provider is left alone for a while");
    assert_eq!(key(3301 + 3600).await.unwrap_err().kind(), ErrorKind::NotApplied, "it has ended");
    provider.fails.store(false, Ordering::Relaxed);
    let renewed = key(3301 + 3600).await.unwrap();
    credentials.refused(&credentials.current().await.unwrap()).await;
    assert_ne!(key(3301 + 3600).await.unwrap(), renewed, "the service does not take it any more");
}

/// Set in the child processes of the test, which print the key that they find.
const CHILD: &str = "HAPAX_TEST_CHAIN";

async fn print_the_key_of_the_chain() {
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let http = HttpClient::new(HttpSettings::new(Arc::clone(&runtime))).unwrap();
    let credentials = AwsCredentials::from_chain("eu-west-1", http, runtime).await;
    match credentials.current().await {
        Ok(found) => println!("key {} of {:?}", found.access_key_id(), found.session_token()),
        Err(error) => println!("{:?}", error.kind()),
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
    std::fs::write(&path, "[billing]\naws_access_key_id = PROFILE\naws_secret_access_key = secret\n").unwrap();
    let profile = vec![
        ("AWS_SHARED_CREDENTIALS_FILE", path.display().to_string()),
        ("AWS_CONFIG_FILE", "/nonexistent".to_owned()),
        ("AWS_PROFILE", "billing".to_owned()),
    ];
    let key = found(profile.clone()).await;
    assert!(key.contains("key PROFILE of None"), "{key}");
    let key = found(profile.into_iter().chain(environment).collect()).await;
    assert!(key.contains("key ENVIRONMENT"), "the environment comes first: {key}");
    let agent =
        serve(r#"{"AccessKeyId":"CONTAINER","SecretAccessKey":"s","Token":"t","Expiration":"2099-01-01T00:00:00Z"}"#);
    let key = found(vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.await + "/role")]).await;
    assert!(key.contains(r#"key CONTAINER of Some("t")"#), "{key}");
}
