//! One list of cases for every store of dead letters.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::any::Any;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{
    Coordinates, DeadCause, DeadLetter, DeadLetterId, DeadLetterStore, DeadLetters, DeadReason, Headers, Job,
    LetterChange, LetterWord, ListedReason, MemoryDeadLetterStore, Message, Position, Process, SeenLetter, Verdict,
};
use hapax_core::gate::{Failure, Reason};
use hapax_core::ledger::{Call, Terms};
use hapax_core::runtime::Tokio;
use hapax_core::worker::{MessageIdentity, Worker};
use hapax_core::{ErrorKind, Fingerprint, Identity, Key, Rule, Scope, Timestamp};
use hapax_stores::{
    PostgresDeadLetters, PostgresLedger, PostgresUrl, RedisDeadLetters, SqliteDeadLetters, SqliteLedger,
};
use hapax_testkit::MemoryBroker;
use hapax_testkit::servers::{
    self, PgBouncer, PostgresServer, RedisCluster, RedisClusterOptions, RedisKind, RedisSentinelOptions,
    RedisSentinels, RedisServer, RedisServerOptions,
};
use libtest_mimic::Trial;
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);
const SOURCE: &str = "sqlite/0123456789abcdef/orders";

/// Where the letters of one case are kept.
struct World {
    letters: Arc<dyn DeadLetterStore>,
    /// What must exist as long as the letters.
    _resources: Box<dyn Any + Send>,
}

async fn memory() -> World {
    World { letters: Arc::new(MemoryDeadLetterStore::new(Arc::new(Tokio::current()))), _resources: Box::new(()) }
}

async fn sqlite() -> World {
    let directory = tempfile::tempdir().unwrap();
    let letters = SqliteDeadLetters::open(directory.path().join("dead.db")).unwrap();
    World { letters: Arc::new(letters), _resources: Box::new(directory) }
}

async fn postgres() -> World {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let url: PostgresUrl = schema.url().parse().unwrap();
    World { letters: Arc::new(PostgresDeadLetters::connect(&url).unwrap()), _resources: Box::new(schema) }
}

/// Behind a pooler the search path cannot be chosen. It has what another role could plant there.
async fn pooled_postgres() -> World {
    let pooler = PgBouncer::shared().await.unwrap();
    let schema = PostgresServer::shared().await.unwrap().planted_schema().await.unwrap();
    let url: PostgresUrl = schema.url_at(pooler.address()).parse().unwrap();
    World { letters: Arc::new(PostgresDeadLetters::connect(&url).unwrap()), _resources: Box::new(schema) }
}

async fn redis_like(kind: RedisKind) -> World {
    let server = RedisServer::start(RedisServerOptions::new(kind)).await.unwrap();
    let letters = RedisDeadLetters::connect(&server.url().parse().unwrap()).unwrap();
    World { letters: Arc::new(letters), _resources: Box::new(server) }
}

async fn redis_cluster(kind: RedisKind) -> World {
    let cluster = RedisCluster::lent(RedisClusterOptions::new(kind)).await.unwrap();
    let letters = RedisDeadLetters::connect(&cluster.url().parse().unwrap()).unwrap();
    World { letters: Arc::new(letters), _resources: Box::new(cluster) }
}

async fn redis_sentinels() -> World {
    let sentinels = RedisSentinels::lent(RedisSentinelOptions::new(RedisKind::Redis)).await.unwrap();
    let letters = RedisDeadLetters::connect(&sentinels.url().parse().unwrap()).unwrap();
    World { letters: Arc::new(letters), _resources: Box::new(sentinels) }
}

fn main() -> ExitCode {
    let refused = plain("redis::a_worker_that_parks_refuses_letters_that_do_not_tell_their_keys", park_refused);
    let damaged = [
        plain("sqlite::a_marked_letter_that_cannot_be_decoded_is_left_out", sqlite_damaged),
        plain("sqlite::a_letter_whose_text_is_not_utf_8_is_listed_with_the_others_and_dropped", sqlite_not_text),
        servers::test("a_marked_letter_that_cannot_be_decoded_is_left_out", "postgres", postgres_damaged),
        servers::test("a_marked_letter_that_cannot_be_decoded_is_left_out", "redis", redis_damaged),
    ];
    let unknown = [
        plain("sqlite::a_letter_with_an_unknown_reason_is_listed_with_the_others", sqlite_unknown),
        servers::test("a_letter_with_an_unknown_reason_is_listed_with_the_others", "postgres", postgres_unknown),
        servers::test("a_letter_with_an_unknown_reason_is_listed_with_the_others", "redis", redis_unknown),
        servers::test("a_letter_of_a_slot_that_moves_is_neither_lost_nor_free_too_early", "redis", moving_slot),
        servers::test("a_letter_that_no_replica_confirms_is_unknown", "redis", unconfirmed),
    ];
    let ledgers = [
        plain("sqlite::a_mark_opens_the_operation_of_its_namespace_again_and_no_other", sqlite_reopens),
        servers::test("a_mark_opens_the_operation_of_its_namespace_again_and_no_other", "postgres", postgres_reopens),
    ];
    let stores = [
        cases("memory", |name, case| plain(name, move || async move { case(memory().await).await })),
        cases("sqlite", |name, case| plain(name, move || async move { case(sqlite().await).await })),
        cases("postgres", |name, case| served("postgres", name, move || async move { case(postgres().await).await })),
        cases("pgbouncer", |name, case| {
            served("pgbouncer", name, move || async move { case(pooled_postgres().await).await })
        }),
        cases("redis", |name, case| {
            served("redis", name, move || async move { case(redis_like(RedisKind::Redis).await).await })
        }),
        cases("valkey", |name, case| {
            served("valkey", name, move || async move { case(redis_like(RedisKind::Valkey).await).await })
        }),
        cases("redis", |name, case| {
            let name = format!("{name}_in_a_cluster");
            served("redis", &name, move || async move { case(redis_cluster(RedisKind::Redis).await).await })
        }),
        cases("valkey", |name, case| {
            let name = format!("{name}_in_a_cluster");
            served("valkey", &name, move || async move { case(redis_cluster(RedisKind::Valkey).await).await })
        }),
        cases("redis", |name, case| {
            let name = format!("{name}_behind_sentinels");
            served("redis", &name, move || async move { case(redis_sentinels().await).await })
        }),
    ];
    servers::main(stores.into_iter().flatten().chain(ledgers).chain(damaged).chain(unknown).chain([refused]))
}

