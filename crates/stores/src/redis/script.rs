use std::sync::LazyLock;

use hapax_core::{Error, ErrorKind, Result};
use redis::{Cmd, Script, Value, cmd};

use super::link::Link;
use super::value::{self, RedisKey, ScriptReply};

/// A Lua script over one record. It replies `{outcome, the record's name, the stored record or its header, …}`.
pub(super) struct RecordScript {
    text: &'static str,
    digest: LazyLock<String>,
}

pub(super) static READ: RecordScript =
    RecordScript { text: include_str!("read.lua"), digest: LazyLock::new(|| digest(include_str!("read.lua"))) };
pub(super) static RENEW: RecordScript =
    RecordScript { text: include_str!("renew.lua"), digest: LazyLock::new(|| digest(include_str!("renew.lua"))) };
pub(super) static COMPLETE: RecordScript =
    RecordScript { text: include_str!("complete.lua"), digest: LazyLock::new(|| digest(include_str!("complete.lua"))) };
pub(super) static SWAP: RecordScript =
    RecordScript { text: include_str!("swap.lua"), digest: LazyLock::new(|| digest(include_str!("swap.lua"))) };

fn digest(text: &str) -> String {
    Script::new(text).get_hash().to_owned()
}

impl RecordScript {
    /// Runs the script by its digest. A server that lacks the script (after a restart or `SCRIPT FLUSH`) runs nothing,
    /// so the call is then repeated with the full text.
    pub(super) async fn run<T>(
        &self,
        (link, name): (&Link, &RedisKey),
        arguments: &[&[u8]],
        judge: impl Fn(ScriptReply) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let judge = |reply| judge(parse(reply, name)?);
        Ok(match link.call(&script_command("EVALSHA", &self.digest, name, arguments), &judge).await {
            Err(error) if error.is_unknown_script() => {
                link.call(&script_command("EVAL", self.text, name, arguments), &judge).await?
            }
            replied => replied?,
        })
    }
}

fn script_command(verb: &str, script: &str, name: &RedisKey, arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd(verb);
    command.arg(script).arg(1).arg(name.as_bytes());
    for argument in arguments {
        command.arg(argument);
    }
    command
}

fn parse(reply: Value, name: &RedisKey) -> Result<ScriptReply> {
    let Value::Array(parts) = reply else { return Err(value::unexpected_reply()) };
    let mut parts = parts.into_iter().map(|part| value::reply_bytes(part)?.ok_or_else(value::unexpected_reply));
    let mut next = || parts.next().ok_or_else(value::unexpected_reply)?;
    let (outcome, record_name, stored) = (next()?, next()?, next()?);
    // If replies and calls are out of step, this reply names the record of another call.
    if record_name != name.as_bytes() {
        return Err(Error::new(ErrorKind::Unknown, "the server's reply belongs to another call"));
    }
    Ok(ScriptReply { outcome, stored, rest: parts.collect::<Result<_>>()? })
}
