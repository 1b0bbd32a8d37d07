//! What an import refuses, whoever signed it.
//!
//! An import is the act of whoever owns the store, so it is not asked for a login, proof of work, or
//! a `created_at` near the present, and protected events are welcome (NIP-70: their author need not
//! be here). What stays is what no store of ours may hold, and what would have an effect beyond
//! itself.
//!
//! The rest is the store's own: it refuses what was deleted, what has vanished and what a banned key
//! wrote, and knows duplicates and old versions.

use crate::nostr::auth::RelayUrl;
use crate::nostr::event::Event;
use crate::nostr::kind::{self, Class};
use crate::nostr::reason::{Prefix, Reason};
use crate::nostr::vanish;

/// The rules.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Which relay this is: a request to vanish must name it (NIP-62).
    pub relay_url: RelayUrl,
    /// How far a request to vanish may be dated ahead, in seconds: it bars its key up to then.
    pub vanish_ahead_seconds: u64,
}

impl Policy {
    /// Whether an event may be stored, at `now` in seconds since 1970.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, event: &Event, now: u64) -> Result<(), Reason> {
        let invalid = |text| Err(Reason::fixed(Prefix::Invalid, text));
        if kind::is_never_stored(event.kind()) {
            return invalid("events of this kind are for one peer and are not stored");
        }
        if event.class() == Class::Ephemeral {
            return invalid("ephemeral events are not stored");
        }
        if event.expiration().is_some_and(|expires| expires <= now) {
            return invalid("the event has expired");
        }
        if event.kind() != kind::VANISH {
            return Ok(());
        }
        if !vanish::is_for(event, &self.relay_url) {
            return invalid("the request to vanish does not name this relay");
        }
        if event.created_at() > now.saturating_add(self.vanish_ahead_seconds) {
            return invalid("the request to vanish is dated too far ahead");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    #[test]
    fn only_what_may_not_be_kept_is_refused() {
        let policy = Policy {
            relay_url: RelayUrl::parse("wss://relay.example").unwrap(),
            vanish_ahead_seconds: 100,
        };
        let author = Author::new(1);
        let check = |created_at, kind, tags: &[&[&str]]| {
            let event = author.event(created_at, kind, tags, "");
            policy.check(&event, 1_000).map_err(|r| r.to_string())
        };
        let for_us: &[&[&str]] = &[&["relay", "wss://relay.example"]];
        for (created_at, kind, tags) in [
            (0, 1, &[][..]),
            (1 << 60, 1, &[]),
            (5, 1_059, &[]),
            (5, 1, &[&["-"][..]]),
            (5, 1, &[&["expiration", "1001"][..]]),
            (1_100, 62, for_us),
        ] {
            assert_eq!(check(created_at, kind, tags), Ok(()), "{kind}");
        }
        for (created_at, kind, tags, word) in [
            (5, 22_242, &[][..], "one peer"),
            (5, 27_235, &[], "one peer"),
            (5, 20_000, &[], "ephemeral"),
            (5, 1, &[&["expiration", "1000"][..]], "expired"),
            (5, 62, &[], "does not name"),
            (1_101, 62, for_us, "ahead"),
        ] {
            let reason = check(created_at, kind, tags).expect_err("refused");
            assert!(
                reason.starts_with("invalid: ") && reason.contains(word),
                "{reason}"
            );
        }
    }
}