type Case = fn(World) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn cases(store: &str, trial: impl Fn(&str, Case) -> Trial) -> Vec<Trial> {
    let cases: [(&str, Case); 14] = [
        ("a_letter_is_found_as_it_was_put", |world| Box::pin(found_as_put(world))),
        ("a_repeated_letter_replaces_the_first_and_its_mark", |world| Box::pin(repeated(world))),
        ("a_list_has_pages_in_the_order_of_the_writes", |world| Box::pin(pages(world))),
        ("a_dropped_letter_is_gone_with_its_mark", |world| Box::pin(dropped(world))),
        ("the_ordering_keys_of_the_letters_of_a_source_are_told_or_refused", |world| Box::pin(keys(world))),
        ("a_letter_with_a_long_ordering_key_is_written", |world| Box::pin(long_key(world))),
        ("a_marked_letter_is_taken_once_by_its_source", |world| Box::pin(taken_once(world))),
        ("a_reason_changes_with_the_mark_and_the_letter_keeps_its_place", |world| Box::pin(reason_changes(world))),
        ("the_word_of_an_operator_is_used_up_once_and_under_its_mark", |world| Box::pin(word_used_up(world))),
        ("a_write_names_what_was_seen_and_is_stale_after_a_change", |world| Box::pin(seen_is_named(world))),
        ("a_taken_letter_takes_no_word_and_stays_until_it_is_given_back", |world| Box::pin(taken_stays(world))),
        ("a_taken_letter_is_free_again_after_its_lease", |world| Box::pin(free_again(world))),
        ("a_finished_letter_is_gone_unless_its_message_is_dead_again", |world| Box::pin(finished(world))),
        ("a_cursor_of_something_else_is_an_error", |world| Box::pin(wrong_cursor(world))),
    ];
    cases.into_iter().map(|(name, case)| trial(&format!("{store}::{name}"), case)).collect()
}

fn plain<F, T>(name: &str, body: F) -> Trial
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()>,
{
    Trial::test(name, move || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(body());
        Ok(())
    })
}

