//! What is listed of a source, and how a change to it is shown.

use super::*;

/// The lines of one file.
fn listed(source: &str) -> Vec<String> {
    let mut items = Items::default();
    items.read("a", source);
    items.lines().into_iter().collect()
}

#[test]
fn items_are_listed_up_to_their_body() {
    assert_eq!(
        listed("pub fn b<T: C>(d: &T) -> [u8; 2] where T: D, { e; }"),
        ["a: fn b<T: C>(d: &T) -> [u8; 2] where T: D"]
    );
    assert_eq!(listed("pub const fn b() {}\npub async fn c() {}"), ["a: async fn c()", "a: const fn b()"]);
    assert_eq!(
        listed("pub const B: usize = 1 << 20; pub type C<D> = Vec<D>;"),
        ["a: const B: usize", "a: type C<D> = Vec<D>"]
    );
    assert_eq!(
        listed("#![doc = \"b\"] #[cfg(feature = \"b\")] #[inline] pub mod b;"),
        ["a: #[cfg(feature = \"b\")] mod b"]
    );
}

#[test]
fn how_a_signature_is_broken_into_lines_does_not_count() {
    let broken = "pub fn b(\n    c: C, // why\n    d: D<\n        E,\n    >,\n) -> F {}";
    assert_eq!(listed(broken), listed("pub fn b(c: C, d: D<E>) -> F {}"));
}

#[test]
fn what_users_do_not_reach_is_not_listed() {
    let hidden = [
        "fn b() {} struct C; pub(crate) fn d() {} pub(super) enum E { F }",
        "mod b { fn c() {} } impl D { fn e() {} pub(crate) fn f() {} }",
        "#[cfg(test)] mod tests { pub fn b() {} }",
        "macro_rules! b { () => { pub fn c() {} } }",
        "impl Debug for Hidden {} impl Hidden for u8 {}",
    ];
    for source in hidden {
        assert_eq!(listed(source), [""; 0], "{source}");
    }
}

#[test]
fn fields_and_variants_are_listed_with_their_types() {
    let source = "#[derive(Clone)] #[non_exhaustive] pub struct B<C> { pub d: HashMap<C, fn(u8) -> u8>, e: u8, pub(crate) f: u8 }";
    assert_eq!(
        listed(source),
        ["a: #[derive(Clone)] #[non_exhaustive] struct B<C>", "a::B: d: HashMap<C, fn(u8) -> u8>"]
    );
    assert_eq!(listed("pub struct B(u8, pub (C, D));"), ["a: struct B", "a::B: 1: (C, D)"]);
    assert_eq!(
        listed("pub enum B { #[default] C, D(E, F), G { h: I, }, J = 2 }"),
        ["a: enum B", "a::B: C", "a::B: D(E, F)", "a::B: G { h: I }", "a::B: J = 2"]
    );
}

#[test]
fn methods_are_listed_under_their_type() {
    let source = "pub struct B<C>(C); impl<C: D<E>> B<C> { pub const F: u8 = 1; pub fn g(&self) {} fn h() {} }";
    assert_eq!(
        listed(source),
        ["a: struct B", "a::B: const F: u8", "a::B: fn g(&self)"].map(|line| line.replace("struct B", "struct B<C>"))
    );
    assert_eq!(
        listed("pub trait B: C { type D; fn e(&self); fn f() {} }"),
        ["a: trait B: C", "a::B: fn e(&self)", "a::B: fn f() { .. }", "a::B: type D"]
    );
}

#[test]
fn a_bound_with_for_makes_no_implementation_of_a_trait() {
    let source = "impl<F> B<F> where F: for<'a> Fn(&'a u8) { pub fn c() {} }";
    assert_eq!(listed(source), ["a::B: fn c()"]);
}

#[test]
fn implementations_are_listed_where_users_know_the_type_or_the_trait() {
    assert_eq!(
        listed("pub struct B; impl fmt::Debug for B { fn c() {} }"),
        ["a: impl fmt::Debug for B", "a: struct B"]
    );
    assert_eq!(
        listed("impl<F> B for F where F: Fn(u8) {} pub trait B {}"),
        ["a: impl<F> B for F where F: Fn(u8)", "a: trait B"]
    );
}

#[test]
fn exports_are_unfolded_and_macro_calls_shown() {
    assert_eq!(
        listed("pub use b::{C, d::E}; pub use f as g; use h::I; words!(J, K);"),
        ["a: use b::C", "a: use b::d::E", "a: use f as g", "a: words!(J, K)"]
    );
}

#[test]
fn unfinished_source_ends() {
    for source in
        ["#", "#[", "#!", "pub", "pub(", "impl<", "impl", "pub struct B(", "pub enum B { C(", "pub fn b(", "}", ";"]
    {
        listed(source);
    }
}

#[test]
fn each_library_has_a_listing_and_each_file_its_path() {
    let source = "pub fn b() {}";
    let tree = Tree::of(&[
        ("crates/core/src/lib.rs", source),
        ("crates/core/src/gate/attempt.rs", source),
        ("crates/core/tests/it/main.rs", source),
        ("crates/hapax/src/lib.rs", source),
        ("crates/cli/src/main.rs", source),
        ("crates/testkit/src/lib.rs", source),
    ]);
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<BTreeSet<_>>();
    let expected = [
        ("hapax-core.txt".to_owned(), lines(&["hapax_core: fn b()", "hapax_core::gate::attempt: fn b()"])),
        ("hapax.txt".to_owned(), lines(&["hapax: fn b()"])),
    ];
    assert_eq!(listings(&tree), BTreeMap::from(expected));
}

#[test]
fn a_change_is_shown_from_both_sides() {
    let found = BTreeSet::from(["a: fn b(c: u8)".to_owned(), "a: fn d()".to_owned()]);
    assert_eq!(changes("a: fn b()\na: fn d()\n", &found), ["- a: fn b()", "+ a: fn b(c: u8)"]);
    assert_eq!(changes("a: fn b(c: u8)\na: fn d()\n", &found), [""; 0]);
}

#[test]
fn a_listing_fails_until_it_is_blessed() {
    let root = std::env::temp_dir().join(format!("hapax-xtask-api-{}", std::process::id()));
    fs::create_dir_all(root.join("crates/core/src")).expect("a folder");
    fs::write(root.join("crates/core/src/lib.rs"), "pub fn b() {}").expect("a file");
    let verdicts = [false, true, false].map(|bless| run(&root, bless));
    let text = fs::read_to_string(root.join("docs/api/hapax-core.txt"));
    fs::remove_dir_all(&root).expect("the folder is ours");
    assert_eq!(verdicts, [false, true, true]);
    assert_eq!(text.expect("it was just written"), "hapax_core: fn b()\n");
}
