use hapax_core::ErrorKind::{Damaged, Full, NotApplied, Unknown, Unusable};

use super::*;

/// Parses an error reply as the driver does.
fn error(line: &str) -> RedisError {
    let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
    reply.extract_error().unwrap_err()
}

fn kind(error: RedisCallError) -> ErrorKind {
    Error::from(error).kind()
}

/// Errors as servers word them. The tests in `tests/servers` produce most of them on a real server.
const ERRORS: [(&str, ErrorKind); 32] = [
    ("ASK 1234 127.0.0.1:6379", NotApplied),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", NotApplied),
    ("CLUSTERDOWN The cluster is down", NotApplied),
    ("CROSSSLOT Keys in request don't hash to the same slot", NotApplied),
    ("DENIED Redis is running in protected mode because protected mode is enabled", Unusable),
    ("EXECABORT Transaction discarded because of previous errors.", NotApplied),
    ("LOADING Redis is loading the dataset in memory", NotApplied),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", NotApplied),
    ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", Full),
    ("MOVED 1234 127.0.0.1:6379", NotApplied),
    ("NOAUTH Authentication required.", Unusable),
    ("NOPERM this user has no permissions to run the 'set' command", Unusable),
    ("NOREPLICAS Not enough good replicas to write.", Full),
    ("NOSCRIPT No matching script. Please use EVAL.", NotApplied),
    ("OOM command not allowed when used memory > 'maxmemory'.", Full),
    ("READONLY You can't write against a read only replica.", NotApplied),
    ("TRYAGAIN Multiple keys request during rehashing of slot", NotApplied),
    ("UNKILLABLE Sorry the script already executed write commands against the dataset.", NotApplied),
    ("WRONGPASS invalid username-password pair or user is disabled.", Unusable),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", Damaged),
    ("ERR DB index is out of range", Unusable),
    ("ERR max number of clients reached", NotApplied),
    ("ERR syntax error", Unusable),
    ("ERR unknown command 'EVALSHA', with args beginning with:", Unusable),
    ("ERR The user executing the script can't run this command or subcommand script: 1f", Unusable),
    ("ERR ACL failure in script: User some has no permissions to run the 'get' command", Unusable),
    ("ERR Authentication required.", Unusable),
    ("ERR This instance has cluster support disabled", Unusable),
    ("ERR Error running script (call to 1f): @user_script:1: oh", Unknown),
    ("ERR something new", Unknown),
    ("BUSYKEY Target key name already exists.", Unknown),
    ("NEWCODE something new", Unknown),
];

#[test]
fn each_server_error_has_its_kind() {
    for (line, expected) in ERRORS {
        assert_eq!(kind(RedisCallError::Sent(error(line))), expected, "{line}");
        let sent = RedisCallError::Sent(error(line));
        assert!(sent.is_server_reply(), "{line}");
        let from_replica = line.starts_with("READONLY") || line.starts_with("MASTERDOWN");
        assert_eq!(sent.is_from_replica(), from_replica, "{line}");
        let refuses_writes = ["OOM", "MISCONF", "NOREPLICAS"].iter().any(|code| line.starts_with(code));
        assert_eq!(sent.is_write_refusal(), refuses_writes, "{line}");
        assert_eq!(sent.is_unknown_script(), line.starts_with("NOSCRIPT"), "{line}");
    }
    let has_example = |code: &str| ERRORS.iter().any(|(line, _)| line.split(' ').next() == Some(code));
    assert!(REFUSALS.iter().all(|(code, _, _)| has_example(code)));
    assert!(REFUSALS_BY_TEXT.iter().all(|(text, _, _)| ERRORS.iter().any(|(line, _)| line[4..].starts_with(text))));
}

#[test]
fn a_call_that_was_not_sent_was_not_applied() {
    for (line, expected) in ERRORS {
        // Even an unknown error cannot make the outcome unknown here: nothing was sent.
        let expected = if expected == Unknown { NotApplied } else { expected };
        for transport in [Transport::Plain, Transport::Tls] {
            assert_eq!(kind(RedisCallError::NotConnected(error(line), transport)), expected, "{line}");
        }
        assert_eq!(kind(RedisCallError::NotSent(error(line))), expected, "{line}");
    }
}

#[test]
fn a_broken_connection_leaves_the_outcome_of_sent_calls_unknown() {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof};
    for broken in [BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof] {
        let error = || RedisError::from(io::Error::from(broken));
        assert_eq!(kind(RedisCallError::Sent(error())), Unknown, "{broken}");
        assert!(!RedisCallError::Sent(error()).is_server_reply(), "{broken}");
        assert_eq!(kind(RedisCallError::NotSent(error())), NotApplied, "{broken}");
        assert_eq!(kind(RedisCallError::NotConnected(error(), Transport::Plain)), NotApplied, "{broken}");
    }
}

#[test]
fn an_unreadable_reply_leaves_the_outcome_unknown() {
    let parse = redis::parse_redis_value(b"-ERR unknown command 'SET', with args beginning with: '\xff'\r\n");
    let error = parse.unwrap_err();
    assert_eq!(error.kind(), Cause::Parse);
    assert!(Error::from(RedisCallError::Sent(error.clone())).to_string().contains("renamed"));
    assert_eq!(kind(RedisCallError::Sent(error.clone())), Unknown);
    assert!(!RedisCallError::Sent(error).is_server_reply());
}

#[test]
fn a_call_is_sent_again_only_after_a_reply_that_says_that_it_was_not_run() {
    let host = |name: &str, port| Host { name: name.into(), port };
    let asked = host("node.example", 7000);
    for (line, _) in ERRORS {
        let expected = match line.split(' ').next().unwrap() {
            "MOVED" => NodeAnswer::Moved { slot: 1234, address: host("127.0.0.1", 6379) },
            "ASK" => NodeAnswer::Ask { address: host("127.0.0.1", 6379) },
            "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" | "TRYAGAIN" => NodeAnswer::Later,
            _ => NodeAnswer::Final,
        };
        assert_eq!(RedisCallError::Sent(error(line)).node_answer(Some(&asked)), expected, "{line}");
    }
    for (line, address) in [
        ("MOVED 1 other.example:7001", host("other.example", 7001)),
        ("MOVED 1 :7002", host("node.example", 7002)),
        ("MOVED 1 ::1:7003", host("::1", 7003)),
    ] {
        let answer = RedisCallError::Sent(error(line)).node_answer(Some(&asked));
        assert_eq!(answer, NodeAnswer::Moved { slot: 1, address }, "{line}");
    }
    let broken = || RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
    assert_eq!(RedisCallError::Sent(broken()).node_answer(None), NodeAnswer::Final, "it may have been run");
    assert_eq!(RedisCallError::NotSent(broken()).node_answer(None), NodeAnswer::Later);
    assert_eq!(RedisCallError::NotConnected(broken(), Transport::Plain).node_answer(None), NodeAnswer::Later);
    let refused = RedisCallError::NotConnected(error("WRONGPASS invalid password"), Transport::Plain);
    assert_eq!(refused.node_answer(None), NodeAnswer::Final);
}
