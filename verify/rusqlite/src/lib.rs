//! Its tests run the suites of SQLite, under the oldest rusqlite that hapax-stores accepts.