fn served<F, T>(service: &'static str, name: &str, body: F) -> Trial
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()>,
{
    servers::test(name.split_once("::").unwrap().1, service, body)
}

fn id(n: u8) -> DeadLetterId {
    DeadLetterId::from_bytes([n; 16])
}

fn letter(n: u8) -> DeadLetter {
    let mut headers = Headers::default();
    headers.push("Idempotency-Key", format!("order-{n}"));
    headers.push("trace", vec![0, 0xff, n]);
    DeadLetter {
        id: id(n),
        reason: DeadReason::AttemptsExhausted,
        attempts: 8,
        cause: DeadCause::new("the target answered 503 \"Zo\u{eb}\""),
        namespace: "billing".into(),
        source: SOURCE.into(),
        operation: Some(call(n).operation()),
        fingerprint: Fingerprint::from_parts(Rule(255), [n; 12]),
        message: Arc::new(Message {
            payload: vec![n, 0, 0xff].into(),
            headers,
            ordering_key: Some("acme".into()),
            coordinates: Some(Coordinates {
                origin: "kafka/c/orders".into(),
                partition: u32::MAX,
                position: Position::Number(u64::MAX),
            }),
            timestamp: Some(Timestamp(1_700_000_000_123_456)),
            damage: None,
        }),
        at: Timestamp(1_800_000_000_654_321),
    }
}

/// A letter with as little as possible.
fn bare_letter(n: u8) -> DeadLetter {
    let position = Position::Id(vec![0, n].into());
    let coordinates = Coordinates { origin: "sqs/queue".into(), partition: 0, position };
    let message = Message { coordinates: Some(coordinates), ordering_key: Some("".into()), ..Message::default() };
    DeadLetter {
        reason: DeadReason::KeyMissing,
        attempts: 0,
        cause: None,
        operation: None,
        fingerprint: Fingerprint::NONE,
        message: Arc::new(message),
        ..letter(n)
    }
}

fn call(n: u8) -> Call {
    let scope = Scope::tenant("billing", "acme").unwrap();
    Identity::plain().call(&scope, &Key::new([n]).unwrap()).into()
}

fn unknown(n: u8) -> DeadLetter {
    DeadLetter { reason: DeadReason::OutcomeUnknown, ..letter(n) }
}

/// What the list shows of a letter now.
async fn seen(letters: &dyn DeadLetterStore, n: u8) -> SeenLetter {
    let listed = letters.list(None, 100).await.unwrap().into_iter().rfind(|listed| listed.id == id(n));
    listed.unwrap().seen
}

/// Marks a letter, as an operator does who has seen it as it is.
async fn mark(letters: &dyn DeadLetterStore, n: u8) {
    assert_eq!(letters.mark(id(n), &seen(letters, n).await, None).await.unwrap(), LetterChange::Yes);
}

async fn mark_not_done(letters: &dyn DeadLetterStore, n: u8) {
    let word = Some(LetterWord::NotDone);
    assert_eq!(letters.mark(id(n), &seen(letters, n).await, word).await.unwrap(), LetterChange::Yes);
}

/// As text, so that a difference is shown. Headers print only their names.
fn shown(letter: &DeadLetter) -> String {
    let headers: Vec<_> = letter.message.headers.iter().collect();
    format!("{letter:?} {headers:?}")
}

async fn put(letters: &dyn DeadLetterStore, all: impl IntoIterator<Item = DeadLetter>) {
    for result in letters.put(all.into_iter().collect()).await {
        result.unwrap();
    }
}

async fn found_as_put(World { letters, _resources }: World) {
    let unplaced = Message { payload: "x".into(), ..Message::default() };
    let unplaced = DeadLetter { message: Arc::new(unplaced), ..letter(3) };
    // A producer of Kafka chooses the time of a message.
    let late = Message { timestamp: Some(Timestamp(u64::MAX)), ..Message::default() };
    let late = DeadLetter { message: Arc::new(late), ..letter(4) };
    let all = [letter(1), bare_letter(2), unplaced, late];
    put(&*letters, all.clone()).await;
    for letter in all {
        let found = letters.find(letter.id).await.unwrap().unwrap();
        assert_eq!(shown(&found.letter), shown(&letter));
        assert_eq!(found.marked_at, None);
    }
    assert!(letters.find(id(9)).await.unwrap().is_none());
    assert!(letters.put(Vec::new()).await.is_empty());
}

async fn repeated(World { letters, _resources }: World) {
    put(&*letters, [letter(1), letter(2)]).await;
    mark(&*letters, 1).await;
    let again = DeadLetter { attempts: 16, at: Timestamp(1_900_000_000_000_000), ..letter(1) };
    put(&*letters, [again.clone()]).await;
    let found = letters.find(id(1)).await.unwrap().unwrap();
    assert_eq!(shown(&found.letter), shown(&again));
    assert_eq!(found.marked_at, None, "the redrive has failed");
    assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty());
    let list = letters.list(None, 10).await.unwrap();
    assert_eq!(list.iter().map(|listed| (listed.id, listed.attempts)).collect::<Vec<_>>(), [(id(2), 8), (id(1), 16)]);
}

async fn pages(World { letters, _resources }: World) {
    assert!(letters.list(None, 10).await.unwrap().is_empty());
    put(&*letters, [letter(5)]).await;
    put(&*letters, [bare_letter(3)]).await;
    put(&*letters, (10..15).map(letter)).await;
    mark(&*letters, 3).await;
    let (mut listed, mut cursor) = (Vec::new(), None);
    loop {
        let page = letters.list(cursor.as_ref(), 3).await.unwrap();
        assert!(page.len() <= 3, "{page:?}");
        let Some(last) = page.last() else { break };
        cursor = Some(last.cursor.clone());
        listed.extend(page);
    }
    assert_eq!(listed.len(), 7);
    assert_eq!([listed[0].id, listed[1].id], [id(5), id(3)]);
    let first = &listed[0];
    let reason = ListedReason::Known(DeadReason::AttemptsExhausted);
    assert_eq!((&first.reason, first.attempts, first.size), (&reason, 8, 3));
    assert_eq!((&*first.namespace, &*first.source), ("billing", SOURCE));
    assert_eq!((first.at, first.operation), (letter(5).at, letter(5).operation));
    assert_eq!((first.marked_at, listed[1].marked_at.is_some()), (None, true));
    assert_eq!((listed[1].operation, listed[1].size), (None, 0));
}

async fn dropped(World { letters, _resources }: World) {
    put(&*letters, [letter(1), letter(2)]).await;
    let before = seen(&*letters, 1).await;
    mark(&*letters, 1).await;
    assert_eq!(letters.remove(id(1), &before).await.unwrap(), LetterChange::Stale, "it was marked since");
    let marked = seen(&*letters, 1).await;
    assert_eq!(letters.remove(id(1), &marked).await.unwrap(), LetterChange::Yes);
    assert_eq!(letters.remove(id(1), &marked).await.unwrap(), LetterChange::Missing);
    assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty());
    put(&*letters, [letter(1)]).await;
    assert_eq!(letters.find(id(1)).await.unwrap().unwrap().marked_at, None);
    assert_eq!(letters.list(None, 10).await.unwrap().len(), 2);
}

