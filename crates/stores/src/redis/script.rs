use std::sync::LazyLock;

use bytes::Bytes;
use hapax_core::{Error, ErrorKind, Result};
use redis::{Cmd, Script as Source, Value, cmd};

use super::link::Link;
use super::value::{self, RecordName};

/// A script that works on one record and says what it did: `{word, the record's name, what stands there, …}`, as many each time.
pub(super) struct Script {
    text: &'static str,
    digest: LazyLock<String>,
}

pub(super) static READ: Script =
    Script { text: include_str!("read.lua"), digest: LazyLock::new(|| digest(include_str!("read.lua"))) };
pub(super) static RENEW: Script =
    Script { text: include_str!("renew.lua"), digest: LazyLock::new(|| digest(include_str!("renew.lua"))) };
pub(super) static COMPLETE: Script =
    Script { text: include_str!("complete.lua"), digest: LazyLock::new(|| digest(include_str!("complete.lua"))) };
pub(super) static SWAP: Script =
    Script { text: include_str!("swap.lua"), digest: LazyLock::new(|| digest(include_str!("swap.lua"))) };

fn digest(text: &str) -> String {
    Source::new(text).get_hash().to_owned()
}

/// What a script replied.
pub(super) struct Reply {
    pub(super) word: Bytes,
    /// The record it met, or its header; empty where there is none.
    pub(super) there: Bytes,
    /// What else it has to say.
    pub(super) rest: Vec<Bytes>,
}

impl Script {
    /// Runs it. A server that does not know it, after a restart or `SCRIPT FLUSH`, has not run it: it is sent in full then.
    pub(super) async fn run<T>(
        &self,
        (link, name): (&Link, &RecordName),
        arguments: &[&[u8]],
        judge: impl Fn(Reply) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let judge = |reply| judge(parsed(reply, name)?);
        Ok(match link.call(&call("EVALSHA", &self.digest, name, arguments), &judge).await {
            Err(failure) if failure.is_unknown_script() => {
                link.call(&call("EVAL", self.text, name, arguments), &judge).await?
            }
            replied => replied?,
        })
    }
}

fn call(verb: &str, script: &str, name: &RecordName, arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd(verb);
    command.arg(script).arg(1).arg(name.as_bytes());
    for argument in arguments {
        command.arg(argument);
    }
    command
}

fn parsed(reply: Value, name: &RecordName) -> Result<Reply> {
    let Value::Array(parts) = reply else { return Err(value::not_understood()) };
    let mut parts = parts.into_iter().map(|part| value::text(part)?.ok_or_else(value::not_understood));
    let mut next = || parts.next().ok_or_else(value::not_understood)?;
    let (word, of, there) = (next()?, next()?, next()?);
    if of != name.as_bytes() {
        return Err(Error::new(ErrorKind::Unknown, "a reply of the server belongs to another call"));
    }
    Ok(Reply { word, there, rest: parts.collect::<Result<_>>()? })
}
