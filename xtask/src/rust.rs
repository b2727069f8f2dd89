//! A small reader of Rust source: tokens without comments, and the paths among them.
//!
//! It never fails. Text that is not Rust gives meaningless tokens; the compiler reports the error.

/// A word, a mark or a string literal, and its line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RustToken<'a> {
    pub(crate) line: usize,
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TokenKind {
    /// A name, a keyword or a number.
    Word,
    /// One character of punctuation, or `::`.
    Mark,
    /// A string, byte string or character, with its quotes.
    Literal,
}

impl RustToken<'_> {
    pub(crate) fn is_word(&self) -> bool {
        self.kind == TokenKind::Word
    }
}

/// The tokens of a source file, without comments (which include documentation).
pub(crate) fn tokens(source: &str) -> Vec<RustToken<'_>> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = source;
    while !rest.is_empty() {
        let (kind, length) = lexeme(rest);
        let (text, after) = rest.split_at(length);
        tokens.extend(kind.map(|kind| RustToken { line, kind, text }));
        line += text.matches('\n').count();
        rest = after;
    }
    tokens
}

/// A path as the compiler would see it: `use a::{b, c::d}` spells `a::b` and `a::c::d`.
#[derive(Debug, PartialEq)]
pub(crate) struct RustPath<'a> {
    pub(crate) line: usize,
    pub(crate) segments: Vec<&'a str>,
}

impl RustPath<'_> {
    pub(crate) fn text(&self) -> String {
        self.segments.join("::")
    }
}

/// The paths of `use` declarations (also those of one segment), and all other paths of at least two segments.
pub(crate) fn paths<'a>(tokens: &[RustToken<'a>]) -> Vec<RustPath<'a>> {
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        at += if declares_use(rest) {
            let end = rest.iter().position(|token| token.text == ";");
            let length = end.unwrap_or(rest.len());
            imported(&rest[1..length], &mut paths);
            length
        } else if starts_path(tokens, at) {
            let length = path_length(rest);
            paths.push(RustPath {
                line: rest[0].line,
                segments: rest[..length].iter().step_by(2).map(|token| token.text).collect(),
            });
            length
        } else {
            1
        };
    }
    paths
}

/// `use<'a>` is a bound, not a declaration.
fn declares_use(tokens: &[RustToken<'_>]) -> bool {
    let is_bound = matches!(tokens, [_, next, ..] if next.text == "<");
    tokens[0].text == "use" && !is_bound
}

/// The paths of the `use` declarations alone.
pub(crate) fn imports<'a>(tokens: &[RustToken<'a>]) -> Vec<RustPath<'a>> {
    let mut paths = Vec::new();
    for at in (0..tokens.len()).filter(|&at| declares_use(&tokens[at..])) {
        let length = tokens[at..].iter().position(|token| token.text == ";").unwrap_or(tokens.len() - at);
        imported(&tokens[at + 1..at + length], &mut paths);
    }
    paths
}

/// Unfolds the tree of one `use` declaration.
fn imported<'a>(tree: &[RustToken<'a>], paths: &mut Vec<RustPath<'a>>) {
    let mut segments: Vec<&'a str> = Vec::new();
    // How many segments each open brace has before it.
    let mut prefixes = vec![0];
    let mut renamed = false;
    for token in tree {
        let prefix = prefixes.last().copied().unwrap_or(0);
        match token.text {
            "{" => prefixes.push(segments.len()),
            "," | "}" => {
                if segments.len() > prefix {
                    paths.push(RustPath { line: token.line, segments: segments.clone() });
                }
                if token.text == "}" {
                    prefixes.pop();
                }
                segments.truncate(prefixes.last().copied().unwrap_or(0));
                renamed = false;
            }
            "as" => renamed = true,
            "*" => segments.push("*"),
            word if token.kind == TokenKind::Word && !renamed => segments.push(word),
            _ => {}
        }
    }
    if let (false, Some(last)) = (segments.is_empty(), tree.last()) {
        paths.push(RustPath { line: last.line, segments });
    }
}

