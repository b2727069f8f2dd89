//! The items of a Rust file: functions, types, traits, modules, constants, and the lines that each one covers.

use crate::rust::{RustToken, TokenKind};

/// An item of a file. Items may be nested: a method lies in an `impl`.
#[derive(Debug, PartialEq)]
pub(super) struct Item<'a> {
    /// `fn`, `struct`, `impl` and so on.
    pub(super) keyword: &'a str,
    /// The word after the keyword; for an `impl`, all words of its header.
    pub(super) name: String,
    /// The first and the last line, without attributes and documentation.
    pub(super) lines: (usize, usize),
    /// The keyword of the item around it; empty at the top of the file.
    pub(super) parent: &'a str,
    /// Whether it has a body in braces.
    pub(super) has_body: bool,
    /// Whether it is `pub`; `pub(crate)` is not.
    pub(super) is_public: bool,
    /// Whether it is under `#[cfg(test)]`, or lies in an item that is.
    pub(super) is_test: bool,
}

impl Item<'_> {
    pub(super) fn covers(&self, line: usize) -> bool {
        (self.lines.0..=self.lines.1).contains(&line)
    }

    /// Struct, enum, union, trait or alias, but not an associated type.
    pub(super) fn is_type(&self) -> bool {
        let is_associated = self.keyword == "type" && ["impl", "trait"].contains(&self.parent);
        ["struct", "enum", "union", "trait", "type"].contains(&self.keyword) && !is_associated
    }
}

const MODIFIERS: &[&str] = &["pub", "async", "unsafe", "extern", "default", "const"];
const KEYWORDS: &[&str] = &["fn", "struct", "enum", "union", "trait", "type", "impl", "mod", "const", "static"];

/// All items of a file, in the order in which they end.
pub(super) fn items<'a>(tokens: &[RustToken<'a>]) -> Vec<Item<'a>> {
    let mut found = Vec::new();
    let mut open: Vec<(Item<'a>, usize)> = Vec::new();
    let mut depth = 0;
    let mut starts_statement = true;
    let mut at = 0;
    while at < tokens.len() {
        if starts_statement && let Some((mut item, length)) = header(&tokens[at..]) {
            if let Some((parent, _)) = open.last() {
                item.parent = parent.keyword;
                item.is_test |= parent.is_test;
            }
            open.push((item, depth));
            at += length;
        }
        let Some(token) = tokens.get(at) else { break };
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = usize::saturating_sub(depth, 1),
            _ => {}
        }
        let ends = open.last().is_some_and(|(item, outer)| depth == *outer && ends(item, token));
        if ends && let Some((mut item, _)) = open.pop() {
            item.lines.1 = token.line;
            item.has_body = token.text == "}";
            found.push(item);
        }
        starts_statement = [";", "{", "}"].contains(&token.text);
        at += 1;
    }
    found
}

/// A constant may have braces in its value, and ends with a semicolon only.
fn ends(item: &Item<'_>, token: &RustToken<'_>) -> bool {
    token.text == ";" || token.text == "}" && !["const", "static", "type"].contains(&item.keyword)
}

/// The item that starts here and the number of tokens up to its name; nothing when no item starts here.
fn header<'a>(tokens: &[RustToken<'a>]) -> Option<(Item<'a>, usize)> {
    let (mut at, is_test) = attributes(tokens)?;
    let first = tokens.get(at)?;
    let is_public = first.text == "pub" && tokens.get(at + 1).is_some_and(|next| next.text != "(");
    at += modifiers(&tokens[at..]);
    let keyword = tokens.get(at).filter(|token| KEYWORDS.contains(&token.text))?;
    let name = match keyword.text {
        "impl" => implemented(&tokens[at + 1..]),
        _ => tokens.get(at + 1).filter(|token| token.kind == TokenKind::Word)?.text.to_owned(),
    };
    let lines = (first.line, first.line);
    Some((Item { keyword: keyword.text, name, lines, parent: "", has_body: false, is_public, is_test }, at + 1))
}

/// The number of tokens in the attributes, and whether one of them is `#[cfg(test)]`.
fn attributes(tokens: &[RustToken<'_>]) -> Option<(usize, bool)> {
    let mut at = 0;
    let mut is_test = false;
    while let [hash, bracket, ..] = &tokens[at..]
        && hash.text == "#"
        && ["[", "!"].contains(&bracket.text)
    {
        let end = at + closing(&tokens[at..])?;
        let words: Vec<&str> = tokens[at..end].iter().map(|token| token.text).collect();
        is_test |= words.windows(3).any(|words| words == ["cfg", "(", "test"]);
        at = end + 1;
    }
    Some((at, is_test))
}

/// The place of the bracket that closes the first one.
fn closing(tokens: &[RustToken<'_>]) -> Option<usize> {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "[" | "(" | "{" => depth += 1,
            "]" | ")" | "}" if depth == 1 => return Some(at),
            "]" | ")" | "}" => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The number of tokens in `pub(crate) async unsafe`. `const` counts only before another modifier or `fn`.
fn modifiers(tokens: &[RustToken<'_>]) -> usize {
    let mut at = 0;
    while let [token, next, ..] = &tokens[at..]
        && MODIFIERS.contains(&token.text)
    {
        if token.text == "const" && next.text != "fn" && !MODIFIERS.contains(&next.text) {
            break;
        }
        at += 1;
        if next.text == "(" {
            at += closing(&tokens[at..]).map_or(0, |end| end + 1);
        } else if next.kind == TokenKind::Literal {
            at += 1;
        }
    }
    at
}

/// The words between `impl` and the body.
fn implemented(tokens: &[RustToken<'_>]) -> String {
    let header = tokens.iter().take_while(|token| token.text != "{" && token.text != "where");
    header.map(|token| if token.text == "for" { " for " } else { token.text }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust::tokens;

    fn found(source: &str) -> Vec<(String, (usize, usize), bool)> {
        let tokens = tokens(source);
        items(&tokens).into_iter().map(|i| (format!("{} {}", i.keyword, i.name), i.lines, i.is_test)).collect()
    }

    #[test]
    fn items_have_their_lines() {
        let source = "#[a(b)]\npub(crate) const fn f(x: [u8; 2]) -> u8 {\n  { 1 }\n}\nstruct S;\nconst C: S = S {};\n";
        let expected = [("fn f", (2, 4)), ("struct S", (5, 5)), ("const C", (6, 6))];
        assert_eq!(found(source), expected.map(|(name, lines)| (name.to_owned(), lines, false)));
    }

    #[test]
    fn methods_lie_in_their_impl() {
        let tokens = tokens("impl<T> A for B<T> { type X = u8; fn f() { let y = |z| { z }; } }");
        let items = items(&tokens);
        let names: Vec<_> = items.iter().map(|item| (item.name.as_str(), item.parent, item.is_type())).collect();
        assert_eq!(names, [("X", "impl", false), ("f", "impl", false), ("<T>A for B<T>", "", false)]);
    }

    #[test]
    fn a_test_module_makes_everything_in_it_test_code() {
        let source = "fn f() {}\n#[cfg(test)]\nmod tests {\n  fn g() {}\n}";
        let tests: Vec<bool> = found(source).into_iter().map(|(_, _, is_test)| is_test).collect();
        assert_eq!(tests, [false, true, true]);
    }

    #[test]
    fn only_items_that_are_public_outside_count_as_public() {
        let tokens = tokens("pub fn f() {} pub(crate) fn g() {} pub async fn h() {}");
        let public: Vec<bool> = items(&tokens).iter().map(|item| item.is_public).collect();
        assert_eq!(public, [true, false, true]);
    }
}
