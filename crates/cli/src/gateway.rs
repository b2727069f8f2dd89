//! The gateway: it accepts connections (`listen`), applies the rules of every request (`ingress`) and picks a route
//! (`routing`). `run` has the course of the process.

pub(crate) mod ingress;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod routing;
pub(crate) mod run;
