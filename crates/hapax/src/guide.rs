//! Three chapters, each compiled and run as it stands.
//!
//! | chapter | for whom | needs the features |
//! |---|---|---|
//! | `your_first_route` | whoever protects a route of axum | `axum`, `sqlite` |
//! | `what_a_client_sees` | whoever calls a protected route | `axum` |
//! | `outcomes` | whoever writes a handler | `tokio`; its part on HTTP `axum` |
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
