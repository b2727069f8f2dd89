use hapax_core::outbox::{OutgoingEvent, RowId};

use super::world::{OutboxWorld, event, operation};

pub(super) async fn headers_and_payload_are_byte_equal(world: &OutboxWorld<'_>) {
    let headers = [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("Quotes \" and \\", "{\"a\": [1, 2.50, \"\\u00e4\"]}"),
        ("empty", ""),
        ("umlaut \u{e4}\u{1f980}", "\u{e4}\u{1f980}\n\t\u{7f}"),
    ];
    let written = OutgoingEvent {
        operation: Some(operation("one")),
        number: Some(7),
        ordering_key: Some(vec![0, 0xff, 0x80, b'a'].into()),
        kind: Some("com.example.transferred".into()),
        source: Some("/transfers".into()),
        content_type: Some("application/octet-stream".into()),
        headers: headers.into_iter().collect(),
        payload: (0..=255).cycle().take(70_000).collect::<Vec<u8>>().into(),
        ..event("topic with spaces, \u{e4}", None)
    };
    let plain = OutgoingEvent { payload: bytes::Bytes::new(), ..event("plain", None) };
    world.emit(&[written.clone(), plain.clone()]).await;
    let rows = world.read().await.rows;
    for (row, written) in rows.iter().zip([written, plain]) {
        let sorted = |event: &OutgoingEvent| {
            let headers = event.headers.iter().map(|(name, value)| (name.to_owned(), value.clone()));
            let mut headers: Vec<_> = headers.collect();
            headers.sort();
            headers
        };
        assert_eq!(sorted(&row.event), sorted(&written));
        let (id, created_at) = (row.event.id, row.event.created_at);
        let read = OutgoingEvent { headers: written.headers.clone(), ..(*row.event).clone() };
        assert!(read == OutgoingEvent { id, created_at, ..written }, "{read:?}");
        assert!(created_at.seconds() > 1_700_000_000, "{created_at:?}");
    }
    assert_eq!(rows.len(), 2);
}

pub(super) async fn ids_by_ordinal(world: &OutboxWorld<'_>) {
    let of = |number, namespace: &str| OutgoingEvent {
        operation: Some(operation("one")),
        number: Some(number),
        namespace: namespace.into(),
        ..event("topic", None)
    };
    let events = [of(0, "suite"), of(1, "suite"), of(0, "other \u{e4}"), of(i32::MAX.cast_unsigned(), "suite")];
    let ids = world.emit(&events).await;
    let derived = events.iter().map(|event| operation("one").event(&event.namespace, event.number.unwrap_or_default()));
    assert_eq!(ids, derived.collect::<Vec<_>>(), "another program derives the same ids");
    let rows = world.read().await.rows;
    assert_eq!(rows.iter().map(|row| row.event.id).collect::<Vec<_>>(), ids);
    assert_eq!(
        rows.iter().map(|row| row.event.number).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(0), Some(i32::MAX.cast_unsigned())]
    );
}

pub(super) async fn ids_without_an_operation_are_new(world: &OutboxWorld<'_>) {
    let ids = world.emit(&[event("topic", Some("a")), event("topic", Some("a")), event("topic", None)]).await;
    assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
    let rows = world.read().await.rows;
    assert!(rows.iter().all(|row| row.event.operation.is_none() && row.event.number.is_none()), "{rows:?}");
    let found = world.upkeep.find(ids[2]).await.expect("the outbox answers").expect("the row exists");
    assert_eq!((found.0, found.2.id), (rows[2].id, ids[2]));
}

pub(super) async fn limits_at_insert(world: &OutboxWorld<'_>) {
    let plain = || event("topic", Some("a"));
    let text = |len| "x".repeat(len);
    let key = |len| Some(vec![b'x'; len].into());
    let headers = |len| [("h", text(len))].into_iter().collect();
    let outside = [
        ("an empty topic", OutgoingEvent { topic: text(0), ..plain() }),
        ("a long topic", OutgoingEvent { topic: text(256), ..plain() }),
        ("a long topic of few characters", OutgoingEvent { topic: "\u{1f980}".repeat(64), ..plain() }),
        ("an empty key", OutgoingEvent { ordering_key: key(0), ..plain() }),
        ("a long key", OutgoingEvent { ordering_key: key(256), ..plain() }),
        ("a long namespace", OutgoingEvent { namespace: text(256), ..plain() }),
        ("a long type", OutgoingEvent { kind: Some(text(256)), ..plain() }),
        ("a long source", OutgoingEvent { source: Some(text(256)), ..plain() }),
        ("a long source of few characters", OutgoingEvent { source: Some("\u{1f980}".repeat(64)), ..plain() }),
        ("a long content type", OutgoingEvent { content_type: Some(text(256)), ..plain() }),
        ("a large payload", OutgoingEvent { payload: vec![0; 1_000_001].into(), ..plain() }),
        ("a large header", OutgoingEvent { payload: vec![0; 999_990].into(), headers: headers(10), ..plain() }),
    ];
    for (what, event) in outside {
        let mut writer = world.begin().await;
        let refused = writer.emit(&event).await;
        assert!(refused.is_err(), "{what} was written");
    }
    let inside = [
        OutgoingEvent { topic: text(255), ordering_key: key(255), namespace: text(255), ..plain() },
        OutgoingEvent { kind: Some(text(255)), source: Some(text(255)), content_type: Some(text(255)), ..plain() },
        OutgoingEvent { payload: vec![0; 1_000_000].into(), ..plain() },
        OutgoingEvent { payload: vec![0; 999_989].into(), headers: headers(10), ..plain() },
    ];
    world.emit(&inside).await;
    let sizes: Vec<usize> = world.read().await.rows.iter().map(|row| row.event.size()).collect();
    assert_eq!(sizes, [11, 11, 1_000_000, 1_000_000]);
}

pub(super) async fn an_event_of_an_operation_is_written_once(world: &OutboxWorld<'_>) {
    let one = OutgoingEvent { operation: Some(operation("one")), number: Some(0), ..event("first", None) };
    world.emit(std::slice::from_ref(&one)).await;
    let mut writer = world.begin().await;
    let again = writer.emit(&OutgoingEvent { topic: "again".into(), ..one }).await;
    assert!(again.is_err(), "the same event was written twice");
    drop(writer);
    let rows = world.read().await.rows;
    assert_eq!((rows.len(), &*rows[0].event.topic), (1, "first"));
    assert!(rows[0].id > RowId(0));
}
