//! What becomes of a group's events: decided one after the other, each seeing those before it.
//!
//! Nothing here speaks to the database. [`Wanted`] says what must be known of it, [`Known`] holds
//! what it said, under the turn to commit, and [`Group`] decides and gathers what is to be written.
//! So a duplicate, a newer version, or an event and its deletion meet within one group as they would
//! in two.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::keys::Half;
use crate::nostr::address::Address;
use crate::nostr::event::Event;
use crate::nostr::kind::{self, Class};
use crate::nostr::reason::{Prefix, Reason};
use crate::store::embedded::Gone;
use crate::store::{Outcome, Removal};

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
type Set<K> = HashSet<K, foldhash::fast::RandomState>;

/// What a group's decisions depend on.
#[derive(Default)]
pub struct Wanted {
    /// Ids of the group's events, and those that its deletions name.
    pub ids: Set<[u8; 32]>,
    /// Addresses likewise.
    pub addresses: Set<Half>,
    /// Who may have taken what back.
    pub targets: Set<([u8; 32], Half)>,
    /// Who may have vanished, or may be banned.
    pub keys: Set<[u8; 32]>,
}

impl Wanted {
    /// For these events.
    pub fn by(events: &[Arc<Event>]) -> Wanted {
        let mut wanted = Wanted::default();
        for event in events {
            wanted.ids.insert(*event.id());
            let address = Half::address_of(event);
            wanted.addresses.extend(address);
            for key in owners(event) {
                wanted.keys.insert(key);
                wanted.targets.insert((key, Half::of(event.id())));
                let target = address.map(|address| (key, address));
                wanted.targets.extend(target);
            }
            if event.kind() == kind::DELETION {
                wanted.ids.extend(named_ids(event));
                wanted.addresses.extend(named_addresses(event));
            }
        }
        wanted
    }
}

/// A stored event that a group's events concern.
pub struct Stored {
    /// Its sequence.
    pub seq: u64,
    /// Its author.
    pub pubkey: [u8; 32],
    /// Its kind.
    pub kind: u16,
    /// Its time.
    pub created_at: u64,
    /// Its address.
    pub address: Option<Half>,
    /// Its signature, in hex.
    pub sig: Vec<u8>,
    /// Its tags, of a gift wrap.
    pub tags: Vec<Half>,
}

/// What the database said.
#[derive(Default)]
pub struct Known {
    /// The last sequence given out.
    pub last: u64,
    /// By id.
    pub events: Map<[u8; 32], Stored>,
    /// Which event is the version of an address.
    pub versions: Map<Half, [u8; 32]>,
    /// What was taken back, and up to when.
    pub deleted: Map<([u8; 32], Half), u64>,
    /// Who vanished, and up to when.
    pub vanished: Map<[u8; 32], u64>,
    /// Who is banned.
    pub banned: Set<[u8; 32]>,
}

/// An event to write.
pub struct Insert {
    /// Its sequence.
    pub seq: u64,
    /// The event.
    pub event: Arc<Event>,
    /// Its address.
    pub address: Option<Half>,
}

/// Events removed, by why.
pub type Removals = [usize; Removal::ALL.len()];

/// A group being decided.
pub struct Group {
    known: Known,
    /// The last sequence given out.
    pub last: u64,
    /// Events to write, by sequence; `None` of one that was removed again.
    inserts: Vec<Option<Insert>>,
    /// Sequences to remove.
    pub removed: Vec<u64>,
    /// What was taken back, and up to when.
    pub deleted: Map<([u8; 32], Half), u64>,
    /// Requests to vanish that begin.
    pub vanished: Map<[u8; 32], u64>,
    /// How many events it removes.
    pub removals: Removals,
    base: u64,
}

impl Group {
    /// A group that begins with what is known.
    pub fn begin(known: Known) -> Group {
        Group {
            last: known.last,
            base: known.last,
            known,
            inserts: Vec::new(),
            removed: Vec::new(),
            deleted: Map::default(),
            vanished: Map::default(),
            removals: Removals::default(),
        }
    }

