//! A bucket of S3 or of Google Cloud Storage in memory, with faults that no real server has on demand.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A bucket `fake` on a free loopback port. It checks no signature, and takes one request a connection.
///
/// One of Google refuses a write that may replace an object, or has no checksum.
#[derive(Debug)]
pub struct FakeBucket {
    service: BucketService,
    address: SocketAddr,
    contents: Arc<FakeContents>,
    listener: JoinHandle<()>,
}

/// Whose protocol a [`FakeBucket`] speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketService {
    /// AWS S3.
    S3,
    /// Google Cloud Storage.
    Google,
}

/// The faults of a [`FakeBucket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketFault {
    /// It ends connections without an answer, and does nothing.
    Down,
    /// It does what it is asked, and ends the connection without an answer.
    LosesAnswers,
    /// It waits until the fault is another one, and then does what it is asked.
    Held,
    /// It takes no object. One of Google says that the quota is used up.
    Full,
    /// The last byte of each object changes on its way into the bucket.
    Alters,
    /// It asks for fewer requests.
    Busy,
    /// It refuses everything.
    Forbidden,
    /// To read an object that is not there is forbidden, as for a user who may not list the bucket.
    HidesMissing,
    /// It ends the connection in the middle of an object.
    Cuts,
}

#[derive(Debug)]
struct FakeContents {
    service: BucketService,
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The methods and paths of all requests.
    requests: Mutex<Vec<String>>,
    /// The rules, as the service writes them.
    lifecycle: Mutex<Option<String>>,
    fault: watch::Sender<Option<BucketFault>>,
}

struct FakeRequest {
    method: String,
    /// With the query.
    path: String,
    /// The lines of its head.
    head: String,
    body: Vec<u8>,
}

struct FakeAnswer {
    status: &'static str,
    body: Vec<u8>,
}

impl FakeBucket {
    /// Starts an empty bucket without a fault.
    ///
    /// # Errors
    ///
    /// If no port is free.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop.
    pub async fn start(service: BucketService) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let contents = Arc::new(FakeContents {
            service,
            objects: Mutex::default(),
            requests: Mutex::default(),
            lifecycle: Mutex::default(),
            fault: watch::Sender::new(None),
        });
        let served = Arc::clone(&contents);
        let listener = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let contents = Arc::clone(&served);
                // A client that goes away is no failure of a test.
                tokio::spawn(async move { contents.serve(stream).await.ok() });
            }
        });
        Ok(Self { service, address, contents, listener })
    }

    /// The URL of answers under this prefix.
    pub fn answers(&self, prefix: &str) -> String {
        let scheme = match self.service {
            BucketService::S3 => "s3",
            BucketService::Google => "gs",
        };
        format!("{scheme}://fake/{prefix}?endpoint=http://{}", self.address)
    }

    /// Sets the fault.
    pub fn set_fault(&self, fault: Option<BucketFault>) {
        self.contents.fault.send_replace(fault);
    }

    /// The objects by their names.
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.contents.objects.lock().clone()
    }

    /// Replaces the content of each object, or removes those for which there is none.
    pub fn change_objects(&self, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
        let mut objects = self.contents.objects.lock();
        let changed = std::mem::take(&mut *objects).into_iter();
        *objects = changed.filter_map(|(name, content)| Some((name, change(content)?))).collect();
    }

    /// Sets the rules of the bucket, as its service writes them: `<Rule>…</Rule>`.
    pub fn set_lifecycle(&self, rules: &str) {
        *self.contents.lifecycle.lock() = Some(rules.to_owned());
    }

    /// The requests until now, for instance `PUT /fake/answers/a`.
    pub fn requests(&self) -> Vec<String> {
        self.contents.requests.lock().clone()
    }
}

