//! Which addresses are used. A name is resolved once for each connection, and the connection goes to an address that
//! was checked: a name that changes its address in between gains nothing.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use hapax_net::http::ResolveHost;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The addresses that an endpoint may use: public ones, and those of these networks.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedAddresses(Vec<IpNet>);

impl AllowedAddresses {
    /// # Errors
    /// What is wrong with which network.
    pub(super) fn new(networks: &[String]) -> Result<Self, String> {
        let parse = |network: &String| {
            let one = network.parse::<IpAddr>().map(IpNet::from);
            let network = one.or_else(|_| network.parse::<IpNet>()).map_err(|_| format!("{network} is no network"))?;
            Ok(network.trunc())
        };
        networks.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether any address that is not public is allowed.
    pub(super) fn has_networks(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn allow(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address) || self.0.iter().any(|network| network.contains(&address))
    }
}

/// Networks of IPv4 that are not reached over the internet, and addresses that lead into the machine or the cloud.
static NOT_PUBLIC_V4: LazyLock<Vec<Ipv4Net>> = LazyLock::new(|| {
    let networks = [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        // The services of Azure for its virtual machines.
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    ];
    networks.map(|network| network.parse().expect("a network")).to_vec()
});

/// Where addresses of IPv6 are public at all.
static GLOBAL_V6: LazyLock<Ipv6Net> = LazyLock::new(|| "2000::/3".parse().expect("a network"));

/// Networks in it that are not: protocol assignments with Teredo, documentation, and 6to4, which leads to IPv4.
static NOT_PUBLIC_V6: LazyLock<Vec<Ipv6Net>> = LazyLock::new(|| {
    let networks = ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"];
    networks.map(|network| network.parse().expect("a network")).to_vec()
});

/// A translator of a network without IPv4 sends these on to the IPv4 address in the last four bytes.
static TRANSLATED: LazyLock<Ipv6Net> = LazyLock::new(|| "64:ff9b::/96".parse().expect("a network"));

fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|network| network.contains(&address)),
        IpAddr::V6(address) if TRANSLATED.contains(&address) => is_public(last_four_bytes(address)),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !NOT_PUBLIC_V6.iter().any(|network| network.contains(&address))
        }
    }
}

fn last_four_bytes(address: Ipv6Addr) -> IpAddr {
    let [.., a, b, c, d] = address.octets();
    IpAddr::from([a, b, c, d])
}

/// Why a host cannot be used: none of its addresses is allowed.
#[derive(Debug)]
pub(super) struct NoAllowedAddress {
    host: String,
    found: Vec<IpAddr>,
}

impl fmt::Display for NoAllowedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, found } = self;
        if found.is_empty() {
            return write!(f, "{host} has no address");
        }
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let found = found.join(", ");
        write!(f, "{host} leads to {found}, which is not public: allow its network, or correct the name")
    }
}

impl std::error::Error for NoAllowedAddress {}

impl NoAllowedAddress {
    /// Whether the resolution of a name failed because of it.
    pub(super) fn is_cause_of(error: &io::Error) -> bool {
        matches!(error.get_ref(), Some(cause) if cause.is::<Self>())
    }
}

/// Resolves names for connections, and gives only allowed addresses.
#[derive(Clone, Debug)]
pub(super) struct CheckedResolver {
    pub(super) resolver: Arc<dyn ResolveHost>,
    pub(super) allowed: Arc<AllowedAddresses>,
}

#[async_trait]
impl ResolveHost for CheckedResolver {
    /// The allowed addresses of a host. The order is that of the resolver.
    ///
    /// # Errors
    /// That of the resolver, or [`NoAllowedAddress`].
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let found = self.resolver.resolve(host).await?;
        let allowed: Vec<IpAddr> = found.iter().copied().filter(|address| self.allowed.allow(*address)).collect();
        if allowed.is_empty() {
            return Err(io::Error::other(NoAllowedAddress { host: host.to_owned(), found }));
        }
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_used() {
        for address in [
            "1.1.1.1",
            "93.184.216.34",
            "100.63.255.255",
            "172.32.0.1",
            "2606:4700::1111",
            "64:ff9b::1.1.1.1",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn an_allowed_network_allows_itself_only() {
        let allowed = AllowedAddresses::new(&["10.1.0.0/16".into(), "::1".into(), "127.0.0.1/8".into()]).unwrap();
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "::1", "127.9.9.9", "1.1.1.1"] {
            assert!(allowed.allow(address.parse().unwrap()), "{address}");
        }
        for address in ["10.2.0.1", "::2", "192.168.1.1", "::ffff:192.168.1.1"] {
            assert!(!allowed.allow(address.parse().unwrap()), "{address}");
        }
        assert!(AllowedAddresses::new(&["ten".into()]).unwrap_err().contains("ten"));
    }
}