async fn long_key(World { letters, _resources }: World) {
    let long = |seed: u8| -> Bytes {
        // Hashes cannot be compressed.
        let scope = Scope::untenanted("keys").unwrap();
        let hash = |n: u8| *Identity::plain().record_key(&scope, &Key::new([seed, n]).unwrap()).as_bytes();
        (0..188).flat_map(hash).collect()
    };
    let of_key = |n: u8, key: &Bytes| {
        let message = Message { ordering_key: Some(key.clone()), ..(*letter(n).message).clone() };
        DeadLetter { message: Arc::new(message), ..letter(n) }
    };
    let (first, second, free) = (long(1), long(2), long(3));
    assert!(first.len() >= 3000, "{}", first.len());
    put(&*letters, [of_key(1, &first), of_key(2, &second)]).await;
    let found = letters.find(id(1)).await.unwrap().unwrap();
    assert_eq!(found.letter.message.ordering_key.as_ref(), Some(&first));
    if letters.tells_ordering_keys() {
        assert_eq!(letters.keys_with_letters(SOURCE, vec![free, first.clone()]).await.unwrap(), [first]);
    }
}

async fn keys(World { letters, _resources }: World) {
    let of_key = |n: u8, key: &'static [u8]| {
        let message = Message { ordering_key: Some(key.into()), ..(*letter(n).message).clone() };
        DeadLetter { message: Arc::new(message), ..letter(n) }
    };
    let elsewhere = DeadLetter { source: "kafka/orders/other".into(), ..of_key(4, b"other") };
    put(&*letters, [of_key(1, b"acme"), of_key(2, b"\xff\0"), bare_letter(3), elsewhere]).await;
    let asked = [&b"acme"[..], b"\xff\0", b"other", b"free"].map(Into::into).to_vec();
    match letters.keys_with_letters(SOURCE, asked).await {
        Ok(mut found) => {
            found.sort();
            assert_eq!(found, [&b"acme"[..], b"\xff\0"]);
            assert!(letters.tells_ordering_keys());
        }
        // A stream of Redis cannot tell, and says so.
        Err(error) => assert_eq!((error.kind(), letters.tells_ordering_keys()), (ErrorKind::Invalid, false)),
    }
}

async fn taken_once(World { letters, _resources }: World) {
    let elsewhere = DeadLetter { source: "kafka/orders/other".into(), ..letter(4) };
    put(&*letters, [letter(1), letter(2), letter(3), elsewhere]).await;
    assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty(), "no letter is marked");
    let nobody = SeenLetter { written: "1".into(), marked_at: None };
    assert_eq!(letters.mark(id(9), &nobody, None).await.unwrap(), LetterChange::Missing);
    for n in [1, 3, 4, 1] {
        mark(&*letters, n).await;
    }
    let first = letters.take_marked(SOURCE, 1, HOUR).await.unwrap();
    let second = letters.take_marked(SOURCE, 10, HOUR).await.unwrap();
    let mut taken: Vec<_> = first.iter().chain(&second).map(|marked| shown(&marked.letter)).collect();
    taken.sort();
    assert_eq!((first.len(), taken), (1, vec![shown(&letter(1)), shown(&letter(3))]));
    assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty(), "all are taken");
    assert_eq!(letters.take_marked("kafka/orders/other", 10, HOUR).await.unwrap().len(), 1);
}

async fn reason_changes(World { letters, _resources }: World) {
    use DeadReason::{AttemptsExhausted, NotDone};
    put(&*letters, [unknown(1), letter(2), unknown(3)]).await;
    let before = seen(&*letters, 1).await;
    for n in [3, 2, 1] {
        mark_not_done(&*letters, n).await;
    }
    let first = letters.list(None, 10).await.unwrap();
    let repeated = letters.mark(id(1), &before, Some(LetterWord::NotDone)).await.unwrap();
    assert_eq!(repeated, LetterChange::Yes);
    mark(&*letters, 3).await;
    let listed = letters.list(None, 10).await.unwrap();
    assert_eq!(listed, first, "a repeated word changes nothing, and neither does a mark without one");
    let reasons: Vec<_> = listed.iter().map(|letter| (letter.id, letter.reason.clone())).collect();
    let known = [(1, NotDone), (2, AttemptsExhausted), (3, NotDone)];
    assert_eq!(reasons, known.map(|(n, reason)| (id(n), ListedReason::Known(reason))));

    let taken = letters.take_marked(SOURCE, 10, HOUR).await.unwrap();
    let shown_as = |n| DeadLetter { reason: NotDone, ..letter(n) };
    let mut all: Vec<_> = taken.iter().map(|marked| shown(&marked.letter)).collect();
    all.sort();
    assert_eq!(all, [shown(&shown_as(1)), shown(&letter(2)), shown(&shown_as(3))]);
    put(&*letters, [letter(3)]).await;
    assert_eq!(letters.find(id(3)).await.unwrap().unwrap().letter.reason, AttemptsExhausted, "it was written again");
}

