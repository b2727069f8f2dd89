//! A proxy before a stand-in for SQS, which notes the messages that are deleted: SQS does not list those that are left.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hapax_core::runtime::{Runtime, Tokio};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The header in which the suite numbers messages.
const NUMBER: &str = "Suite-Number";

/// The proxy. It ends with its runtime.
pub(crate) struct Recorder {
    address: SocketAddr,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    /// The numbers of the messages, by their ids.
    numbers: BTreeMap<String, usize>,
    deleted: BTreeSet<usize>,
    /// How many requests to delete a message have no answer, by its id.
    unanswered: BTreeMap<String, usize>,
}

impl Recorder {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let notes: Arc<Mutex<Notes>> = Arc::default();
        let noted = Arc::clone(&notes);
        let runtime = Tokio::current();
        let spawning = runtime.clone();
        runtime.spawn(Box::pin(async move {
            while let Ok((client, _)) = listener.accept().await {
                let notes = Arc::clone(&noted);
                spawning.spawn(Box::pin(async move {
                    // A server that was killed ends the connection of its client, too.
                    let _ = pass(client, target, &notes).await;
                }));
            }
        }));
        Self { address, notes }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The numbers of the messages that the server has deleted.
    pub(crate) fn deleted(&self) -> BTreeSet<usize> {
        self.notes.lock().deleted.clone()
    }
}

async fn pass(client: TcpStream, target: SocketAddr, notes: &Mutex<Notes>) -> io::Result<()> {
    let mut client = BufReader::new(client);
    let mut server = BufReader::new(TcpStream::connect(target).await?);
    while let Some((head, request)) = read(&mut client).await? {
        let text = String::from_utf8_lossy(&head);
        for id in deletes(&text, &request).into_values() {
            *notes.lock().unanswered.entry(id).or_default() += 1;
        }
        server.write_all(&head).await?;
        server.write_all(&request).await?;
        // Also if the client is gone: what the server does counts.
        let Some((answer_head, answer)) = read(&mut server).await? else { return Ok(()) };
        note(&text, &request, &answer, notes);
        client.write_all(&answer_head).await?;
        client.write_all(&answer).await?;
    }
    Ok(())
}

/// The head and the body of the next request or answer. None at the end.
async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if head.is_empty() && error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    Ok(Some((head, body)))
}

fn note(head: &str, request: &[u8], answer: &[u8], notes: &Mutex<Notes>) {
    let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return };
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let mut notes = notes.lock();
    if head.contains("AmazonSQS.ReceiveMessage") {
        for message in list(&answer, "Messages") {
            let number = message["MessageAttributes"][NUMBER]["StringValue"].as_str().unwrap().parse().unwrap();
            let id = message["MessageId"].as_str().unwrap().to_owned();
            // It is there all the same.
            notes.deleted.remove(&number);
            notes.unanswered.remove(&id);
            notes.numbers.insert(id, number);
        }
    }
    let done: Vec<Value> = list(&answer, "Successful").iter().map(|entry| entry["Id"].clone()).collect();
    for (entry, id) in deletes(head, request) {
        let unanswered = notes.unanswered.entry(id.clone()).or_default();
        *unanswered = unanswered.saturating_sub(1);
        // A server that is killed may have deleted it without an answer. It knows no receipt of it any more.
        if *unanswered > 0 || done.contains(&Value::from(entry)) {
            let number = notes.numbers[&id];
            notes.deleted.insert(number);
        }
    }
}

/// The ids of the messages that a request deletes, by those of its entries.
fn deletes(head: &str, request: &[u8]) -> BTreeMap<String, String> {
    let request: Value = serde_json::from_slice(request).unwrap_or_default();
    let entries = request["Entries"].as_array().filter(|_| head.contains("AmazonSQS.DeleteMessageBatch"));
    // The id of the message, a `#`, and the id of the receipt.
    let id = |entry: &Value| entry["ReceiptHandle"].as_str().unwrap().split('#').next().unwrap().to_owned();
    let ids = entries.into_iter().flatten().map(|entry| (entry["Id"].as_str().unwrap().to_owned(), id(entry)));
    ids.collect()
}
