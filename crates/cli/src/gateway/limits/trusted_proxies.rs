//! The proxies whose word about their clients counts.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};
use ipnet::{IpNet, Ipv4Net};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks of the trusted proxies.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    pub(crate) fn new(networks: Vec<IpNet>) -> Self {
        Self(networks.into_iter().map(canonical).collect())
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }

    /// Returns the address of the client: that of the connection, or behind trusted proxies the rightmost address of
    /// `X-Forwarded-For` that is not one of them. Addresses further to the left may be invented.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if self.0.is_empty() || !self.contains(peer) {
            return peer;
        }
        let mut client = peer;
        let lines: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
        for line in lines.into_iter().rev() {
            for entry in line.to_str().unwrap_or_default().rsplit(',') {
                // The last trusted proxy wrote something that is no address: nothing before it can be believed.
                let Some(ip) = address(entry.trim()) else { return client };
                client = ip;
                if !self.contains(ip) {
                    return client;
                }
            }
        }
        client
    }
}

/// Addresses are compared as IPv4 where they can be, and so are networks: `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
fn canonical(network: IpNet) -> IpNet {
    let IpAddr::V4(address) = network.addr().to_canonical() else { return network };
    let mapped = network.prefix_len().checked_sub(96).filter(|_| matches!(network, IpNet::V6(_)));
    mapped.and_then(|length| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

/// Some proxies add the port.
fn address(entry: &str) -> Option<IpAddr> {
    let with_port = || entry.parse::<SocketAddr>().ok().map(|address| address.ip());
    let bare = entry.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().ok().or_else(with_port).map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_mapped_addresses_holds_the_ipv4_addresses() {
        for (network, is_trusted) in [
            ("::ffff:10.0.0.0/104", true),
            ("::ffff:10.0.0.1/128", true),
            ("::ffff:11.0.0.0/104", false),
            ("::1/128", false),
        ] {
            let network: IpNet = network.parse().unwrap();
            let trusted = TrustedProxies::new(vec![network]);
            assert_eq!(trusted.contains("10.0.0.1".parse().unwrap()), is_trusted, "{network}");
        }
    }

    #[test]
    fn the_rightmost_address_that_is_not_a_trusted_proxy_is_the_client() {
        let trusted = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        for (peer, lines, client) in [
            ("10.0.0.1", &["203.0.113.7"][..], "203.0.113.7"),
            ("10.0.0.1", &["198.51.100.1, 203.0.113.7, 10.0.0.2"], "203.0.113.7"),
            ("10.0.0.1", &["198.51.100.1", "203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &["203.0.113.7:1234"], "203.0.113.7"),
            ("fd00::1", &["[2001:db8::1]:80"], "2001:db8::1"),
            ("fd00::1", &["2001:db8::1"], "2001:db8::1"),
            ("::ffff:10.0.0.1", &["203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &["203.0.113.7, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["unknown"], "10.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("192.0.2.1", &["203.0.113.7"], "192.0.2.1"),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FORWARDED_FOR, line.parse().unwrap());
            }
            let found = trusted.client(peer.parse().unwrap(), &headers);
            assert_eq!(found, client.parse::<IpAddr>().unwrap(), "{peer} {lines:?}");
        }
    }
}
