//! The checks of a NIP-42 login that need nothing but the event.
//!
//! Signature and id are the caller's to check, before or after. Ban, allow-list and membership
//! come later, under the auth gate.

use std::{borrow::Cow, fmt};

use super::{
    event::Event,
    kind,
    reason::{Prefix, Reason},
};
use crate::limits::AUTH_AGE_SECONDS_MAX;

/// Whether `event` is a login to this relay, on the connection that got `challenge`, at `now` (in
/// seconds since 1970).
///
/// # Errors
/// `auth-required:` with the check that failed: kind 22242, the challenge, the relay's URL after
/// normalization, `created_at` within [`AUTH_AGE_SECONDS_MAX`] either way (NIP-42).
pub fn check(event: &Event, challenge: &str, relay_url: &RelayUrl, now: u64) -> Result<(), Reason> {
    let refuse = |text| Err(Reason::fixed(Prefix::AuthRequired, text));
    if event.kind() != kind::AUTH {
        return refuse("a login has kind 22242");
    }
    if first_value(event, "challenge").is_none_or(|value| value != challenge) {
        return refuse("the challenge is not the one of this connection");
    }
    if first_value(event, "relay").is_none_or(|value| !relay_url.is(&value)) {
        return refuse("the relay tag is not the URL of this relay");
    }
    if event.created_at().abs_diff(now) > AUTH_AGE_SECONDS_MAX {
        return refuse("created_at is more than 10 minutes off");
    }
    Ok(())
}

/// The value of the first tag of that name.
fn first_value<'e>(event: &'e Event, name: &str) -> Option<Cow<'e, str>> {
    event.tags().find(|tag| tag.name() == name)?.value()
}

/// A relay's WebSocket URL, normalized for comparison: scheme and host in lower case, the scheme's
/// own port left out, no slashes at the end of the path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RelayUrl(Box<str>);

/// Why a text is not a relay's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayUrlError(&'static str);

impl RelayUrl {
    /// Reads `ws://` or `wss://`, a host, and optionally a port, a path and a query.
    ///
    /// # Errors
    /// Another scheme, no host, a port that is not a number, user names, fragments, white space
    /// and control characters.
    pub fn parse(text: &str) -> Result<Self, RelayUrlError> {
        if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(RelayUrlError("white space in the URL"));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(RelayUrlError("no scheme in the URL"));
        };
        let (scheme, port_default) = match scheme {
            _ if scheme.eq_ignore_ascii_case("ws") => ("ws", 80),
            _ if scheme.eq_ignore_ascii_case("wss") => ("wss", 443),
            _ => return Err(RelayUrlError("the scheme is neither ws nor wss")),
        };
        if rest.contains('#') {
            return Err(RelayUrlError("a fragment in the URL"));
        }
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = split_port(authority)?;
        let (path, query) = tail.split_at(tail.find('?').unwrap_or(tail.len()));
        let mut normal = format!("{scheme}://{}", host.to_ascii_lowercase());
        if let Some(port) = port.filter(|&port| port != port_default) {
            normal.push_str(&format!(":{port}"));
        }
        normal.push_str(path.trim_end_matches('/'));
        normal.push_str(query);
        Ok(Self(normal.into_boxed_str()))
    }

    /// Whether `text` names this relay.
    pub fn is(&self, text: &str) -> bool {
        Self::parse(text).is_ok_and(|other| other == *self)
    }

    /// The normalized URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RelayUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for RelayUrlError {}

