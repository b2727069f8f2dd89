//! Which addresses count as one client.

use std::net::IpAddr;

/// An IPv4 address, or the /64 network of an IPv6 address, because one host usually gets a whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

impl From<IpAddr> for ClientAddress {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => Self(IpAddr::V6((u128::from(ip) & !u128::from(u64::MAX)).into())),
            ip => Self(ip),
        }
    }
}
