//! The store on a service that fails.

use hapax_core::machine::{Begun, Grant, Lapse};
use hapax_core::runtime::Tokio;
use hapax_core::store::Protocol;
use hapax_core::{
    Call, ErrorKind, Fingerprint, Holding, Millis, Owner, Phase, Record, Rule, Seconds, State, Timestamp, Token,
};
use serde_json::{Value, json};

use super::stand_in::StandInTable;
use super::*;

const HOUR: i64 = 3600;

const FIRST: Owner = Owner([1; 16]);
const SECOND: Owner = Owner([2; 16]);

fn rk() -> RecordKey {
    RecordKey::from_bytes([7; 16])
}

fn fingerprint(byte: u8) -> Fingerprint {
    Fingerprint::from_parts(Rule(1), [byte; 12])
}

fn begin_of(owner: Owner) -> Begin {
    Begin {
        call: Call::new(rk()).fingerprint(fingerprint(5)),
        owner,
        lease: Millis(30_000),
        unknown_retention: Seconds(3600),
        on_lapse: Lapse::Retry,
    }
}

fn completion(grant: &Grant, answer: Vec<u8>) -> Complete {
    Complete {
        claim: grant.into(),
        fingerprint: grant.fingerprint,
        answer: answer.into(),
        retention: Seconds(60),
        ended: Timestamp(0),
        age: Duration::ZERO,
    }
}

/// A begin that the service grants, and the item that it has written.
async fn granted(service: &mut StandInTable, store: &DynamoDb) -> (Grant, Value) {
    let ask = begin_of(FIRST);
    let (begun, item) = tokio::join!(store.begin(&ask), async {
        let call = service.call().await;
        assert_eq!(call.operation, "PutItem");
        let item = call.body["Item"].clone();
        call.answer(json!({}));
        item
    });
    let Inserted::Granted(grant) = begun.unwrap() else { panic!("the key was free") };
    (grant, item)
}

/// A read that finds this item.
async fn read(service: &mut StandInTable, store: &DynamoDb, item: &Value) -> Result<Observed> {
    let rk = rk();
    let (seen, ()) = tokio::join!(store.read(&rk), async {
        let call = service.call().await;
        assert_eq!((&*call.operation, &call.body["ConsistentRead"]), ("GetItem", &json!(true)));
        call.answer(json!({ "Item": item }));
    });
    seen
}

fn ended(outcome: Result<impl fmt::Debug>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

#[tokio::test]
async fn a_throttled_call_is_not_applied_and_not_sent_again() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (ask, code) = (begin_of(FIRST), "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException");
    let (begun, ()) = tokio::join!(store.begin(&ask), async { service.call().await.refuse(code) });
    assert_eq!(ended(begun), ErrorKind::NotApplied);
    let (grant, _) = granted(&mut service, &store).await;
    let (claim, rk) = (Claim::from(&grant), rk());
    let (renewed, ()) = tokio::join!(store.renew(&rk, &claim), async { service.call().await.refuse(code) });
    assert_eq!(ended(renewed), ErrorKind::NotApplied);
    assert!(service.is_quiet().await);
}

#[tokio::test]
async fn a_call_without_an_answer_is_unknown_and_its_repetition_finds_its_own_record() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let ask = begin_of(FIRST);
    let (begun, item) = tokio::join!(store.begin(&ask), async {
        let call = service.call().await;
        let item = call.body["Item"].clone();
        // Its connection ends.
        drop(call);
        item
    });
    assert_eq!(ended(begun), ErrorKind::Unknown);
    let (begun, ()) = tokio::join!(store.begin(&ask), async { service.call().await.fail(503) });
    assert_eq!(ended(begun), ErrorKind::Unknown);
    let protocol = Protocol::over(&*store);
    let (begun, renewal) = tokio::join!(protocol.begin(&ask), async {
        service.call().await.refuse_for(&item);
        let call = service.call().await;
        let written = call.body["Item"].clone();
        call.answer(json!({}));
        written
    });
    assert!(matches!(begun.unwrap(), Begun::Mine(_)));
    assert_eq!((&renewal["tok"], &renewal["own"]), (&item["tok"], &item["own"]));
    assert_ne!(renewal["exp"], item["exp"], "every write moves the end");
}