/// Host (brackets of an IPv6 address included) and port.
fn split_port(authority: &str) -> Result<(&str, Option<u16>), RelayUrlError> {
    if authority.contains('@') {
        return Err(RelayUrlError("a user name in the URL"));
    }
    let host_end = match authority.find(']') {
        Some(bracket) if authority.starts_with('[') => bracket + 1,
        Some(_) => return Err(RelayUrlError("a bracket in the host")),
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(host_end);
    if host.is_empty() || host == "[]" {
        return Err(RelayUrlError("no host in the URL"));
    }
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok((host, None)),
        // An empty port is the default one (RFC 3986 section 3.2.3).
        Some("") => Ok((host, None)),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => match digits.parse() {
            Ok(port) => Ok((host, Some(port))),
            Err(_) => Err(RelayUrlError("the port is not a number up to 65535")),
        },
        _ => Err(RelayUrlError("the port is not a number up to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    const NOW: u64 = 1_700_000_000;

    fn check_with(kind: u16, tags: &[&[&str]], created_at: u64) -> Result<(), String> {
        let url = RelayUrl::parse("wss://relay.example.com").unwrap();
        let event = Author::new(1).event(created_at, kind, tags, "");
        check(&event, "c0ffee", &url, NOW).map_err(|reason| reason.to_string())
    }

    #[test]
    fn a_login_names_kind_challenge_relay_and_time() {
        let good: &[&[&str]] = &[
            &["relay", "wss://relay.example.com/"],
            &["challenge", "c0ffee"],
        ];
        for created_at in [NOW - 600, NOW, NOW + 600] {
            assert_eq!(check_with(22_242, good, created_at), Ok(()));
        }
        let refused = |kind, tags, created_at| {
            let reason = check_with(kind, tags, created_at).unwrap_err();
            assert!(reason.starts_with("auth-required: "), "{reason}");
            reason
        };
        assert!(refused(22_243, good, NOW).contains("kind"));
        assert!(refused(22_242, good, NOW - 601).contains("created_at"));
        assert!(refused(22_242, good, NOW + 601).contains("created_at"));
        assert!(refused(22_242, good, 0).contains("created_at"));
        assert!(refused(22_242, &good[..1], NOW).contains("challenge"));
        assert!(refused(22_242, &good[1..], NOW).contains("relay"));
        let other: &[&[&str]] = &[good[0], &["challenge", "C0FFEE"], good[1]];
        assert!(
            refused(22_242, other, NOW).contains("challenge"),
            "the first tag decides"
        );
        let other: &[&[&str]] = &[&["relay", "wss://relay.example.org"], good[1]];
        assert!(refused(22_242, other, NOW).contains("relay"));
        let other: &[&[&str]] = &[&["relay"], good[1]];
        assert!(refused(22_242, other, NOW).contains("relay"));
    }

    #[test]
    fn urls_are_compared_after_normalization() {
        let same = [
            ("wss://relay.example.com", "WSS://Relay.Example.COM:443//"),
            ("ws://localhost:3000", "ws://LOCALHOST:03000/"),
            ("ws://relay", "ws://relay:80"),
            ("ws://relay", "ws://relay:/"),
            ("ws://[::1]:3000/a/B", "ws://[::1]:3000/a/B/"),
            ("wss://relay/?x=1", "wss://relay:443?x=1"),
        ];
        for (one, two) in same {
            assert!(RelayUrl::parse(one).unwrap().is(two), "{one} {two}");
        }
        let other = [
            ("wss://relay", "ws://relay"),
            ("ws://relay:443", "ws://relay"),
            ("wss://relay/a", "wss://relay/A"),
            ("wss://relay/a", "wss://relay"),
            ("wss://relay", "wss://relay.evil"),
            ("wss://relay", "wss://relay?x"),
            ("wss://relay", "https://relay"),
            ("wss://relay", "relay"),
        ];
        for (one, two) in other {
            assert!(!RelayUrl::parse(one).unwrap().is(two), "{one} {two}");
        }
    }

    #[test]
    fn what_is_no_relay_url_is_refused() {
        let bad = [
            "",
            "ws:",
            "ws://",
            "ws:///a",
            "ws://:80",
            "ws://a:b",
            "ws://a:65536",
            "ws://a:-1",
            "ws://a:+1",
            "ws://[]",
            "ws://[::1]x",
            "ws://a]",
            "ws://u@a",
            "ws://a#b",
            "ws://a b",
            " ws://a",
            "http://a",
        ];
        for text in bad {
            assert!(RelayUrl::parse(text).is_err(), "{text}");
        }
    }
}