async fn word_used_up(World { letters, _resources }: World) {
    put(&*letters, [unknown(1), letter(2)]).await;
    for n in [1, 2] {
        mark_not_done(&*letters, n).await;
    }
    let before = seen(&*letters, 1).await;
    let taken = letters.take_marked(SOURCE, 10, Duration::ZERO).await.unwrap();
    let mark = before.marked_at.unwrap();
    let earlier = Timestamp(mark.0 - 1);
    assert_eq!(letters.use_up_word(id(1), earlier).await.unwrap(), None, "it has another mark");
    assert_eq!(letters.use_up_word(id(9), mark).await.unwrap(), None, "there is no such letter");
    let other = taken.iter().find(|marked| marked.letter.id == id(2)).unwrap();
    assert_eq!(letters.use_up_word(id(2), other.marked_at).await.unwrap(), None, "it needs no word");

    let used_up = letters.use_up_word(id(1), mark).await.unwrap().unwrap();
    assert!(used_up > mark, "each change has a mark of its own");
    assert_eq!(letters.use_up_word(id(1), used_up).await.unwrap(), None, "there is no word any more");
    let found = letters.find(id(1)).await.unwrap().unwrap();
    assert_eq!((shown(&found.letter), found.marked_at), (shown(&unknown(1)), Some(used_up)));
    let again = letters.mark(id(1), &before, Some(LetterWord::NotDone)).await.unwrap();
    assert_eq!(again, LetterChange::Stale, "the word was about the attempts before");
    letters.finish(&[(id(1), mark)]).await.unwrap();
    assert!(letters.find(id(1)).await.unwrap().is_some());
    letters.finish(&[(id(1), used_up)]).await.unwrap();
    assert!(letters.find(id(1)).await.unwrap().is_none());
}

/// The slot of the letters moves key by key, and the set of their source comes last.
async fn moving_slot() {
    let cluster = RedisCluster::start(RedisClusterOptions::new(RedisKind::Redis)).await.unwrap();
    let letters = RedisDeadLetters::connect(&cluster.url().parse().unwrap()).unwrap();
    put(&letters, [unknown(1), letter(2)]).await;
    // With a changed reason and a taken letter, every key is there.
    mark_not_done(&letters, 1).await;
    assert_eq!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().len(), 1);
    let before = seen(&letters, 2).await;
    let (slot, from) = cluster.place_of(b"hx:{dead}").await.unwrap();
    let to = (from + 1) % cluster.masters().len();
    cluster.begin_move(slot, from, to).await.unwrap();
    let others = ["hx:{dead}", "hx:{dead}:ids", "hx:{dead}:marks", "hx:{dead}:reasons", "hx:{dead}:taken"];
    cluster.move_some(&others.map(str::as_bytes), from, to).await.unwrap();
    for refused in [
        letters.mark(id(2), &before, None).await.map(drop),
        letters.extend(&[id(1)], HOUR).await,
        letters.take_marked(SOURCE, 10, HOUR).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotApplied);
    }
    cluster.move_keys(slot, from, to).await.unwrap();
    cluster.end_move(slot, from, to).await.unwrap();
    assert_eq!(letters.mark(id(2), &before, None).await.unwrap(), LetterChange::Yes);
    letters.extend(&[id(1)], HOUR).await.unwrap();
    let taken = letters.take_marked(SOURCE, 10, HOUR).await.unwrap();
    assert_eq!(taken.iter().map(|marked| marked.letter.id).collect::<Vec<_>>(), [id(2)]);
}

/// A worker acknowledges a message only when its letter is confirmed.
async fn unconfirmed() {
    let sentinels = RedisSentinels::start(RedisSentinelOptions::new(RedisKind::Redis)).await.unwrap();
    let connect = |millis: u32| {
        RedisDeadLetters::connect(&format!("{}?wait=1:{millis}", sentinels.url()).parse().unwrap()).unwrap()
    };
    let (patient, hasty) = (connect(10_000), connect(100));
    put(&patient, [letter(1)]).await;
    sentinels.servers()[1].pause().unwrap();
    let unknown = hasty.put(vec![letter(2)]).await.pop().unwrap();
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::Unknown);
    assert!(hasty.find(id(2)).await.unwrap().is_some(), "the master has it");
    // The second one, over a connection that has written nothing, finds the work of the first.
    let before = seen(&hasty, 1).await;
    for letters in [hasty, connect(100)] {
        let unknown = letters.mark(id(1), &before, None).await;
        assert_eq!(unknown.unwrap_err().kind(), ErrorKind::Unknown);
        let unknown = letters.finish(&[(id(9), Timestamp(1))]).await;
        assert_eq!(unknown.unwrap_err().kind(), ErrorKind::Unknown);
    }
    sentinels.servers()[1].resume().unwrap();
    put(&patient, [letter(2)]).await;
}

