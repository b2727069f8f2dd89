//! Five chapters, each compiled as it stands, and run, but for what needs a server.
//!
//! | chapter | for whom | needs the features |
//! |---|---|---|
//! | `your_first_route` | whoever protects a route of axum | `axum`, `sqlite` |
//! | `what_a_client_sees` | whoever calls a protected route | `axum` |
//! | `outcomes` | whoever writes a handler | `tokio`; its part on HTTP `axum` |
//! | `records_in_redis` | whoever keeps records in Redis or Valkey: settings, memory, what can be lost | `redis` |
//! | `from_a_pattern` | whoever has a lock in Redis already | `tokio` |
//!
//! Complete programs are in the folder `examples/` of the repository.

#[cfg(all(feature = "axum", feature = "sqlite"))]
pub mod your_first_route {
    #![doc = include_str!("guide/your_first_route.md")]
}

#[cfg(feature = "axum")]
pub mod what_a_client_sees {
    #![doc = include_str!("guide/what_a_client_sees.md")]
}

#[cfg(feature = "tokio")]
pub mod outcomes {
    #![doc = include_str!("guide/outcomes.md")]
    #![cfg_attr(feature = "axum", doc = include_str!("guide/outcomes_over_http.md"))]
}

#[cfg(all(feature = "redis", feature = "tokio"))]
pub mod records_in_redis {
    #![doc = include_str!("guide/records_in_redis.md")]
}

#[cfg(feature = "tokio")]
pub mod from_a_pattern {
    #![doc = include_str!("guide/from_a_pattern.md")]
}
