//! Events that are for the party they are addressed to, and for nobody else (NIP-59).
//!
//! A gift wrap hides its author and its content, but not its addressee. So a relay serves it only to
//! a client that has logged in with the key of a `p` tag, in history, in counts and live.

use super::event::Event;
use super::filter::Filter;

/// The kinds this is about: gift wrap, and its ephemeral form.
pub const KINDS: &[u16] = &[1_059, 21_059];

/// Whether events of `kind` are served to their addressee only.
pub const fn is_sealed(kind: u16) -> bool {
    kind == KINDS[0] || kind == KINDS[1]
}

/// Who asks: the keys that have logged in.
#[derive(Clone, Debug, Default)]
pub struct Viewer {
    keys: Box<[[u8; 32]]>,
}

impl Viewer {
    /// A viewer with these keys, which may be none.
    pub fn new(keys: &[[u8; 32]]) -> Viewer {
        Viewer { keys: keys.into() }
    }

    /// The keys.
    pub fn keys(&self) -> &[[u8; 32]] {
        &self.keys
    }

    /// Whether an event may be served to this viewer.
    pub fn may_see(&self, event: &Event) -> bool {
        !is_sealed(event.kind()) || self.keys.iter().any(|key| is_addressed_to(event, key))
    }

    /// Whether an answer to `filter` could hold an event that must be looked at before it is served.
    pub fn must_look(filter: &Filter) -> bool {
        match &filter.kinds {
            Some(kinds) => KINDS.iter().any(|kind| kinds.contains(kind)),
            None => true,
        }
    }
}

/// Whether a `p` tag of the event names this key.
pub fn is_addressed_to(event: &Event, key: &[u8; 32]) -> bool {
    let mut hex = [0; 64];
    // The buffer has exactly the length of 32 bytes in hex.
    let _ = const_hex::encode_to_slice(key, &mut hex);
    event
        .index_tags()
        .any(|(letter, value)| letter == b'p' && value == hex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    #[test]
    fn a_gift_wrap_is_for_its_addressee() {
        let (sender, receiver, other) = (Author::new(1), Author::new(2), Author::new(3));
        let to = receiver.pubkey_hex();
        let wrap = sender.event(1, 1_059, &[&["p", to.as_str()]], "");
        let note = sender.event(1, 1, &[&["p", to.as_str()]], "");
        let see = |keys: &[[u8; 32]], event| Viewer::new(keys).may_see(event);
        assert!(see(&[*other.pubkey(), *receiver.pubkey()], &wrap));
        assert!(!see(&[*other.pubkey(), *sender.pubkey()], &wrap));
        assert!(!see(&[], &wrap));
        assert!(see(&[], &note));
    }

    #[test]
    fn only_filters_that_could_meet_one_must_look() {
        let kinds = |kinds| Filter {
            kinds,
            ..Filter::default()
        };
        assert!(Viewer::must_look(&kinds(None)));
        assert!(Viewer::must_look(&kinds(Some(vec![1, 21_059]))));
        assert!(!Viewer::must_look(&kinds(Some(vec![1, 7]))));
    }
}