/// Two operators see one letter. What the second one saw is an earlier attempt's letter.
async fn seen_is_named(World { letters, _resources }: World) {
    put(&*letters, [unknown(1)]).await;
    let first = seen(&*letters, 1).await;
    let word = Some(LetterWord::NotDone);
    assert_eq!(letters.find(id(1)).await.unwrap().unwrap().seen, first);
    assert_eq!(letters.mark(id(1), &first, None).await.unwrap(), LetterChange::Yes);
    assert_eq!(letters.mark(id(1), &first, word).await.unwrap(), LetterChange::Stale, "it was marked since");
    assert_eq!(letters.remove(id(1), &first).await.unwrap(), LetterChange::Stale);
    let second = seen(&*letters, 1).await;
    assert_eq!(letters.mark(id(1), &second, word).await.unwrap(), LetterChange::Yes);
    assert_eq!(letters.remove(id(1), &second).await.unwrap(), LetterChange::Stale, "it has a word since");

    let marked = seen(&*letters, 1).await;
    put(&*letters, [unknown(1)]).await;
    for old in [&first, &second, &marked] {
        assert_eq!(letters.mark(id(1), old, None).await.unwrap(), LetterChange::Stale);
        assert_eq!(letters.mark(id(1), old, word).await.unwrap(), LetterChange::Stale);
        assert_eq!(letters.remove(id(1), old).await.unwrap(), LetterChange::Stale);
    }
    let now = seen(&*letters, 1).await;
    assert_eq!(letters.remove(id(1), &now).await.unwrap(), LetterChange::Yes);
    put(&*letters, [unknown(1)]).await;
    assert_eq!(letters.remove(id(1), &now).await.unwrap(), LetterChange::Stale, "it is another letter");
    let text = seen(&*letters, 1).await;
    assert_eq!(text.to_string().parse::<SeenLetter>().unwrap(), text);
    mark(&*letters, 1).await;
    let text = seen(&*letters, 1).await;
    assert_eq!(text.to_string().parse::<SeenLetter>().unwrap(), text);
}

async fn taken_stays(World { letters, _resources }: World) {
    put(&*letters, [unknown(1)]).await;
    mark(&*letters, 1).await;
    let marked = seen(&*letters, 1).await;
    let taken = letters.take_marked(SOURCE, 10, HOUR).await.unwrap().remove(0);
    assert_eq!(seen(&*letters, 1).await, marked, "a delivery without a word changes nothing");
    for _ in 0..2 {
        for change in [
            letters.remove(id(1), &marked).await.unwrap(),
            letters.mark(id(1), &marked, Some(LetterWord::NotDone)).await.unwrap(),
        ] {
            let LetterChange::Taken(until) = change else { panic!("{change:?}") };
            assert!(until.since(taken.marked_at) > HOUR - Duration::from_secs(60), "{until:?}");
        }
        letters.extend(&[id(1)], HOUR).await.unwrap();
        assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty(), "it is still taken");
    }
    assert!(letters.find(id(1)).await.unwrap().is_some());

    letters.postpone(&[id(1)], HOUR).await.unwrap();
    assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty(), "it waits for its back-off");
    // A late extension is about the time before.
    letters.extend(&[id(1)], HOUR).await.unwrap();
    assert_eq!(letters.remove(id(1), &marked).await.unwrap(), LetterChange::Yes);
    put(&*letters, [unknown(1)]).await;
    mark(&*letters, 1).await;
    assert_eq!(letters.take_marked(SOURCE, 10, Duration::ZERO).await.unwrap().len(), 1);
    let free = seen(&*letters, 1).await;
    assert_eq!(letters.remove(id(1), &free).await.unwrap(), LetterChange::Yes, "its lease has ended");
}

async fn free_again(World { letters, _resources }: World) {
    put(&*letters, [letter(1)]).await;
    mark(&*letters, 1).await;
    assert_eq!(letters.take_marked(SOURCE, 10, Duration::from_millis(20)).await.unwrap().len(), 1);
    take_at_last(&*letters, Duration::from_millis(20)).await;
    letters.postpone(&[id(1), id(9)], HOUR).await.unwrap();
    assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty(), "it is postponed");
    letters.postpone(&[id(1)], Duration::ZERO).await.unwrap();
    take_at_last(&*letters, HOUR).await;
    assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty(), "it is taken");
}

async fn take_at_last(letters: &dyn DeadLetterStore, lease: Duration) {
    let begun = Instant::now();
    while letters.take_marked(SOURCE, 10, lease).await.unwrap().is_empty() {
        assert!(begun.elapsed() < DEADLINE, "the letter is not free again");
        hapax_testkit::pause().await;
    }
}

