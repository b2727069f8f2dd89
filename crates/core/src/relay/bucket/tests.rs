use super::*;
use crate::key::EventId;

/// An open row of the key `a`.
fn row(id: u128) -> OpenRow {
    let mut event = OutgoingEvent::new(EventId::from_bytes(id.to_be_bytes()), "topic", "5");
    event.ordering_key = Some(Bytes::from_static(b"a"));
    OpenRow { id: RowId(id), bucket: 0, is_parked: false, damage: None, event: Arc::new(event) }
}

/// Holds as many rows of the key as it may, skips the next one, and publishes what is held.
fn with_a_skipped_row() -> BucketRows {
    let last = MAX_HELD_OF_KEY as u128;
    let mut rows = BucketRows::default();
    for id in 1..=last {
        assert_eq!(rows.take(row(id), ReadStart::FIRST), TakenRow::New);
    }
    assert_eq!(rows.take(row(last + 1), ReadStart::FIRST), TakenRow::Skipped);
    rows.end_read(None, RowId(last + 1));
    for id in 1..=last {
        assert_eq!(rows.start(Duration::ZERO, true).map(|started| started.id), Some(RowId(id)));
        assert_eq!(rows.publish(RowId(id)), id == last, "the skipped row is read once no other is held");
        rows.mark(RowId(id));
    }
    assert_eq!(rows.cursor(), ReadStart::at(RowId(last + 1)));
    rows
}

#[test]
fn a_skipped_row_that_is_open_is_taken_by_the_next_read() {
    let mut rows = with_a_skipped_row();
    let start = rows.cursor();
    assert_eq!(rows.take(row(start.row.0), start), TakenRow::New);
    rows.end_read(None, RowId(100));
    assert!(rows.skipped.is_empty());
}

#[test]
fn a_skipped_row_that_is_gone_keeps_no_later_row_of_its_key() {
    let mut rows = with_a_skipped_row();
    // An operator has dropped it, or a relay that had lost the bucket has marked it.
    rows.end_read(None, RowId(100));
    assert_eq!(rows.take(row(101), rows.cursor()), TakenRow::New);
    assert!(rows.skipped.is_empty());
}

#[test]
fn a_read_that_does_not_reach_a_skipped_row_keeps_it() {
    let mut rows = with_a_skipped_row();
    let skipped = rows.cursor().row;
    rows.end_read(Some(ReadStart::at(skipped)), RowId(100));
    assert_eq!(rows.skipped.values().copied().collect::<Vec<_>>(), [skipped]);
}

/// The rows of other buckets have taken all bytes of the read.
#[test]
fn a_read_that_shows_no_row_of_a_bucket_moves_its_cursor_nowhere() {
    let mut rows = with_a_skipped_row();
    let start = rows.cursor();
    assert!(!rows.end_read(Some(start), RowId(100)));
    assert_eq!(rows.cursor(), start);
    assert_eq!(rows.take(row(start.row.0), start), TakenRow::New);
}