    /// The sequences given out, if there were any.
    pub fn sequences(&self) -> Option<(u64, u64)> {
        (self.last > self.base).then_some((self.base + 1, self.last))
    }

    /// What is to be written.
    pub fn inserts(&self) -> impl Iterator<Item = &Insert> {
        self.inserts.iter().flatten()
    }

    /// Whether there is anything to commit.
    pub fn is_empty(&self) -> bool {
        self.last == self.base
            && self.removed.is_empty()
            && self.deleted.is_empty()
            && self.vanished.is_empty()
    }

    /// Decides one event. `None`: a request to vanish, whose events are to be removed first.
    pub fn add(&mut self, event: &Arc<Event>) -> Option<Outcome> {
        // NIP-62: a request to vanish is followed whatever its author's status.
        if self.known.banned.contains(event.pubkey()) && event.kind() != kind::VANISH {
            let reason = Reason::fixed(Prefix::Blocked, "the author is banned");
            return Some(Outcome::Refused(reason));
        }
        if let Some(outcome) = self.known_already(event) {
            return Some(outcome);
        }
        if let Some(gone) = self.gone(event) {
            return Some(Outcome::Refused(gone.reason()));
        }
        if event.kind() == kind::VANISH {
            let until = event.created_at();
            self.known.vanished.insert(*event.pubkey(), until);
            self.vanished.insert(*event.pubkey(), until);
            return None;
        }
        if event.class() == Class::Ephemeral {
            let text = "ephemeral events are not stored";
            return Some(Outcome::Refused(Reason::new(Prefix::Error, text)));
        }
        let address = Half::address_of(event);
        if let Some(version) = address.and_then(|address| self.known.versions.get(&address)) {
            let version = *version;
            let stays = self.known.events.get(&version).is_some_and(|old| {
                (old.created_at, std::cmp::Reverse(version))
                    >= (event.created_at(), std::cmp::Reverse(*event.id()))
            });
            if stays {
                return Some(Outcome::Superseded);
            }
            self.remove(&version, Removal::Replaced);
        }
        let seq = self.insert(event, address);
        if event.kind() == kind::DELETION {
            self.delete_named(event);
        }
        Some(Outcome::Stored { seq })
    }

    /// Takes a request to vanish in, whose events have been removed.
    pub fn add_vanished(&mut self, event: &Arc<Event>) -> Outcome {
        match self.known_already(event) {
            Some(outcome) => outcome,
            None => Outcome::Stored {
                seq: self.insert(event, None),
            },
        }
    }

    fn known_already(&self, event: &Event) -> Option<Outcome> {
        let stored = self.known.events.get(event.id())?;
        Some(match stored.sig == sig_hex(event) {
            true => Outcome::Duplicate,
            false => Outcome::SignatureDiffers,
        })
    }

    fn gone(&self, event: &Event) -> Option<Gone> {
        owners(event).find_map(|key| self.gone_by(event, &key))
    }

    /// Whether an event was taken back by the owner of `key`, who may do so.
    fn gone_by(&self, event: &Event, key: &[u8; 32]) -> Option<Gone> {
        // The request itself may come again: it may have met the end of its process under way.
        let ends = event.created_at() + u64::from(event.kind() == kind::VANISH);
        let until = self.known.vanished.get(key);
        if until.is_some_and(|until| ends <= *until) {
            return Some(Gone::Vanished);
        }
        if is_request(event.kind()) {
            return None;
        }
        let deleted = |target| self.known.deleted.get(&(*key, target));
        if deleted(Half::of(event.id())).is_some() {
            return Some(Gone::Deleted);
        }
        let until = Half::address_of(event).and_then(deleted);
        until
            .filter(|until| event.created_at() <= **until)
            .map(|_| Gone::Deleted)
    }

