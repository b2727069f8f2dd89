//! What is peculiar to one store and no case of the suite.

mod sqlite;