async fn finished(World { letters, _resources }: World) {
    put(&*letters, [letter(1), letter(2)]).await;
    mark(&*letters, 1).await;
    let taken = letters.take_marked(SOURCE, 10, Duration::ZERO).await.unwrap();
    let (done, unmarked) = ((id(1), taken[0].marked_at), (id(2), taken[0].marked_at));
    put(&*letters, [letter(1)]).await;
    letters.finish(&[done]).await.unwrap();
    assert!(letters.find(id(1)).await.unwrap().is_some(), "it was written again, and is not marked");
    mark(&*letters, 1).await;
    letters.finish(&[done]).await.unwrap();
    assert!(letters.find(id(1)).await.unwrap().is_some(), "it has another mark");

    let again = letters.take_marked(SOURCE, 10, HOUR).await.unwrap();
    for _ in 0..2 {
        letters.finish(&[unmarked, (id(1), again[0].marked_at), (id(9), again[0].marked_at)]).await.unwrap();
        assert!(letters.find(id(1)).await.unwrap().is_none());
        assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty());
        assert_eq!(letters.list(None, 10).await.unwrap().len(), 1);
    }
    put(&*letters, [letter(1)]).await;
    assert_eq!(letters.find(id(1)).await.unwrap().unwrap().marked_at, None, "the mark is gone, too");
}

async fn wrong_cursor(World { letters, _resources }: World) {
    let error = letters.list(Some(&hapax_core::broker::DeadCursor::new("yesterday")), 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
}

/// Marks three letters, of which the second one is damaged.
async fn leave_damaged_out(letters: &dyn DeadLetterStore, damage: impl Future<Output = ()>) {
    put(letters, (1..4).map(letter)).await;
    for n in 1..4 {
        mark(letters, n).await;
    }
    damage.await;
    let mut listed: Vec<_> = letters.list(None, 10).await.unwrap().iter().map(|letter| letter.id).collect();
    listed.sort();
    // The damaged letter may be a second entry with the id of the first.
    listed.dedup();
    assert_eq!(listed, [id(1), id(2), id(3)]);
    let taken = letters.take_marked(SOURCE, 10, HOUR).await.unwrap();
    let mut taken: Vec<_> = taken.into_iter().map(|marked| marked.letter.id).collect();
    taken.sort();
    assert_eq!(taken, [id(1), id(3)]);
    let error = letters.find(id(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
    assert!(letters.take_marked(SOURCE, 10, HOUR).await.unwrap().is_empty(), "all are taken");
    assert_eq!(letters.remove(id(2), &seen(letters, 2).await).await.unwrap(), LetterChange::Yes);
}

async fn sqlite_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.db");
    let letters = SqliteDeadLetters::open(&path).unwrap();
    leave_damaged_out(&letters, async {
        let file = rusqlite::Connection::open(&path).unwrap();
        file.execute("update hapax_dead set rule = 70000 where id = ?1", [id(2).as_bytes()]).unwrap();
    })
    .await;
}

async fn sqlite_not_text() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.db");
    let letters = SqliteDeadLetters::open(&path).unwrap();
    put(&letters, (1..4).map(letter)).await;
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute("update hapax_dead set namespace = cast(x'62ff' as text) where id = ?1", [id(2).as_bytes()]).unwrap();
    let listed = letters.list(None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|letter| letter.id).collect::<Vec<_>>(), [id(1), id(2), id(3)]);
    assert_eq!((&listed[1].reason, &*listed[1].namespace), (&ListedReason::Damaged, "b\u{fffd}"));
    assert_eq!(letters.remove(id(2), &listed[1].seen).await.unwrap(), LetterChange::Yes);
}

async fn postgres_damaged() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let letters = PostgresDeadLetters::connect(&schema.url().parse().unwrap()).unwrap();
    leave_damaged_out(&letters, async {
        let damage = "update hapax_dead set headers = 'no headers' where id = '02020202-0202-0202-0202-020202020202'";
        assert_eq!(schema.admin().execute(damage, &[]).await.unwrap(), 1);
    })
    .await;
}

async fn redis_damaged() {
    let server = RedisServer::start(RedisServerOptions::new(RedisKind::Redis)).await.unwrap();
    let letters = RedisDeadLetters::connect(&server.url().parse().unwrap()).unwrap();
    leave_damaged_out(&letters, async {
        let script = "redis.call('HSET', 'hx:dead:ids', ARGV[1], redis.call('XADD', 'hx:dead', '*', 'id', ARGV[1], \
                      'source', ARGV[2], 'letter', '{}', 'okey', '', 'position_id', '', 'payload', ''))";
        let id = id(2);
        let words = [&b"EVAL"[..], script.as_bytes(), b"0", id.as_bytes(), SOURCE.as_bytes()];
        server.command(&words).await.unwrap();
    })
    .await;
}

/// Puts three letters, and lets another release write the reason of the second one.
async fn list_unknown(letters: &dyn DeadLetterStore, change: impl Future<Output = ()>) {
    put(letters, (1..4).map(letter)).await;
    change.await;
    let known = ListedReason::Known(DeadReason::AttemptsExhausted);
    let listed = letters.list(None, 10).await.unwrap();
    let reasons: Vec<_> = listed.iter().map(|letter| (letter.id, letter.reason.clone())).collect();
    let unknown = ListedReason::Unknown("melted".into());
    assert_eq!(reasons, [(id(1), known.clone()), (id(2), unknown), (id(3), known)]);
    let (other, first) = (&listed[1], &listed[0]);
    assert_eq!((&other.source, &other.namespace, other.attempts), (&first.source, &first.namespace, 8));
    assert_eq!((other.at, other.size, other.operation), (letter(2).at, 3, letter(2).operation));
    let behind = letters.list(Some(&other.cursor), 10).await.unwrap();
    assert_eq!(behind.iter().map(|letter| letter.id).collect::<Vec<_>>(), [id(3)]);
    assert_eq!(letters.find(id(2)).await.unwrap_err().kind(), ErrorKind::Unusable);
}