impl Drop for FakeBucket {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl FakeContents {
    async fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let Some(request) = read_request(&mut stream).await? else { return Ok(()) };
        self.requests.lock().push(format!("{} {}", request.method, request.path));
        let mut faults = self.fault.subscribe();
        // The sender lives as long as this.
        let fault = faults.wait_for(|fault| *fault != Some(BucketFault::Held)).await.ok().and_then(|fault| *fault);
        if fault == Some(BucketFault::Down) {
            return Ok(());
        }
        let answer = self.answer(&request, fault);
        if fault == Some(BucketFault::LosesAnswers) {
            return Ok(());
        }
        let FakeAnswer { status, body } = answer;
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        let is_cut = fault == Some(BucketFault::Cuts) && request.method == "GET";
        let sent = if is_cut { body.len() / 2 } else { body.len() };
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body[..sent]).await?;
        stream.shutdown().await
    }

    fn answer(&self, request: &FakeRequest, fault: Option<BucketFault>) -> FakeAnswer {
        if let Some(refusal) = self.refused(request, fault) {
            return refusal;
        }
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let name = path.trim_start_matches("/fake").trim_start_matches('/').to_owned();
        let mut objects = self.objects.lock();
        match (&*request.method, name.is_empty()) {
            ("GET", true) if query.starts_with("lifecycle") => self.rules(),
            ("GET", true) => listed(&objects, query),
            ("GET", false) => match objects.get(&name) {
                Some(content) => FakeAnswer { status: "200 OK", body: content.clone() },
                None if fault == Some(BucketFault::HidesMissing) => refusal("403 Forbidden", "AccessDenied"),
                None => refusal("404 Not Found", "NoSuchKey"),
            },
            ("PUT", false) if self.service == BucketService::Google && objects.contains_key(&name) => {
                refusal("412 Precondition Failed", "PreconditionFailed")
            }
            ("PUT", false) => {
                objects.insert(name, arrived(request, fault));
                FakeAnswer { status: "200 OK", body: Vec::new() }
            }
            ("DELETE", false) => match (objects.remove(&name), self.service) {
                (None, BucketService::Google) => refusal("404 Not Found", "NoSuchKey"),
                (Some(_), _) | (None, BucketService::S3) => FakeAnswer { status: "204 No Content", body: Vec::new() },
            },
            _ => refusal("405 Method Not Allowed", "MethodNotAllowed"),
        }
    }

    fn refused(&self, request: &FakeRequest, fault: Option<BucketFault>) -> Option<FakeAnswer> {
        let is_put = request.method == "PUT";
        let is_google = self.service == BucketService::Google;
        Some(match fault {
            Some(BucketFault::Forbidden) => refusal("403 Forbidden", "AccessDenied"),
            Some(BucketFault::Busy) if is_google => refusal("429 Too Many Requests", "TooManyRequests"),
            Some(BucketFault::Busy) => refusal("503 Service Unavailable", "SlowDown"),
            Some(BucketFault::Full) if is_put && is_google => refusal("403 Forbidden", "QuotaExceeded"),
            Some(BucketFault::Full) if is_put => refusal("507 Insufficient Storage", "XMinioStorageFull"),
            Some(_) | None if is_put && is_google => return refused_by_google(request, &arrived(request, fault)),
            Some(_) | None => return None,
        })
    }

    fn rules(&self) -> FakeAnswer {
        match &*self.lifecycle.lock() {
            Some(rules) => {
                let body = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>").into();
                FakeAnswer { status: "200 OK", body }
            }
            None => refusal("404 Not Found", "NoSuchLifecycleConfiguration"),
        }
    }
}

/// The content of an object as it reaches the bucket.
fn arrived(request: &FakeRequest, fault: Option<BucketFault>) -> Vec<u8> {
    let mut content = request.body.clone();
    if let (Some(BucketFault::Alters), Some(last)) = (fault, content.last_mut()) {
        *last = !*last;
    }
    content
}

/// Why the service does not take this write: it must keep what is there, and have the checksum of what has arrived.
fn refused_by_google(request: &FakeRequest, arrived: &[u8]) -> Option<FakeAnswer> {
    let value = |name: &str| {
        let mut fields = request.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    };
    if value("x-goog-if-generation-match") != "0" {
        return Some(refusal("400 Bad Request", "InvalidArgument"));
    }
    let checksum = crc32c(arrived).to_be_bytes();
    (value("x-goog-hash") != format!("crc32c={}", base64(checksum))).then(|| refusal("400 Bad Request", "BadDigest"))
}

/// One bit after the other.
fn crc32c(bytes: &[u8]) -> u32 {
    let next = |sum: u32, _| if sum & 1 == 1 { 0x82f6_3b78 ^ (sum >> 1) } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), next))
}

/// Six characters for 32 bits, and two of padding.
fn base64(bytes: [u8; 4]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(u32::from_be_bytes(bytes)) << 4;
    let digit = |place: u64| char::from(DIGITS[usize::try_from(bits >> (30 - 6 * place) & 63).unwrap_or(0)]);
    (0..6).map(digit).chain("==".chars()).collect()
}

/// Lists two objects a call, so that few are enough for several calls.
fn listed(objects: &BTreeMap<String, Vec<u8>>, query: &str) -> FakeAnswer {
    let value = |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)).unwrap_or_default();
    let (prefix, from) = (value("prefix=").replace("%2F", "/"), value("continuation-token=").replace("%2F", "/"));
    let mut names = objects.keys().filter(|name| name.starts_with(&prefix) && **name > from);
    let page: Vec<&String> = names.by_ref().take(2).collect();
    let mut body = String::from("<ListBucketResult>");
    for name in &page {
        let _ = write!(body, "<Contents><Key>{name}</Key></Contents>");
    }
    if let (Some(last), Some(_)) = (page.last(), names.next()) {
        let _ = write!(body, "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>");
    }
    body.push_str("</ListBucketResult>");
    FakeAnswer { status: "200 OK", body: body.into() }
}

fn refusal(status: &'static str, code: &str) -> FakeAnswer {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>");
    FakeAnswer { status, body: body.into() }
}

/// None if the client has gone.
async fn read_request(stream: &mut TcpStream) -> io::Result<Option<FakeRequest>> {
    let mut read = Vec::new();
    let end = loop {
        if let Some(at) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let length = fields.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    while read.len() < end + length {
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(FakeRequest { method, path, head, body: read.split_off(end) }))
}
