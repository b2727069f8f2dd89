use std::iter;

use redis::{Cmd, Value, cmd};

/// The commands, each behind an `ASKING` of its own.
pub(super) fn asking<'a>(commands: impl IntoIterator<Item = &'a Cmd>) -> Vec<Cmd> {
    commands.into_iter().flat_map(|command| [cmd("ASKING"), command.clone()]).collect()
}

/// The replies to the commands, each of which stands behind the one to its `ASKING`. A node that refuses `ASKING` names
/// the old node for the command, and that one names this node again, so the refusal is the answer.
pub(super) fn behind_asking(replies: Vec<Value>) -> Vec<Value> {
    let mut replies = replies.into_iter();
    let next = || {
        Some(match (replies.next()?, replies.next()?) {
            (refused @ Value::ServerError(_), Value::ServerError(moved)) if moved.code() == "MOVED" => refused,
            (_, reply) => reply,
        })
    };
    iter::from_fn(next).collect()
}
