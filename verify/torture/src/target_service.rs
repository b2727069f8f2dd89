//! A service behind `hapax worker`: `hapax-torture-target-service PORT JOURNAL SEED calm|hostile`. It keeps no ids,
//! writes one line for each step into the journal, and misbehaves as its seed says.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, journal, seed, mood] = &arguments[..] else { bail!("PORT JOURNAL SEED calm|hostile") };
    let journal = OpenOptions::new().create(true).append(true).open(journal)?;
    let service = Arc::new(HostileService { journal, seed: seed.parse()?, is_calm: mood == "calm" });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?))?;
    for stream in listener.incoming() {
        let (service, stream) = (Arc::clone(&service), stream?);
        // The worker may break off.
        thread::spawn(move || drop(service.serve(stream)));
    }
    Ok(())
}

struct HostileService {
    journal: File,
    seed: u64,
    is_calm: bool,
}

/// A message as the service got it.
struct ServedOrder {
    key: String,
    attempt: String,
    token: String,
}

/// What the service does with an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServiceMood {
    Applies,
    HangsUpAfterTheEffect,
    FailsAfterTheEffect,
    FailsBeforeTheEffect,
    NotNow,
    Rejects,
}

impl ServiceMood {
    fn has_effect(self) -> bool {
        matches!(self, Self::Applies | Self::HangsUpAfterTheEffect | Self::FailsAfterTheEffect)
    }

    /// None: it hangs up.
    fn status(self) -> Option<u16> {
        match self {
            Self::Applies => Some(201),
            Self::HangsUpAfterTheEffect => None,
            Self::FailsAfterTheEffect | Self::FailsBeforeTheEffect => Some(500),
            Self::NotNow => Some(429),
            Self::Rejects => Some(422),
        }
    }
}

impl HostileService {
    /// Answers requests of one connection.
    fn serve(&self, stream: TcpStream) -> anyhow::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        while let Some(order) = read(&mut reader)? {
            match self.handle(&order)? {
                Some(status) => write!(stream, "HTTP/1.1 {status} Told\r\nContent-Length: 0\r\n\r\n")?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Returns the status, or none to hang up.
    fn handle(&self, order: &ServedOrder) -> io::Result<Option<u16>> {
        let mood = self.mood(order);
        self.note("began", order, 0)?;
        thread::sleep(Duration::from_millis(self.random(order, "before") % 30));
        if mood.has_effect() {
            self.note("effect", order, 0)?;
        }
        thread::sleep(Duration::from_millis(self.random(order, "after") % 30));
        if let Some(status) = mood.status() {
            self.note("answering", order, status)?;
        }
        Ok(mood.status())
    }

    fn mood(&self, order: &ServedOrder) -> ServiceMood {
        if self.is_calm {
            return ServiceMood::Applies;
        }
        let of_key = ServedOrder { attempt: String::new(), token: String::new(), key: order.key.clone() };
        match (self.random(&of_key, "key") % 100, self.random(order, "mood") % 100) {
            (0..2, _) => ServiceMood::Rejects,
            (_, 0..4) => ServiceMood::HangsUpAfterTheEffect,
            (_, 4..6) => ServiceMood::FailsAfterTheEffect,
            (_, 6..8) => ServiceMood::FailsBeforeTheEffect,
            (_, 8..13) => ServiceMood::NotNow,
            _ => ServiceMood::Applies,
        }
    }

    fn random(&self, order: &ServedOrder, topic: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, &order.key, &order.attempt, topic).hash(&mut hasher);
        hasher.finish()
    }

    /// Appends a line by one write, so that a kill leaves whole lines.
    fn note(&self, step: &str, order: &ServedOrder, status: u16) -> io::Result<()> {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let ServedOrder { key, attempt, token } = order;
        (&self.journal).write_all(format!("{at} {step} {key} {attempt} {token} {status}\n").as_bytes())
    }
}

/// Reads the next request. None at the end of the connection.
fn read(reader: &mut impl BufRead) -> anyhow::Result<Option<ServedOrder>> {
    let (mut line, mut fields) = (String::new(), Vec::new());
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let field = |name: &str| {
        let found = fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        found.with_context(|| format!("the request has no {name}"))
    };
    let mut body = vec![0; field("content-length")?.parse()?];
    reader.read_exact(&mut body)?;
    let (attempt, token) = (field("hapax-attempt")?, field("hapax-token")?);
    Ok(Some(ServedOrder { key: String::from_utf8(body)?, attempt, token }))
}
