//! A range of addresses, as operators write it: `10.0.0.0/8`, `2001:db8::/32`, or one address.

use std::net::IpAddr;

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Network {
    /// The address in 128 bits, an IPv4 one as IPv6 maps it, with all bits behind the prefix zero.
    start: u128,
    prefix_bits: u32,
}

/// Bits that precede an IPv4 address where IPv6 maps it.
const MAPPED_BITS: u32 = 96;

impl Network {
    /// Reads a network. None if it is not one, or has bits set behind its prefix: a slip of the pen.
    pub fn parse(text: &str) -> Option<Network> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let before = if address.is_ipv4() { MAPPED_BITS } else { 0 };
        let prefix_bits = match prefix {
            None => u128::BITS,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse::<u32>().ok()?.checked_add(before)?
            }
            Some(_) => return None,
        };
        let start = bits(address);
        let fits = prefix_bits <= u128::BITS && start & !mask(prefix_bits) == 0;
        fits.then_some(Network { start, prefix_bits })
    }

    /// Whether an address lies in it. IPv4 is the same whether IPv6 maps it or not.
    pub fn contains(&self, address: IpAddr) -> bool {
        bits(address) & mask(self.prefix_bits) == self.start
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(prefix_bits: u32) -> u128 {
    u128::MAX.checked_shl(u128::BITS - prefix_bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_network() {
        let holds = |network, address: &str| {
            let network = Network::parse(network).expect("a network");
            network.contains(address.parse().expect("an address"))
        };
        assert!(holds("10.0.0.0/8", "10.255.255.255"));
        assert!(!holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!holds("10.0.0.0/8", "a00::"));
        assert!(holds("192.0.2.7", "192.0.2.7"));
        assert!(!holds("192.0.2.7", "192.0.2.6"));
        assert!(holds("0.0.0.0/0", "203.0.113.9"));
        assert!(!holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("::/0", "2001:db8::1"));
        assert!(holds("::/0", "203.0.113.9"));
        assert!(holds("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!holds("2001:db8::/32", "2001:db9::1"));
        assert!(holds("::1", "::1"));
        assert!(!holds("::1", "::2"));
    }

    #[test]
    fn what_is_no_network() {
        for text in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0.1/8",
            "::/129",
            "2001:db8::1/32",
            "localhost",
            "10.0.0.0/4294967295",
            "10.0.0",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
    }
}
