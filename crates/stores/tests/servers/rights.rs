//! The rights that a user needs are those that the store names, and no others.

use std::sync::Arc;

use hapax_core::ErrorKind::Unusable;
use hapax_core::machine::{Claim, Decision, Grant, Renewed, release};
use hapax_core::store::{Inserted, Swapped};
use hapax_core::{Inspect, Result, Seconds, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::{Kind, RedisServer};
use libtest_mimic::Trial;

use crate::plight::refused;
use crate::world::{FIRST, Operation, SECOND, ask, completion, failure, start, store, test};

pub(crate) fn tests() -> Vec<Trial> {
    let each = Kind::ALL.into_iter().flat_map(|kind| {
        [
            test("the_rights_it_names_suffice", kind.name(), move || suffice(kind)),
            test("a_database_takes_a_right_of_its_own", kind.name(), move || database(kind)),
        ]
    });
    each.collect()
}

async fn suffice(kind: Kind) {
    let server = start(kind, &[]).await;
    let rights = named(&server).await;
    let with_all = user(&server, "all", &rights).await;
    uses_everything(&server, &with_all, "all").await.unwrap();
    for missing in &rights {
        let others: Vec<_> = rights.iter().filter(|right| *right != missing).cloned().collect();
        let store = user(&server, "some", &others).await;
        let used = uses_everything(&server, &store, missing).await;
        assert!(used.is_err(), "{missing} is not needed");
        refused(used, Unusable, "the user lacks a right");
    }
}

/// The right to select it, which a user of the first database does not need.
async fn database(kind: Kind) {
    let server = start(kind, &[]).await;
    let mut rights = named(&server).await;
    let secret = |number| format!("redis://some:secret@{}/{number}", server.address());
    user(&server, "some", &rights).await;
    Operation::new("one").cycle(&*store(&secret(0))).await;
    let refused = failure(Operation::new("two").begin(&*store(&secret(3)), FIRST).await);
    assert_eq!(refused.kind(), Unusable, "{refused:?}");
    assert!(refused.to_string().contains("and +select for a database"), "{refused:?}");
    rights.push("+select".into());
    user(&server, "some", &rights).await;
    Operation::new("two").cycle(&*store(&secret(3))).await;
}

/// What the store says it needs.
async fn named(server: &RedisServer) -> Vec<String> {
    let store = user(server, "none", &[]).await;
    let error = failure(Operation::new("any").begin(&*store, FIRST).await);
    assert_eq!(error.kind(), Unusable, "{error:?}");
    let message = error.to_string();
    let rights = message.split([' ', ',', ';']).filter(|word| word.starts_with(['~', '+'])).map(str::to_owned);
    let rights: Vec<_> = rights.filter(|right| right != "+select").collect();
    assert!(rights.len() > 5, "{message}");
    rights
}

/// A store whose user has these rights.
async fn user(server: &RedisServer, name: &str, rights: &[String]) -> Arc<Redis> {
    let mut words: Vec<String> = ["ACL", "SETUSER", name, "reset", "on", ">secret"].map(str::to_owned).into();
    words.extend(rights.iter().cloned());
    ask(server, &words).await;
    store(&format!("redis://{name}:secret@{}", server.address()))
}

/// Every operation, with scripts that the server knows and such that it does not.
async fn uses_everything(server: &RedisServer, store: &Arc<Redis>, key: &str) -> Result<()> {
    ask(server, &["SCRIPT", "FLUSH"]).await;
    let operation = Operation::new(key);
    let rk = operation.0.record_key();
    store.begin(&operation.ask(FIRST)).await?;
    let Inserted::Found(seen) = store.begin(&operation.ask(SECOND)).await? else { panic!("it is under way") };
    let record = seen.record.clone().unwrap();
    let claim = Claim { owner: FIRST, token: record.token };
    store.renew(&rk, &claim).await?;
    assert_eq!(store.renew(&Operation::new("absent").0.record_key(), &claim).await?, Renewed::Gone);
    let seen = store.read(&rk).await?;
    let Decision::Change(change, _) = release(&seen, &claim, Seconds(600)) else { panic!("it can be released") };
    assert_eq!(store.swap(&rk, &seen, &change).await?, Swapped::Yes);
    let (token, fingerprint) = (record.token, record.fingerprint);
    let grant = Grant { rk, owner: FIRST, token, attempt: 1, takeover: false, fingerprint };
    store.complete(&rk, &completion(&grant, "done")).await?;
    store.check().await?;
    Ok(())
}