#[tokio::test]
async fn a_table_that_cannot_be_used_says_so() {
    for code in ["ResourceNotFoundException", "AccessDeniedException", "ValidationException"] {
        let mut service = StandInTable::start().await;
        let store = service.store();
        let rk = rk();
        let (seen, ()) = tokio::join!(store.read(&rk), async { service.call().await.refuse(code) });
        assert_eq!(ended(seen), ErrorKind::Unusable, "{code}");
    }
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_is_not_applied() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("dynamodb://eu-west-1/payments?endpoint=http://{}", listener.local_addr().unwrap());
    drop(listener);
    let store = DynamoDb::with(&url.parse().unwrap(), Arc::new(Tokio::current())).unwrap();
    assert_eq!(ended(store.begin(&begin_of(FIRST)).await), ErrorKind::NotApplied);
}

#[tokio::test]
async fn nothing_is_written_by_a_service_that_shows_no_clock() {
    let mut service = StandInTable::start().await;
    service.clock.hide();
    let store = service.store();
    assert_eq!(ended(store.begin(&begin_of(FIRST)).await), ErrorKind::Unusable, "D13");
    assert!(service.is_quiet().await);
}

#[tokio::test]
async fn the_clock_is_asked_over_two_connections_before_the_first_call_only() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (_, item) = granted(&mut service, &store).await;
    assert_eq!(service.clock.questions(), 3);
    assert!(read(&mut service, &store, &item).await.unwrap().is_running());
    assert_eq!(service.clock.questions(), 3);
}

#[tokio::test]
async fn a_date_that_lies_once_lapses_no_lease_and_moves_no_stamp() {
    for lie in [HOUR, -HOUR] {
        let mut service = StandInTable::start().await;
        let store = service.store();
        let (grant, item) = granted(&mut service, &store).await;
        service.clock.lie_once(lie);
        let seen = read(&mut service, &store, &item).await.unwrap();
        assert!(seen.is_running(), "the hull of both clocks counts: {seen:?}");
        // The next call asks for the clock first, and over another connection.
        let (claim, rk, asked) = (Claim::from(&grant), rk(), service.clock.questions());
        let (renewed, stamp) = tokio::join!(store.renew(&rk, &claim), async {
            let call = service.call().await;
            let stamp: u64 = call.body["ExpressionAttributeValues"][":n"]["N"].as_str().unwrap().parse().unwrap();
            call.answer(json!({ "Attributes": item }));
            stamp
        });
        assert_eq!(renewed.unwrap(), Renewed::Yes);
        assert!(service.clock.questions() > asked);
        let off = stamp.abs_diff(service.clock.now().0);
        assert!(off < 3_000_000, "the stamp is {off} µs off");
        let ask = begin_of(SECOND);
        let (begun, ()) = tokio::join!(store.begin(&ask), async { service.call().await.refuse_for(&item) });
        let Inserted::Found(seen) = begun.unwrap() else { panic!("the key is taken") };
        assert!(seen.is_running() && seen.lease_left <= Duration::from_secs(30), "{seen:?}");
    }
}

#[tokio::test]
async fn a_step_of_the_clock_is_believed_when_three_replies_over_two_connections_agree() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (_, item) = granted(&mut service, &store).await;
    service.clock.set_ahead(HOUR + 10);
    let seen = read(&mut service, &store, &item).await.unwrap();
    assert!(seen.is_running(), "one reply proves nothing");
    let seen = read(&mut service, &store, &item).await.unwrap();
    assert!(!seen.is_running() && seen.live().is_none(), "the lifetime was an hour, too: {seen:?}");
    service.clock.set_ahead(0);
    read(&mut service, &store, &item).await.unwrap();
    assert!(read(&mut service, &store, &item).await.unwrap().is_running());
}

