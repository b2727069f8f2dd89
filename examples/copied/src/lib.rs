//! The code of the guide, as a user copies it: this package depends on no package of Hapax but the facade.
//!
//! ```sh
//! cargo test -p example-copied
//! ```

#![expect(rustdoc::broken_intra_doc_links, reason = "the chapters link to items of the facade")]

#[doc = include_str!("../../../crates/hapax/src/guide/your_first_route.md")]
pub mod your_first_route {}

#[doc = include_str!("../../../crates/hapax/src/guide/what_a_client_sees.md")]
pub mod what_a_client_sees {}

#[doc = include_str!("../../../crates/hapax/src/guide/outcomes.md")]
pub mod outcomes {}

#[doc = include_str!("../../../crates/hapax/src/guide/outcomes_over_http.md")]
pub mod outcomes_over_http {}

#[doc = include_str!("../../../crates/hapax/src/guide/records_in_postgres.md")]
pub mod records_in_postgres {}

#[doc = include_str!("../../../crates/hapax/src/guide/records_in_redis.md")]
pub mod records_in_redis {}

#[doc = include_str!("../../../crates/hapax/src/guide/from_a_pattern.md")]
pub mod from_a_pattern {}

#[doc = include_str!("../../../crates/hapax/src/guide/consume_a_topic_kafka.md")]
pub mod consume_a_topic_kafka {}
