//! The guide as text, for the terminal and the admin listener.

use hapax::guide::chapters::CHAPTERS;

/// The chapter with this name, without the lines that rustdoc hides. A name may have dashes.
pub(crate) fn chapter(name: &str) -> Option<String> {
    let name = name.replace('-', "_");
    CHAPTERS.iter().find(|chapter| chapter.name == name).map(|chapter| without_hidden(chapter.text))
}

/// Leaves out the lines of examples in Rust that rustdoc hides. Other examples have comments that look like them.
fn without_hidden(text: &str) -> String {
    let (mut kept, mut is_code, mut is_rust) = (String::with_capacity(text.len()), false, false);
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            is_code = !is_code;
            is_rust = is_code && is_tested(language);
        } else if is_rust && (line == "#" || line.trim_start().starts_with("# ")) {
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

/// Whether rustdoc compiles a block with this language. It takes a block without one for Rust.
fn is_tested(language: &str) -> bool {
    language.split(',').all(|word| matches!(word, "" | "rust" | "no_run" | "ignore" | "should_panic" | "compile_fail"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_rustdoc_hides_are_left_out_of_rust_only() {
        let (title, shell) = ("# A title\n", "```sh\n# a comment\nls\n```\n");
        let text = format!("{title}```rust,no_run\n# use a::b;\n#\nlet x = 1;\n# Ok(())\n#[test]\n```\n{shell}");
        let shown = format!("{title}```rust,no_run\nlet x = 1;\n#[test]\n```\n{shell}");
        assert_eq!(without_hidden(&text), shown);
        assert!(chapter("when-a-message-is-dead").unwrap().contains("hapax dead redrive"));
        assert_eq!(chapter("../security"), None);
    }
}