#[tokio::test]
async fn a_write_whose_reply_shows_a_much_later_clock_is_unknown_and_its_repetition_has_the_right_instant() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (grant, item) = granted(&mut service, &store).await;
    let (claim, rk) = (Claim::from(&grant), rk());
    // As after a pause of this machine.
    service.clock.set_ahead(60);
    let answer = json!({ "Attributes": item });
    let (renewed, ()) = tokio::join!(store.renew(&rk, &claim), async { service.call().await.answer(answer.clone()) });
    assert_eq!(ended(renewed), ErrorKind::Unknown);
    let (renewed, stamp) = tokio::join!(store.renew(&rk, &claim), async {
        let call = service.call().await;
        let stamp: u64 = call.body["ExpressionAttributeValues"][":n"]["N"].as_str().unwrap().parse().unwrap();
        call.answer(answer);
        stamp
    });
    assert_eq!(renewed.unwrap(), Renewed::Yes);
    assert!(stamp.abs_diff(service.clock.now().0) < 3_000_000, "{stamp}");
}

#[tokio::test]
async fn requests_are_signed_with_the_clock_of_the_service() {
    let mut service = StandInTable::start().await;
    service.clock.set_ahead(24 * HOUR);
    let store = service.store();
    let rk = rk();
    let (seen, signed_at) = tokio::join!(store.read(&rk), async {
        let call = service.call().await;
        let signed_at = call.signed_at.clone();
        call.answer(json!({}));
        signed_at
    });
    seen.unwrap();
    let day = |time: Timestamp| {
        let time = std::time::UNIX_EPOCH + Duration::from_micros(time.0);
        // Sun, 06 Nov 1994 08:49:37 GMT
        httpdate::fmt_http_date(time)[5..7].to_owned()
    };
    let (before, now) = (day(Timestamp(service.clock.now().0 - 5_000_000)), day(service.clock.now()));
    assert!([before, now].contains(&signed_at[6..8].to_owned()), "{signed_at}");
}

#[tokio::test]
async fn a_dropped_call_goes_on_and_the_next_one_for_its_key_waits_for_it() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (grant, item) = granted(&mut service, &store).await;
    let (claim, rk) = (Claim::from(&grant), rk());
    let mut renewal = Box::pin(store.renew(&rk, &claim));
    let call = tokio::select! {
        renewed = renewal.as_mut() => panic!("it has no answer yet: {renewed:?}"),
        call = service.call() => call,
    };
    drop(renewal);
    let other = RecordKey::from_bytes([8; 16]);
    let (seen, ()) = tokio::join!(store.read(&other), async { service.call().await.answer(json!({})) });
    assert_eq!(seen.unwrap().record, None, "another key does not wait");
    let mut next = Box::pin(store.read(&rk));
    tokio::select! {
        seen = next.as_mut() => panic!("{seen:?}"),
        is_quiet = service.is_quiet() => assert!(is_quiet, "it overtakes the renewal"),
    }
    call.answer(json!({ "Attributes": item }));
    let (seen, ()) = tokio::join!(next, async { service.call().await.answer(json!({ "Item": item })) });
    assert!(seen.unwrap().is_running());
}

#[tokio::test]
async fn a_completion_under_another_fingerprint_is_lost() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (grant, item) = granted(&mut service, &store).await;
    let other = Complete { fingerprint: fingerprint(6), ..completion(&grant, b"answer".to_vec()) };
    let rk = rk();
    let (completed, ()) = tokio::join!(store.complete(&rk, &other), async { service.call().await.refuse_for(&item) });
    assert!(matches!(completed.unwrap(), Completed::Lost(record) if record.token == grant.token));
    assert!(service.is_quiet().await);
}