    fn insert(&mut self, event: &Arc<Event>, address: Option<Half>) -> u64 {
        self.last += 1;
        let stored = Stored {
            seq: self.last,
            pubkey: *event.pubkey(),
            kind: event.kind(),
            created_at: event.created_at(),
            address,
            sig: sig_hex(event).to_vec(),
            tags: match event.kind() {
                kind::GIFT_WRAP => Half::tags_of(event),
                _ => Vec::new(),
            },
        };
        self.known.events.insert(*event.id(), stored);
        if let Some(address) = address {
            self.known.versions.insert(address, *event.id());
        }
        self.inserts.push(Some(Insert {
            seq: self.last,
            event: event.clone(),
            address,
        }));
        self.last
    }

    /// Removes an event that is known, and the version of its address that it is.
    fn remove(&mut self, id: &[u8; 32], why: Removal) {
        let Some(stored) = self.known.events.remove(id) else {
            return;
        };
        self.removals[why as usize] += 1;
        if let Some(address) = stored.address
            && self.known.versions.get(&address) == Some(id)
        {
            self.known.versions.remove(&address);
        }
        if stored.seq > self.base {
            self.inserts[(stored.seq - self.base - 1) as usize] = None;
        } else {
            self.removed.push(stored.seq);
        }
    }

    /// Does what a deletion request asks for, after it was taken in.
    fn delete_named(&mut self, request: &Event) {
        for id in named_ids(request) {
            if let Some(stored) = self.known.events.get(&id) {
                if !may_take_back(stored, request.pubkey()) {
                    continue;
                }
                self.remove(&id, Removal::Deleted);
            }
            self.take_back(request, Half::of(&id));
        }
        for address in named_addresses(request) {
            if let Some(id) = self.known.versions.get(&address).copied()
                && let Some(stored) = self.known.events.get(&id)
                && stored.created_at <= request.created_at()
            {
                self.remove(&id, Removal::Deleted);
            }
            self.take_back(request, address);
        }
    }

    /// Keeps the latest time at which something was taken back.
    fn take_back(&mut self, request: &Event, target: Half) {
        let key = (*request.pubkey(), target);
        let known = self.known.deleted.get(&key);
        if known.is_none_or(|known| *known < request.created_at()) {
            self.known.deleted.insert(key, request.created_at());
            self.deleted.insert(key, request.created_at());
        }
    }
}

/// The signature, as it stands in the event's JSON.
pub fn sig_hex(event: &Event) -> &[u8] {
    let json = event.json().as_bytes();
    let start = json.len() - crate::nostr::event::SIG_FROM_END;
    &json[start..start + 128]
}

/// Who may take an event back: its author, and of a gift wrap its addressees (NIP-59).
fn owners(event: &Event) -> impl Iterator<Item = [u8; 32]> {
    let wrap = event.kind() == kind::GIFT_WRAP;
    let addressees = event
        .index_tags()
        .filter(move |(letter, _)| wrap && *letter == b'p');
    let addressees = addressees.filter_map(|(_, value)| key(value));
    std::iter::once(*event.pubkey()).chain(addressees)
}

fn may_take_back(stored: &Stored, key: &[u8; 32]) -> bool {
    let addressed = || stored.tags.contains(&Half::of_addressee(key));
    (stored.pubkey == *key || stored.kind == kind::GIFT_WRAP && addressed())
        && !is_request(stored.kind)
}

/// Whether events of a kind are requests, which stand.
fn is_request(kind: u16) -> bool {
    kind == kind::DELETION || kind == kind::VANISH
}

fn named_ids(request: &Event) -> impl Iterator<Item = [u8; 32]> {
    let named = request.index_tags().filter(|(letter, _)| *letter == b'e');
    named.filter_map(|(_, value)| key(value))
}

