//! The metadata of a committed offset: the topic, and the number of its partitions as the group began to read it.

use std::fmt;

use super::topics::TopicId;

const TOPIC: &str = "hapax topic=";
const PARTITIONS: &str = " partitions=";

/// The topic of a committed offset, so that the offset counts for no other topic of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffsetNote {
    pub(super) topic: TopicId,
    /// How many partitions the topic had as the group began to read it; no member changes it after that. Those behind
    /// them were added later. None in the metadata of an earlier version.
    pub(super) began_with: Option<i32>,
}

impl OffsetNote {
    /// None in the metadata of other programs.
    pub(super) fn of_metadata(metadata: &str) -> Option<Self> {
        let noted = metadata.strip_prefix(TOPIC)?;
        let (topic, began_with) = match noted.split_once(PARTITIONS) {
            Some((topic, partitions)) => (topic, partitions.parse().ok()),
            None => (noted, None),
        };
        Some(Self { topic: TopicId::of_text(topic)?, began_with })
    }
}

impl fmt::Display for OffsetNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TOPIC}{}", self.topic)?;
        self.began_with.map_or(Ok(()), |began_with| write!(f, "{PARTITIONS}{began_with}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_of_an_offset_tell_the_topic_and_its_partitions_at_the_beginning() {
        let earlier = "hapax topic=00000000000000070000000000000000";
        for (metadata, began_with) in [(earlier.to_owned(), None), (format!("{earlier} partitions=3"), Some(3))] {
            let note = OffsetNote::of_metadata(&metadata).unwrap();
            assert_eq!((note.began_with, note.to_string()), (began_with, metadata));
        }
        for foreign in ["", "00000000000000070000000000000000", "hapax topic=orders", "hapax topic= partitions=3"] {
            assert_eq!(OffsetNote::of_metadata(foreign), None, "{foreign}");
        }
    }
}