/// A word with `::` behind it, and none that belongs to the same path before it.
fn starts_path(tokens: &[RustToken<'_>], at: usize) -> bool {
    let is_followed = matches!(&tokens[at..], [word, next, ..] if is_joined(word, next));
    let continues = matches!(&tokens[at.saturating_sub(2)..at], [word, next] if is_joined(word, next));
    tokens[at].kind == TokenKind::Word && is_followed && !continues
}

/// Whether the second is `::` and nothing is between them: `impl ::a::b` starts at `a`.
fn is_joined(before: &RustToken<'_>, separator: &RustToken<'_>) -> bool {
    separator.text == "::" && before.text.as_bytes().as_ptr_range().end == separator.text.as_ptr()
}

/// How many tokens of `a::b::c` stand at the beginning.
fn path_length(tokens: &[RustToken<'_>]) -> usize {
    let mut length = 1;
    while let [separator, word, ..] = &tokens[length..]
        && separator.text == "::"
        && word.kind == TokenKind::Word
    {
        length += 2;
    }
    length
}

/// The kind (none: blank or comment) and the length in bytes of what the source begins with.
fn lexeme(source: &str) -> (Option<TokenKind>, usize) {
    let first = source.chars().next().unwrap_or(' ');
    if first.is_whitespace() {
        (None, first.len_utf8())
    } else if source.starts_with("//") {
        (None, source.find('\n').unwrap_or(source.len()))
    } else if source.starts_with("/*") {
        (None, block_comment(source))
    } else if let Some(length) = literal(source) {
        (Some(TokenKind::Literal), length)
    } else if is_word_character(first) {
        (Some(TokenKind::Word), source.find(|c| !is_word_character(c)).unwrap_or(source.len()))
    } else if source.starts_with("::") {
        (Some(TokenKind::Mark), 2)
    } else {
        (Some(TokenKind::Mark), first.len_utf8())
    }
}

fn is_word_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Block comments nest.
fn block_comment(source: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < source.len() {
        let rest = &source.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    source.len()
}

/// The length of a string, byte string, C string or character, raw or not.
fn literal(source: &str) -> Option<usize> {
    let body = source.trim_start_matches(['b', 'c']);
    let prefix = source.len() - body.len();
    let length = match body.chars().next()? {
        _ if prefix > 1 => None,
        'r' => raw_string(body),
        '"' => Some(quoted(body, '"')),
        '\'' => character(body),
        _ => None,
    }?;
    Some(prefix + length)
}

/// `r"..."`, `r#"..."#` and so on; not `r#type`.
fn raw_string(source: &str) -> Option<usize> {
    let after = source.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let open = 1 + hashes + 1;
    after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", &after[..hashes]);
    Some(source[open..].find(&close).map_or(source.len(), |at| open + at + close.len()))
}

/// Up to the closing quote that no backslash precedes.
fn quoted(source: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in source.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    source.len()
}

/// `'x'` or an escape; `'a` alone is a lifetime.
fn character(source: &str) -> Option<usize> {
    let mut inside = source.chars().skip(1);
    let is_character = inside.next()? == '\\' || inside.next()? == '\'';
    is_character.then(|| quoted(source, '\''))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    fn spelled(source: &str) -> Vec<String> {
        paths(&tokens(source)).iter().map(RustPath::text).collect()
    }

    #[test]
    fn comments_are_dropped_and_lines_counted() {
        let source = "/// use http::A;\nb /* c /* d\n */ e */ f // g\nh";
        let found: Vec<_> = tokens(source).iter().map(|token| (token.line, token.text)).collect();
        assert_eq!(found, [(2, "b"), (3, "f"), (4, "h")]);
    }

    #[test]
    fn strings_are_one_token() {
        assert_eq!(texts(r##"a "b // \" c" d"##), ["a", r#""b // \" c""#, "d"]);
        assert_eq!(texts(r###"br#"a " b"# c"###), [r##"br#"a " b"#"##, "c"]);
        assert_eq!(texts("b\"x\" c\"y\" r\"\\\" z"), ["b\"x\"", "c\"y\"", "r\"\\\"", "z"]);
    }

    #[test]
    fn characters_are_not_lifetimes() {
        assert_eq!(texts("&'a '\"' '\\'' b'x' c"), ["&", "'", "a", "'\"'", "'\\''", "b'x'", "c"]);
    }

    #[test]
    fn words_that_look_like_prefixes_are_words() {
        assert_eq!(texts("r#type bar b c rc"), ["r", "#", "type", "bar", "b", "c", "rc"]);
    }

    #[test]
    fn unfinished_source_ends() {
        for source in ["\"a", "r#\"a", "/* a", "'\\", "use a::{b"] {
            paths(&tokens(source));
        }
    }

    #[test]
    fn use_trees_are_unfolded() {
        assert_eq!(
            spelled("use a::{self, b::{c, d as e}, f::*, g};"),
            ["a::self", "a::b::c", "a::b::d", "a::f::*", "a::g"]
        );
        assert_eq!(spelled("pub(crate) use a;\nuse ::b::c as d;"), ["a", "b::c"]);
        assert_eq!(spelled("use {a::b, c};"), ["a::b", "c"]);
    }

    #[test]
    fn paths_in_expressions_are_found() {
        assert_eq!(
            spelled("#[a::b] fn c() -> ::d::E<f::G> { h.i(J::<k::L>::m) }"),
            ["a::b", "d::E", "f::G", "J", "k::L"]
        );
        assert_eq!(spelled("fn a() -> impl ::b::B + use<'c> { D::<E>::f::g() }"), ["b::B", "D"]);
    }
}
