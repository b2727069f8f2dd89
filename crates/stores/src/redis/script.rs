use std::sync::LazyLock;

use hapax_core::Result;
use redis::{Cmd, Script, Value, cmd};

use super::call_error::RedisCallError;
use super::link::Confirmation;
use super::route::Route;
use super::value::{self, RedisKey, ScriptReply};

/// A Lua script over one record. Its last argument is the number of the call. It replies `{outcome, that number, the
/// stored record, …}`, so the reply to one call never passes for the reply to another.
pub(super) struct RecordScript {
    text: &'static str,
    digest: LazyLock<String>,
    /// The outcomes after which it has written.
    written: &'static [&'static str],
}

pub(super) static READ: RecordScript = RecordScript {
    text: include_str!("read.lua"),
    digest: LazyLock::new(|| digest(include_str!("read.lua"))),
    written: &[],
};
pub(super) static RENEW: RecordScript = RecordScript {
    text: include_str!("renew.lua"),
    digest: LazyLock::new(|| digest(include_str!("renew.lua"))),
    written: &["YES"],
};
pub(super) static COMPLETE: RecordScript = RecordScript {
    text: include_str!("complete.lua"),
    digest: LazyLock::new(|| digest(include_str!("complete.lua"))),
    written: &["DONE", "RECREATED"],
};
pub(super) static SWAP: RecordScript = RecordScript {
    text: include_str!("swap.lua"),
    digest: LazyLock::new(|| digest(include_str!("swap.lua"))),
    written: &["YES"],
};
pub(super) static PURGE: RecordScript = RecordScript {
    text: include_str!("purge.lua"),
    digest: LazyLock::new(|| digest(include_str!("purge.lua"))),
    written: &["YES"],
};
pub(super) static CONFIRM: RecordScript = RecordScript {
    text: include_str!("confirm.lua"),
    digest: LazyLock::new(|| digest(include_str!("confirm.lua"))),
    written: &["YES"],
};

fn digest(text: &str) -> String {
    Script::new(text).get_hash().to_owned()
}

impl RecordScript {
    /// Runs the script by its digest. A server that lacks the script (after a restart or `SCRIPT FLUSH`) runs nothing,
    /// so the call is then repeated with the full text.
    pub(super) async fn run<T>(
        &self,
        (route, name): (&Route<'_>, &RedisKey),
        arguments: &[&[u8]],
        judge: impl Fn(ScriptReply) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let send = async |verb, script| {
            let number = route.number_call();
            let command = script_command((verb, script), name, arguments, &number);
            if self.written.is_empty() {
                return route.call(&command, |reply| judge(parse(reply, &number)?)).await;
            }
            let judge = |reply, confirmation: &Confirmation| {
                let reply = parse(reply, &number).map_err(RedisCallError::Judged)?;
                let has_written = self.written.iter().any(|outcome| outcome.as_bytes() == &reply.outcome[..]);
                let judged = judge(reply).map_err(RedisCallError::Judged)?;
                if has_written { confirmation.check().map(|()| judged) } else { Ok(judged) }
            };
            route.write(&command, judge).await
        };
        Ok(match send("EVALSHA", &self.digest).await {
            Err(error) if error.is_unknown_script() => send("EVAL", self.text).await?,
            replied => replied?,
        })
    }
}

fn script_command((verb, script): (&str, &str), name: &RedisKey, arguments: &[&[u8]], number: &[u8; 8]) -> Cmd {
    let mut command = cmd(verb);
    command.arg(script).arg(1).arg(name.as_bytes());
    for argument in arguments {
        command.arg(argument);
    }
    command.arg(number);
    command
}

fn parse(reply: Value, number: &[u8; 8]) -> Result<ScriptReply> {
    let Value::Array(parts) = reply else { return Err(value::unexpected_reply()) };
    let mut parts = parts.into_iter().map(|part| value::reply_bytes(part)?.ok_or_else(value::unexpected_reply));
    let mut next = || parts.next().ok_or_else(value::unexpected_reply)?;
    let (outcome, replied_number, stored) = (next()?, next()?, next()?);
    if replied_number != number[..] {
        return Err(value::foreign_reply());
    }
    Ok(ScriptReply { outcome, stored, rest: parts.collect::<Result<_>>()? })
}
