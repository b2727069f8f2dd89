//! `assets/hapax.toml`: every setting with its help and its default, made from the definitions of the settings.

use crate::config::reader::flags::help;
use crate::config::reader::setting::SettingSpec;
use crate::config::tables::{TABLES, of_table};

const ASSET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/hapax.toml");

const BEGINNING: &str = "\
# The settings of hapax gateway, hapax worker and hapax relay. Each command reads the tables that concern it.
#
# Every setting has its default here, or a placeholder in capitals. Remove the # in front of a line to change it. Every
# value is also a flag and a variable: `lease` in [policy] is --lease and HAPAX_LEASE, `url` in [store] is --store and
# HAPAX_STORE. A flag wins over a variable, and a variable over this file.
#
# `hapax gateway --config hapax.toml --check` prints the result. A test keeps this file complete.
";

const ROUTES: &str = r#"
# [[route]] overrides [policy] for some requests of the gateway. The first route that matches applies. {name} matches
# one segment of a path, {*name} at the end matches the rest. `protect` is required, optional or off.
#
# [[route]]
# method = ["POST", "PUT"]
# path = "/orders/{id}/{*rest}"
# protect = "required"
# lease = "60s"
# not-applied = [503]
# final = [500]
# tenant = ["authorization", "optional-header:X-Account"]

# [relay.endpoints.NAME] is an endpoint of webhooks.
#
# [relay.endpoints.orders]
# url = "https://shop.example/hooks/orders"
# secret-file = "/etc/hapax/orders.secret"
"#;

fn annotated() -> String {
    let tables = TABLES.map(|(table, _)| {
        let settings: String = of_table(table).map(lines).collect();
        format!("\n[{table}]\n{settings}")
    });
    format!("{BEGINNING}{}{ROUTES}", tables.concat())
}

fn lines(setting: &SettingSpec) -> String {
    let texts = setting.default_texts();
    let value = match (&texts, setting.is_list) {
        (Some(texts), true) => list(texts),
        (Some(texts), false) => scalar(&texts[0]),
        (None, true) => list(&[setting.value.to_owned()]),
        (None, false) => format!("{:?}", setting.value),
    };
    // Without the note about the key in this file.
    let help = help(setting);
    let help = help.split(" [file: ").next().unwrap_or_default();
    let help = [help, setting.details].map(comment).concat();
    format!("\n{help}#{} = {value}\n", setting.key)
}

fn list(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| scalar(text)).collect();
    format!("[{}]", texts.join(", "))
}

fn scalar(text: &str) -> String {
    if text.parse::<u64>().is_ok() || ["true", "false"].contains(&text) { text.into() } else { format!("{text:?}") }
}

/// Wraps a text into lines of a comment.
fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + 1 + word.len() > 118) {
            lines.push("#".into());
        }
        if let Some(line) = lines.last_mut() {
            *line += &format!(" {word}");
        }
    }
    if text.is_empty() { String::new() } else { lines.join("\n") + "\n" }
}

/// `HAPAX_UPDATE=1` writes the file.
#[test]
fn the_annotated_file_has_every_setting() {
    let annotated = annotated();
    if std::env::var_os("HAPAX_UPDATE").is_some() {
        std::fs::write(ASSET, &annotated).unwrap();
    }
    let kept = std::fs::read_to_string(ASSET).unwrap();
    assert!(
        kept == annotated,
        "assets/hapax.toml is old: HAPAX_UPDATE=1 cargo test -p hapax-cli --all-features annotated"
    );
}