/// The author's own addresses that a request names.
fn named_addresses(request: &Event) -> impl Iterator<Item = Half> {
    let named = request.index_tags().filter(|(letter, _)| *letter == b'a');
    named.filter_map(|(_, value)| {
        let address = Address::parse(std::str::from_utf8(value).ok()?)?;
        let own = address.pubkey == *request.pubkey();
        let half = Half::of_address(&address.pubkey, address.kind, address.d);
        own.then_some(half)
    })
}

/// 64 lower-case hex digits.
fn key(hex: &[u8]) -> Option<[u8; 32]> {
    let lower = !hex.iter().any(u8::is_ascii_uppercase);
    const_hex::decode_to_array(hex).ok().filter(|_| lower)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    fn group() -> Group {
        Group::begin(Known {
            last: 7,
            ..Known::default()
        })
    }

    fn add(group: &mut Group, event: &Event) -> Outcome {
        group.add(&Arc::new(event.clone())).expect("an outcome")
    }

    #[test]
    fn a_version_replaced_within_the_group_is_not_written() {
        let author = Author::new(1);
        let profile = |at| author.event::<&str>(at, 0, &[], "");
        let mut group = group();
        assert!(matches!(
            add(&mut group, &profile(5)),
            Outcome::Stored { seq: 8 }
        ));
        assert!(matches!(
            add(&mut group, &profile(6)),
            Outcome::Stored { seq: 9 }
        ));
        assert!(matches!(add(&mut group, &profile(5)), Outcome::Superseded));
        let written: Vec<u64> = group.inserts().map(|insert| insert.seq).collect();
        assert_eq!((written, group.sequences()), (vec![9], Some((8, 9))));
        assert!(group.removed.is_empty());
    }

    #[test]
    fn an_address_is_taken_back_up_to_the_latest_time_asked_for() {
        let author = Author::new(1);
        let profile = |at| author.event::<&str>(at, 0, &[], "");
        let address = format!("0:{}:", author.pubkey_hex());
        let deletion = |at| author.event(at, kind::DELETION, &[&["a", address.as_str()]], "");
        let mut group = group();
        add(&mut group, &profile(7));
        add(&mut group, &deletion(6));
        // What is newer than the request stays.
        assert!(matches!(add(&mut group, &profile(7)), Outcome::Duplicate));
        add(&mut group, &deletion(9));
        // An older request that comes later takes nothing away from it.
        add(&mut group, &deletion(8));
        assert!(matches!(add(&mut group, &profile(9)), Outcome::Refused(_)));
        assert!(matches!(
            add(&mut group, &profile(10)),
            Outcome::Stored { .. }
        ));
        let until: Vec<u64> = group.deleted.values().copied().collect();
        assert_eq!(until, [9]);
    }

    #[test]
    fn what_is_known_decides() {
        let (author, other) = (Author::new(1), Author::new(2));
        let note = author.note(5, "");
        let mut known = Known {
            last: 7,
            ..Known::default()
        };
        known.banned.insert(*other.pubkey());
        let stored = Stored {
            seq: 3,
            pubkey: *author.pubkey(),
            kind: 1,
            created_at: 5,
            address: None,
            sig: sig_hex(&note).to_vec(),
            tags: Vec::new(),
        };
        known.events.insert(*note.id(), stored);
        let mut group = Group::begin(known);
        assert!(matches!(add(&mut group, &note), Outcome::Duplicate));
        assert!(matches!(
            add(&mut group, &other.note(1, "")),
            Outcome::Refused(_)
        ));
        assert!(group.is_empty());
        let id = const_hex::encode(note.id());
        let deletion = author.event(9, kind::DELETION, &[&["e", id.as_str()]], "");
        assert!(matches!(
            add(&mut group, &deletion),
            Outcome::Stored { seq: 8 }
        ));
        assert_eq!(group.removed, [3]);
        assert!(matches!(add(&mut group, &note), Outcome::Refused(_)));
        assert_eq!(group.deleted.len(), 1);
    }
}
