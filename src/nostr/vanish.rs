//! Requests to vanish (NIP-62): whom they are meant for.

use super::auth::RelayUrl;
use super::event::Event;
use super::kind;

/// The `relay` tag that speaks to every relay.
const ALL_RELAYS: &str = "ALL_RELAYS";

/// Whether an event is a request to vanish that this relay must follow: a `relay` tag names it, or
/// all of them.
pub fn is_for(event: &Event, relay_url: &RelayUrl) -> bool {
    event.kind() == kind::VANISH
        && event
            .tags()
            .filter(|tag| tag.name() == "relay")
            .filter_map(|tag| tag.value())
            .any(|value| value == ALL_RELAYS || relay_url.is(&value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    #[test]
    fn a_request_is_for_the_relays_it_names() {
        let url = RelayUrl::parse("wss://relay.example").unwrap();
        let author = Author::new(1);
        let is_for = |kind, tags: &[&[&str]]| is_for(&author.event(1, kind, tags, ""), &url);
        assert!(is_for(62, &[&["relay", "ALL_RELAYS"]]));
        assert!(is_for(
            62,
            &[
                &["relay", "wss://other"],
                &["relay", "WSS://Relay.Example:443/"]
            ]
        ));
        assert!(!is_for(62, &[&["relay", "wss://other.example"]]));
        assert!(!is_for(62, &[&["relay", "all_relays"]]));
        assert!(!is_for(62, &[&["r", "ALL_RELAYS"], &["relay"]]));
        assert!(!is_for(62, &[]));
        assert!(!is_for(1, &[&["relay", "ALL_RELAYS"]]));
    }
}
