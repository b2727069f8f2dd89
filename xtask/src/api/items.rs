//! The public items of source files, as lines: `path: signature`.

use std::collections::BTreeSet;

use crate::tidy::{Spelled, Token, paths, tokens};

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Items<'a> {
    lines: BTreeSet<String>,
    /// Names of public types and traits.
    names: BTreeSet<&'a str>,
    /// Implementations of traits, with the words of their head: of interest if one of these is a public name.
    implementations: Vec<(Vec<&'a str>, String)>,
}

/// One item: its attributes, its visibility, its head up to the body, and the body.
struct Item<'a, 't> {
    attributes: Vec<&'t [Token<'a>]>,
    public: bool,
    /// Of a trait: an implementation may leave it out.
    provided: bool,
    head: &'t [Token<'a>],
    body: &'t [Token<'a>],
}

impl<'a> Items<'a> {
    /// Adds the items of a file.
    pub(super) fn read(&mut self, module: &str, source: &'a str) {
        self.add_all(module, &tokens(source), false);
    }

    pub(super) fn lines(mut self) -> BTreeSet<String> {
        for (words, line) in self.implementations {
            if words.iter().any(|word| self.names.contains(word)) {
                self.lines.insert(line);
            }
        }
        self.lines
    }

    /// Adds the items of a module or the methods of an implementation, or those of a trait, which are all public.
    fn add_all(&mut self, path: &str, tokens: &[Token<'a>], of_trait: bool) {
        let mut rest = tokens;
        while !rest.is_empty() {
            let (mut item, length) = item(rest);
            item.public |= of_trait;
            item.provided &= of_trait;
            self.add(path, &item);
            rest = &rest[length..];
        }
    }

    fn add(&mut self, path: &str, item: &Item<'a, '_>) {
        let Some(kind) = item.kind() else { return };
        let name = item.head.get(1).map_or("", |token| token.text);
        let inside = format!("{path}::{name}");
        if item.public && ["struct", "enum", "trait"].contains(&kind) {
            self.names.insert(name);
        }
        match kind {
            _ if item.is_for_tests() => {}
            "impl" => self.add_implementation(path, item),
            "macro_rules" => {}
            // What a macro makes is not seen, but that it is asked to.
            _ if name == "!" && item.body.is_empty() => self.add_line(path, item, &text(item.head)),
            _ if !item.public => {}
            "mod" => {
                self.add_line(path, item, &text(item.head));
                self.add_all(&inside, item.body, false);
            }
            "use" => self.add_exports(path, item),
            "struct" => self.add_struct(path, &inside, item),
            "enum" => {
                self.add_line(path, item, &text(item.head));
                for variant in parts(item.body) {
                    self.lines.insert(format!("{inside}: {}", text(without_attributes(variant).1)));
                }
            }
            "trait" => {
                self.add_line(path, item, &text(item.head));
                self.add_all(&inside, item.body, true);
            }
            "fn" | "type" => self.add_line(path, item, &text(item.head)),
            // A constant, without its value.
            _ => self.add_line(path, item, &text(item.head.split(|token| token.text == "=").next().unwrap_or(&[]))),
        }
    }

    fn add_line(&mut self, path: &str, item: &Item<'a, '_>, signature: &str) {
        self.lines.insert(item.line(path, signature));
    }

    fn add_exports(&mut self, path: &str, item: &Item<'a, '_>) {
        if item.head.iter().any(|token| token.text == "as") {
            return self.add_line(path, item, &text(item.head));
        }
        for export in paths(item.head).iter().map(Spelled::text) {
            self.add_line(path, item, &format!("use {export}"));
        }
    }

    fn add_struct(&mut self, path: &str, inside: &str, item: &Item<'a, '_>) {
        let tuple = item.head.iter().position(|token| token.text == "(").filter(|_| item.body.is_empty());
        let (head, fields) = match tuple {
            Some(open) => (&item.head[..open], parts(insides(&item.head[open..]))),
            None => (item.head, parts(item.body)),
        };
        self.add_line(path, item, &text(head));
        for (number, field) in fields.into_iter().enumerate() {
            if let (true, field) = visibility(without_attributes(field).1) {
                let number = if tuple.is_some() { format!("{number}: ") } else { String::new() };
                self.lines.insert(format!("{inside}: {number}{}", text(field)));
            }
        }
    }

    fn add_implementation(&mut self, path: &str, item: &Item<'a, '_>) {
        // `for<'a>` belongs to a bound.
        let of_trait = item.head.windows(2).any(|pair| pair[0].text == "for" && pair[1].text != "<");
        let implemented = item.head.get(1).filter(|token| token.text == "<").map_or(1, |_| 1 + angles(&item.head[1..]));
        let Some(name) = item.head.get(implemented).map(|token| token.text) else { return };
        if of_trait {
            let words = item.head.iter().filter(|token| token.is_a_word()).map(|token| token.text).collect();
            self.implementations.push((words, item.line(path, &text(item.head))));
        } else {
            self.add_all(&format!("{path}::{name}"), item.body, false);
        }
    }
}

/// Attributes that users feel.
const TOLD: &[&str] = &["cfg", "derive", "non_exhaustive"];

impl<'a> Item<'a, '_> {
    /// The keyword that says what it is; of a constant its name, of a macro call the macro's, none of a lost `;`.
    fn kind(&self) -> Option<&'a str> {
        let modifiers = ["async", "const", "unsafe"];
        self.head.iter().map(|token| token.text).find(|word| !modifiers.contains(word))
    }

    fn line(&self, path: &str, signature: &str) -> String {
        let told = self.attributes.iter().filter(|attribute| TOLD.contains(&attribute[0].text));
        let attributes: String = told.map(|attribute| format!("#[{}] ", text(attribute))).collect();
        let end = if self.provided { " { .. }" } else { "" };
        format!("{path}: {attributes}{}{end}", signature.trim_end_matches(','))
    }

    fn is_for_tests(&self) -> bool {
        self.attributes.iter().any(|attribute| text(attribute) == "cfg(test)")
    }
}

