//! Where a relay listens: its URL, read and resolved.

use std::net::{SocketAddr, ToSocketAddrs};

/// Where a relay listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Target {
    /// The address.
    pub address: SocketAddr,
    /// Host and port as the URL has them.
    pub host: String,
    /// The path, at least "/".
    pub path: String,
}

impl Target {
    /// Reads `ws://host[:port][/path]` and resolves the host.
    ///
    /// # Errors
    /// What is wrong with the URL, in words.
    pub fn parse(url: &str) -> Result<Target, String> {
        let rest = url.strip_prefix("ws://").ok_or_else(|| {
            format!("{url}: only ws:// is spoken; measure a relay without its proxy")
        })?;
        let (host, path) = match rest.find('/') {
            Some(at) => (&rest[..at], &rest[at..]),
            None => (rest, "/"),
        };
        let with_port = if host
            .rsplit(']')
            .next()
            .is_some_and(|tail| tail.contains(':'))
        {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        let address = with_port
            .to_socket_addrs()
            .map_err(|error| format!("{url}: {error}"))?
            .next()
            .ok_or_else(|| format!("{url}: the host has no address"))?;
        Ok(Target {
            address,
            host: host.to_owned(),
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let target = Target::parse("ws://127.0.0.1:7777/a/b").unwrap();
        assert_eq!(target.address, "127.0.0.1:7777".parse().unwrap());
        assert_eq!(
            (target.host.as_str(), target.path.as_str()),
            ("127.0.0.1:7777", "/a/b")
        );
        assert_eq!(Target::parse("ws://127.0.0.1").unwrap().address.port(), 80);
        assert_eq!(Target::parse("ws://[::1]:9").unwrap().address.port(), 9);
        assert_eq!(Target::parse("ws://[::1]").unwrap().address.port(), 80);
        assert!(Target::parse("wss://h").is_err());
        assert!(Target::parse("ws://").is_err());
    }
}
