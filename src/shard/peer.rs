//! The address of a peer in 24 bytes, where a `SocketAddr` has 32: a connection holds it to its end.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A `SocketAddr` without an IPv6 flow label, which accepted sockets do not have.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// An IPv4 address is in the last four.
    ip: [u8; 16],
    scope: u32,
    port: u16,
    is_v4: bool,
}

const _: () = assert!(size_of::<Peer>() == 24);

impl Peer {
    /// The whole address.
    pub fn address(self) -> SocketAddr {
        let ip = Ipv6Addr::from(self.ip);
        match ip.to_ipv4_mapped().filter(|_| self.is_v4) {
            Some(ip) => SocketAddrV4::new(ip, self.port).into(),
            None => SocketAddrV6::new(ip, self.port, 0, self.scope).into(),
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        let (ip, scope) = match address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        Peer {
            ip: ip.octets(),
            scope,
            port: address.port(),
            is_v4: matches!(address.ip(), IpAddr::V4(_)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for text in [
            "127.0.0.1:80",
            "0.0.0.0:0",
            "[::1]:65535",
            "[::]:1",
            "[fe80::1%7]:9",
            "[::ffff:10.0.0.1]:443",
        ] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(Peer::from(address).address(), address);
        }
    }
}
