//! The permissions in the error message suffice, and each of them is needed.

use std::sync::Arc;

use hapax_core::ErrorKind::{Unknown, Unusable};
use hapax_core::machine::{Claim, Decision, Grant, Renewed, release};
use hapax_core::store::{Inserted, Swapped};
use hapax_core::{Inspect, Result, Seconds, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::{RedisKind, RedisServer};
use libtest_mimic::Trial;

use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, SECOND, ask, completion, expect_error, start, store, test};

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        [
            test("the_listed_permissions_suffice_and_are_needed", kind.name(), move || listed_permissions(kind)),
            test("selecting_a_database_needs_its_own_permission", kind.name(), move || select_permission(kind)),
        ]
    });
    each.collect()
}

async fn listed_permissions(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let permissions = list_permissions(&server).await;
    let with_all = user(&server, "all", &permissions).await;
    call_every_operation(&server, &with_all, "all").await.unwrap();
    for missing in &permissions {
        let others: Vec<_> = permissions.iter().filter(|permission| *permission != missing).cloned().collect();
        let store = user(&server, "some", &others).await;
        let used = call_every_operation(&server, &store, missing).await;
        assert!(used.is_err(), "{missing} is not needed");
        // A begin writes its record before it looks at it.
        let kind = if missing == "+getrange" { Unknown } else { Unusable };
        assert_refused(used, kind, "the user lacks a permission");
    }
}

/// A user of database 0 does not need `+select`.
async fn select_permission(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let mut permissions = list_permissions(&server).await;
    let secret = |number| format!("redis://some:secret@{}/{number}", server.address());
    user(&server, "some", &permissions).await;
    Operation::new("one").cycle(&*store(&secret(0))).await;
    let refused = expect_error(Operation::new("two").begin(&*store(&secret(3)), FIRST).await);
    assert_eq!(refused.kind(), Unusable, "{refused:?}");
    assert!(refused.to_string().contains("+select for any database but 0"), "{refused:?}");
    permissions.push("+select".into());
    user(&server, "some", &permissions).await;
    Operation::new("two").cycle(&*store(&secret(3))).await;
}

/// Permissions that only a user of another database, of a cluster, behind sentinels, or with `wait=` in the URL needs.
const ELSEWHERE: [&str; 6] = ["+select", "+cluster|slots", "+asking", "+role", "+wait", "+waitaof"];

/// The permissions in the error of a user that has none.
async fn list_permissions(server: &RedisServer) -> Vec<String> {
    let store = user(server, "none", &[]).await;
    let error = expect_error(Operation::new("any").begin(&*store, FIRST).await);
    assert_eq!(error.kind(), Unusable, "{error:?}");
    let message = error.to_string();
    let permissions = message.split([' ', ',', ';']).filter(|word| word.starts_with(['~', '+'])).map(str::to_owned);
    let permissions: Vec<_> = permissions.filter(|permission| !ELSEWHERE.contains(&&**permission)).collect();
    assert!(permissions.len() > 5, "{message}");
    permissions
}

/// Creates a user with these permissions, and a store for that user.
async fn user(server: &RedisServer, name: &str, permissions: &[String]) -> Arc<Redis> {
    let mut words: Vec<String> = ["ACL", "SETUSER", name, "reset", "on", ">secret"].map(str::to_owned).into();
    words.extend(permissions.iter().cloned());
    ask(server, &words).await;
    store(&format!("redis://{name}:secret@{}", server.address()))
}

/// Calls every store operation, with scripts that the server has cached and scripts that it has not.
async fn call_every_operation(server: &RedisServer, store: &Arc<Redis>, key: &str) -> Result<()> {
    ask(server, &["SCRIPT", "FLUSH"]).await;
    let operation = Operation::new(key);
    let rk = operation.0.record_key();
    store.begin(&operation.ask(FIRST)).await?;
    let Inserted::Found(seen) = store.begin(&operation.ask(SECOND)).await? else {
        panic!("the record must be in progress")
    };
    let record = seen.record.clone().unwrap();
    let claim = Claim { owner: FIRST, token: record.token };
    store.renew(&rk, &claim).await?;
    assert_eq!(store.renew(&Operation::new("absent").0.record_key(), &claim).await?, Renewed::Gone);
    let seen = store.read(&rk).await?;
    let Decision::Change(change, _) = release(&seen, &claim, Seconds(600)) else { panic!("the grant can be released") };
    assert_eq!(store.swap(&rk, &seen, &change).await?, Swapped::Yes);
    let (token, fingerprint) = (record.token, record.fingerprint);
    let grant = Grant { rk, owner: FIRST, token, attempt: 1, takeover: false, fingerprint };
    store.complete(&rk, &completion(&grant, "done")).await?;
    store.check().await?;
    Ok(())
}