/// The first item, and how many tokens it takes.
fn item<'a, 't>(tokens: &'t [Token<'a>]) -> (Item<'a, 't>, usize) {
    let (attributes, rest) = without_attributes(tokens);
    let (public, rest) = visibility(rest);
    let imports = rest.first().is_some_and(|token| token.text == "use");
    let mut at = 0;
    while at < rest.len() && rest[at].text != ";" && (imports || rest[at].text != "{") {
        at += group(&rest[at..]);
    }
    let (head, end) = rest.split_at(at);
    let length = if end.is_empty() { 0 } else { group(end) };
    let (provided, body) = (end.first().is_some_and(|token| token.text == "{"), insides(end));
    (Item { attributes, public, provided, head, body }, tokens.len() - rest.len() + at + length)
}

/// The insides of the attributes that come first, and what follows them.
fn without_attributes<'a, 't>(tokens: &'t [Token<'a>]) -> (Vec<&'t [Token<'a>]>, &'t [Token<'a>]) {
    let (mut attributes, mut rest) = (Vec::new(), tokens);
    while let [hash, after @ ..] = rest
        && hash.text == "#"
    {
        let bracket = usize::from(after.first().is_some_and(|token| token.text == "!"));
        let length = after.get(bracket..).filter(|rest| !rest.is_empty()).map_or(0, group);
        let end = (bracket + length).min(after.len());
        attributes.extend(after.get(bracket + 1..end.saturating_sub(1)).filter(|inside| !inside.is_empty()));
        rest = &after[end..];
    }
    (attributes, rest)
}

/// Whether it is public without restriction, and what follows.
fn visibility<'a, 't>(tokens: &'t [Token<'a>]) -> (bool, &'t [Token<'a>]) {
    match tokens {
        [word, rest @ ..] if word.text == "pub" => match rest {
            // A field may be a tuple.
            [open, whom, ..] if open.text == "(" && ["crate", "super", "self", "in"].contains(&whom.text) => {
                (false, &rest[group(rest)..])
            }
            _ => (true, rest),
        },
        _ => (false, tokens),
    }
}

/// How many tokens the first bracket and all up to the one that closes it take; 1 if there is no bracket.
fn group(tokens: &[Token<'_>]) -> usize {
    enclosed(tokens, &["(", "[", "{"], &[")", "]", "}"])
}

/// The same of angle brackets.
fn angles(tokens: &[Token<'_>]) -> usize {
    enclosed(tokens, &["<"], &[">"])
}

/// What is in the first bracket.
fn insides<'a, 't>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    tokens.get(1..group(tokens).saturating_sub(1)).unwrap_or_default()
}

fn enclosed(tokens: &[Token<'_>], opening: &[&str], closing: &[&str]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        let is_arrow = token.text == ">" && at > 0 && tokens[at - 1].text == "-";
        depth += usize::from(opening.contains(&token.text));
        depth -= usize::from(closing.contains(&token.text) && !is_arrow).min(depth);
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Fields or variants: what the commas part that stand in no bracket.
fn parts<'a, 't>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let (mut parts, mut from, mut at) = (Vec::new(), 0, 0);
    while at < tokens.len() {
        let rest = &tokens[at..];
        let length = if rest[0].text == "<" { angles(rest) } else { group(rest) };
        if rest[0].text == "," {
            parts.push(&tokens[from..at]);
            from = at + 1;
        }
        at += length;
    }
    parts.push(&tokens[from..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// The tokens in one line, however many the source takes.
fn text(tokens: &[Token<'_>]) -> String {
    let mut text = String::new();
    let mut end = None;
    for token in tokens {
        let (begins, ends) = (token.text.as_ptr(), token.text.as_bytes().as_ptr_range().end);
        let closes = [")", "]", "}", ">"].contains(&token.text);
        if closes && text.ends_with(',') {
            text.pop();
        }
        let opened = text.ends_with(['(', '[', '<']) || text.is_empty();
        if end.is_some_and(|end| end != begins) && !opened && (!closes || token.text == "}") {
            text.push(' ');
        }
        text.push_str(token.text);
        end = Some(ends);
    }
    text
}