async fn sqlite_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.db");
    let letters = SqliteDeadLetters::open(&path).unwrap();
    list_unknown(&letters, async {
        let file = rusqlite::Connection::open(&path).unwrap();
        file.execute("update hapax_dead set reason = 'melted' where id = ?1", [id(2).as_bytes()]).unwrap();
    })
    .await;
}

async fn postgres_unknown() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let letters = PostgresDeadLetters::connect(&schema.url().parse().unwrap()).unwrap();
    list_unknown(&letters, async {
        let change = "update hapax_dead set reason = 'melted' where id = '02020202-0202-0202-0202-020202020202'";
        assert_eq!(schema.admin().execute(change, &[]).await.unwrap(), 1);
    })
    .await;
}

async fn redis_unknown() {
    let server = RedisServer::start(RedisServerOptions::new(RedisKind::Redis)).await.unwrap();
    let letters = RedisDeadLetters::connect(&server.url().parse().unwrap()).unwrap();
    list_unknown(&letters, async {
        let id = id(2);
        let words = [&b"HSET"[..], b"hx:dead:reasons", id.as_bytes(), b"melted"];
        server.command(&words).await.unwrap();
    })
    .await;
}

fn terms() -> Terms {
    Terms::new("billing").unwrap().max_attempts(1)
}

fn other_terms() -> Terms {
    Terms::new("shipping").unwrap().max_attempts(1)
}

fn fails() -> Failure<String> {
    Failure::not_applied(std::io::Error::other("out of stock"))
}

/// The letters connect at their first call, so no server is needed.
async fn park_refused() {
    let letters = Arc::new(RedisDeadLetters::connect(&"redis://127.0.0.1:1".parse().unwrap()).unwrap());
    let runtime = Arc::new(Tokio::current());
    let source = MemoryBroker::prefix(Arc::clone(&runtime) as _, 1).source();
    let worker = Worker::builder(source, Arc::new(Unused), Arc::clone(&letters) as _)
        .identity(MessageIdentity::new("billing").unwrap())
        .park(letters)
        .build();
    let error = worker.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("PostgreSQL or SQLite"), "{error}");
}

#[derive(Debug)]
struct Unused;

#[async_trait::async_trait]
impl Process for Unused {
    async fn process(&self, _jobs: Vec<Job>) -> Vec<Verdict> {
        Vec::new()
    }
}

async fn sqlite_reopens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let mut shop = rusqlite::Connection::open(&path).unwrap();
    SqliteLedger::migrate(&mut shop).unwrap();
    let (ledger, other) = (SqliteLedger::new(terms()), SqliteLedger::new(other_terms()));
    let dead = |shop: &mut rusqlite::Connection, ledger: &SqliteLedger, call: Call| {
        let dead = ledger.run::<String, _>(shop, call, |_, _| panic!("it is dead"));
        assert!(matches!(dead.unwrap_err().reason, Reason::Dead));
    };
    for (ledger, call) in [(&ledger, call(1)), (&ledger, call(2)), (&other, call(1))] {
        assert!(ledger.run::<String, _>(&mut shop, call, |_, _| Err(fails())).is_err());
        dead(&mut shop, ledger, call);
    }

    let letters = SqliteDeadLetters::open(&path).unwrap();
    put(&letters, [letter(1)]).await;
    mark(&letters, 1).await;
    let redriven = ledger.run(&mut shop, call(1), |_, _| Ok(String::from("charged")));
    assert_eq!(redriven.unwrap().answer, "charged");
    // Another operation, and the same one of another namespace.
    dead(&mut shop, &ledger, call(2));
    dead(&mut shop, &other, call(1));
}

async fn postgres_reopens() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let url: PostgresUrl = schema.url().parse().unwrap();
    let connect = |terms| PostgresLedger::connect(&url, terms).unwrap();
    let (ledger, other) = (connect(terms()), connect(other_terms()));
    let dead = async |ledger: &PostgresLedger, call: Call| {
        let dead = ledger.run::<String, _>(call, async |_, _| panic!("it is dead")).await;
        assert!(matches!(dead.unwrap_err().reason, Reason::Dead));
    };
    for (ledger, call) in [(&ledger, call(1)), (&ledger, call(2)), (&other, call(1))] {
        assert!(ledger.run::<String, _>(call, async |_, _| Err(fails())).await.is_err());
        dead(ledger, call).await;
    }

    let letters = PostgresDeadLetters::connect(&url).unwrap();
    put(&letters, [letter(1)]).await;
    mark(&letters, 1).await;
    let redriven = ledger.run(call(1), async |_, _| Ok(String::from("charged"))).await;
    assert_eq!(redriven.unwrap().answer, "charged");
    // Another operation, and the same one of another namespace.
    dead(&ledger, call(2)).await;
    dead(&other, call(1)).await;
}
