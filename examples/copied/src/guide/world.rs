// The examples include this file from the folder of their package.
include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/hapax/src/guide/world.rs"));