/// A long answer, the record that names its parts, and the parts.
async fn long_answer(service: &mut StandInTable, store: &DynamoDb) -> (Complete, Value, Vec<Value>) {
    let (grant, item) = granted(service, store).await;
    let long = completion(&grant, (0..800_000_u32).map(|n| n.to_be_bytes()[3]).collect());
    let rk = rk();
    let (completed, (record, parts)) = tokio::join!(store.complete(&rk, &long), async {
        let mut calls = vec![service.call().await, service.call().await, service.call().await];
        let parts: Vec<Value> = calls.iter().map(|call| call.body["Item"].clone()).collect();
        assert!(parts.iter().all(|part| part.get("d").is_some()), "parts come before the record");
        calls.drain(..).for_each(|call| call.answer(json!({})));
        let call = service.call().await;
        let record = call.body["Item"].clone();
        call.answer(json!({ "Attributes": item }));
        (record, parts)
    });
    assert_eq!(completed.unwrap(), Completed::Done);
    assert!(record["parts"]["N"] == "3" && record.get("a").is_none());
    (long, record, parts)
}

/// Answers the calls for these parts, in any order, until the read ends.
async fn read_parts(
    service: &mut StandInTable,
    store: &DynamoDb,
    (record, parts): (&Value, &[Value]),
) -> Result<Observed> {
    let rk = rk();
    let answered = async {
        loop {
            let call = service.call().await;
            let key = &call.body["Key"]["k"];
            let found = parts.iter().chain([record]).find(|item| item["k"] == *key).cloned();
            call.answer(found.map_or_else(|| json!({}), |item| json!({ "Item": item })));
        }
    };
    tokio::select! {
        seen = store.read(&rk) => seen,
        () = answered => unreachable!("it answers for ever"),
    }
}

#[tokio::test]
async fn a_long_answer_lies_in_parts_and_a_missing_or_altered_part_is_damage() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (long, record, mut parts) = long_answer(&mut service, &store).await;
    let seen = read_parts(&mut service, &store, (&record, &parts)).await.unwrap();
    let answer = seen.live().and_then(|record| match &record.state {
        State::Completed(completion) => Some(completion.answer.clone()),
        State::Open(..) => None,
    });
    assert!(answer.is_some_and(|answer| answer == long.answer));
    let missing = read_parts(&mut service, &store, (&record, &parts[1..])).await;
    assert_eq!(ended(missing), ErrorKind::Damaged);
    parts[0]["d"] = parts[1]["d"].clone();
    let altered = read_parts(&mut service, &store, (&record, &parts)).await;
    assert_eq!(ended(altered), ErrorKind::Damaged);
}

#[tokio::test]
async fn a_part_that_is_not_written_leaves_the_record_alone() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (grant, _) = granted(&mut service, &store).await;
    let (long, rk) = (completion(&grant, vec![0; 301_000]), rk());
    let (completed, ()) =
        tokio::join!(store.complete(&rk, &long), async { service.call().await.refuse("ThrottlingException") });
    assert_eq!(ended(completed), ErrorKind::NotApplied);
    assert!(service.is_quiet().await);
}

#[tokio::test]
async fn an_expired_record_gives_its_key_to_a_grant_with_a_newer_token() {
    let mut service = StandInTable::start().await;
    let store = service.store();
    let (first, _) = granted(&mut service, &store).await;
    // It was written long ago, under a token of the future.
    let newer = Token(first.token.0 + 1_000_000_000);
    let holding = Holding { owner: FIRST, attempt: 1, takeover: false, lease: Millis(1), lifetime: Seconds(1) };
    let state = State::Open(Phase::Released, holding);
    let change =
        Change { record: Record { token: newer, fingerprint: first.fingerprint, state }, lifetime: Seconds(1) };
    let expired = Value::Object(item::written(&change, &rk(), (Timestamp(1000), None)));
    let ask = begin_of(SECOND);
    let (begun, condition) = tokio::join!(store.begin(&ask), async {
        service.call().await.refuse_for(&expired);
        let call = service.call().await;
        let condition = call.body["ConditionExpression"].as_str().unwrap().to_owned();
        assert_eq!(call.body["ExpressionAttributeValues"][":chk"], expired["chk"]);
        call.answer(json!({}));
        condition
    });
    let Inserted::Granted(grant) = begun.unwrap() else { panic!("it has expired") };
    assert!(grant.token > newer && grant.attempt == 1, "{grant:?}");
    assert!(condition.contains("#exp = :e"), "a renewal meanwhile is noticed: {condition}");
}
