//! The watermark never passes a message without an end.

use std::collections::BTreeSet;

use hapax_core::worker::Watermark;
use proptest::prelude::*;

/// A lane with growing numbers, and the order in which its messages end: numbers, and the time of each end.
fn lanes() -> impl Strategy<Value = (Vec<u64>, Vec<usize>)> {
    prop::collection::btree_set(0_u64..200, 1..40).prop_flat_map(|numbers| {
        let numbers: Vec<u64> = numbers.into_iter().collect();
        let ends = prop::collection::vec(0..numbers.len(), 0..80);
        (Just(numbers), ends)
    })
}

proptest! {
    #[test]
    fn it_never_passes_an_open_message_and_never_goes_back((numbers, ends) in lanes()) {
        let mut watermark = Watermark::new();
        let mut delivered = numbers.iter();
        let (mut seen, mut finished) = (Vec::new(), BTreeSet::new());
        let mut settled: Option<u64> = None;
        for end in ends {
            // Messages arrive while others end.
            if let Some(number) = delivered.next() {
                watermark.deliver(*number);
                seen.push(*number);
            }
            let ended = seen[end % seen.len()];
            watermark.finish(ended);
            finished.insert(ended);
            let open: Vec<u64> = seen.iter().copied().filter(|number| !finished.contains(number)).collect();
            prop_assert_eq!(watermark.open(), open.len());
            if let Some(position) = watermark.take_growth() {
                prop_assert!(settled < Some(position), "it goes back");
                settled = Some(position);
            }
            if let (Some(settled), Some(open)) = (settled, open.first()) {
                prop_assert!(settled < *open, "{} is settled and {} is open", settled, open);
            }
            // Everything below the first open message is settled, so nothing is processed twice without need.
            let below = seen.iter().filter(|number| open.first().is_none_or(|open| *number < open)).max();
            prop_assert!(below.copied() <= settled);
        }
    }

    #[test]
    fn it_reaches_the_last_message_once_all_have_ended((numbers, _) in lanes()) {
        let mut watermark = Watermark::new();
        numbers.iter().for_each(|number| watermark.deliver(*number));
        let mut last = None;
        for number in numbers.iter().rev() {
            watermark.finish(*number);
            last = watermark.take_growth().or(last);
        }
        prop_assert_eq!(last, numbers.last().copied());
        prop_assert_eq!(watermark.take_growth(), None, "the same position twice");
    }
}

#[test]
fn nothing_is_settled_below_the_first_message_of_a_lane_that_begins_in_the_middle() {
    let mut watermark = Watermark::new();
    watermark.deliver(500);
    watermark.deliver(501);
    watermark.finish(501);
    assert!(watermark.take_growth().is_none_or(|position| position < 500));
    watermark.finish(500);
    assert_eq!(watermark.take_growth(), Some(501));
}
