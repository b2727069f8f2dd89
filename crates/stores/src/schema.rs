//! The schema that has the tables.

use std::fmt;

/// The name of a schema. Only names that need no care in SQL are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schema(String);

impl Schema {
    /// `None` if the name is empty, longer than PostgreSQL's names, or has other characters than letters, digits,
    /// underscores and hyphens.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        (is_plain && (1..=63).contains(&name.len())).then(|| Self(name.to_owned()))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The statement with every table of Hapax in this schema. A connection pooler would lose a search path that was
    /// set on the connection.
    pub(crate) fn qualify(&self, sql: &str) -> String {
        sql.replace("hapax_", &format!("{self}.hapax_"))
    }

    #[cfg(feature = "postgres")]
    /// The statement with the name of this schema for the identifier "SCHEMA".
    pub(crate) fn replace_in(&self, sql: &str) -> String {
        sql.replace("\"SCHEMA\"", &self.to_string())
    }
}

impl Default for Schema {
    fn default() -> Self {
        Self("public".into())
    }
}

/// Prints the name as an identifier.
impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_end_a_quoted_identifier_is_refused() {
        for name in ["", "a\"b", "a'b", "a b", "a;b", "a.b", "\u{e4}", &"x".repeat(64)] {
            assert_eq!(Schema::new(name), None, "{name}");
        }
        let schema = Schema::new("Hapax-2_b").unwrap();
        assert_eq!(schema.qualify("from hapax_record r"), "from \"Hapax-2_b\".hapax_record r");
    }
}
