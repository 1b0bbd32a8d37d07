//! Signatures (BIP-340 over secp256k1), with a cache of parsed public keys.
//!
//! A check costs 37–39 µs, 4–5 of them for parsing the author's key, which means a square root.
//! Authors repeat, so each shard keeps the parsed keys of recent authors.
//!
//! The cache is two-way set-associative: a key has two places, the younger in front, and a new one
//! pushes out the elder. No allocation after the start, no lists, no clock. Only keys of good
//! signatures enter: whoever wants to push keys out has to sign for it.

use secp256k1::{XOnlyPublicKey, schnorr};

use super::event::Event;
use crate::limits::VERIFIER_KEYS_MAX;

/// Checks signatures. One a shard.
pub struct Verifier {
    /// Empty, or a power of two of sets.
    sets: Box<[[Option<Entry>; WAYS]]>,
    /// Makes places unpredictable from outside.
    seed: u64,
}

/// Places of one key.
const WAYS: usize = 2;

#[derive(Clone, Copy)]
struct Entry {
    bytes: [u8; 32],
    key: XOnlyPublicKey,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::new(VERIFIER_KEYS_MAX)
    }
}

impl Verifier {
    /// A verifier that remembers up to `keys_max` keys, rounded up to a power of two; 0 remembers
    /// none. About 100 bytes a key, all allocated here.
    ///
    /// # Panics
    /// If `keys_max` is above [`VERIFIER_KEYS_MAX`].
    pub fn new(keys_max: usize) -> Self {
        assert!(keys_max <= VERIFIER_KEYS_MAX, "key cache beyond its bound");
        let sets = if keys_max == 0 {
            0
        } else {
            keys_max.div_ceil(WAYS).next_power_of_two()
        };
        Self {
            sets: vec![[None; WAYS]; sets].into_boxed_slice(),
            seed: fastrand::u64(..),
        }
    }

    /// Whether the author of `event` signed its id. Says nothing about the id itself: see
    /// [`Event::id_matches`].
    pub fn verify(&mut self, event: &Event) -> bool {
        let signature = schnorr::Signature::from_byte_array(*event.sig());
        let place = self.place(event.pubkey());
        let known = place.and_then(|place| {
            let set = &mut self.sets[place];
            if set[1]
                .as_ref()
                .is_some_and(|entry| entry.bytes == *event.pubkey())
            {
                set.swap(0, 1);
            }
            set[0].filter(|entry| entry.bytes == *event.pubkey())
        });
        if let Some(entry) = known {
            return signature.verify(event.id(), &entry.key).is_ok();
        }
        let Ok(key) = XOnlyPublicKey::from_byte_array(*event.pubkey()) else {
            return false;
        };
        if signature.verify(event.id(), &key).is_err() {
            return false;
        }
        if let Some(place) = place {
            let set = &mut self.sets[place];
            set[1] = set[0];
            set[0] = Some(Entry {
                bytes: *event.pubkey(),
                key,
            });
        }
        true
    }

    /// The set of a key; none if nothing is remembered.
    fn place(&self, pubkey: &[u8; 32]) -> Option<usize> {
        let mask = self.sets.len().checked_sub(1)?;
        let mut word = [0; 8];
        word.copy_from_slice(&pubkey[..8]);
        // Keys are as good as random; the product only hides which of them meet.
        let mixed = (u64::from_le_bytes(word) ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some((mixed >> 32) as usize & mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    #[test]
    fn a_signature_is_of_one_id_and_one_key_cached_or_not() {
        for keys_max in [0, 1, 2, 1_024] {
            let mut verifier = Verifier::new(keys_max);
            for round in 0..3 {
                for seed in 0..8 {
                    let author = Author::new(seed);
                    let json = author.json::<&str>(1, 1, &[], "x");
                    let good = Event::parse(&json).unwrap();
                    assert!(verifier.verify(&good), "{round} {seed}");
                    assert!(good.id_matches());
                    let other_key =
                        json.replace(&author.pubkey_hex(), &Author::new(seed + 1).pubkey_hex());
                    assert!(!verifier.verify(&Event::parse(&other_key).unwrap()));
                    let other_id = json.replacen(
                        &json[7..9],
                        if &json[7..9] == "00" { "01" } else { "00" },
                        1,
                    );
                    assert!(!verifier.verify(&Event::parse(&other_id).unwrap()));
                    let at = json.len() - 4;
                    let other_sig = format!(
                        "{}{}\"}}",
                        &json[..at],
                        if &json[at..at + 2] == "00" {
                            "01"
                        } else {
                            "00"
                        }
                    );
                    assert!(!verifier.verify(&Event::parse(&other_sig).unwrap()));
                }
            }
        }
    }

    #[test]
    fn a_key_that_is_no_point_is_refused() {
        let json = Author::new(1).json::<&str>(1, 1, &[], "x");
        let key = Author::new(1).pubkey_hex();
        let event = Event::parse(&json.replace(&key, &"f".repeat(64))).unwrap();
        assert!(!Verifier::default().verify(&event));
    }

    #[test]
    fn the_two_latest_good_keys_of_a_set_are_remembered() {
        let mut verifier = Verifier::new(2);
        let authors: Vec<Author> = (0..4).map(Author::new).collect();
        let events: Vec<Event> = authors.iter().map(|author| author.note(1, "x")).collect();
        let held = |verifier: &Verifier| -> Vec<usize> {
            let keys: Vec<[u8; 32]> = verifier
                .sets
                .iter()
                .flatten()
                .flatten()
                .map(|entry| entry.bytes)
                .collect();
            (0..4)
                .filter(|&n| keys.contains(authors[n].pubkey()))
                .collect()
        };
        for (n, expected) in [
            (0, vec![0]),
            (1, vec![0, 1]),
            (0, vec![0, 1]),
            (2, vec![0, 2]),
        ] {
            assert!(verifier.verify(&events[n]));
            assert_eq!(held(&verifier), expected, "after author {n}");
        }
        // A key whose signature is bad pushes nobody out.
        let forged = events[2]
            .json()
            .replace(&authors[2].pubkey_hex(), &authors[3].pubkey_hex());
        assert!(!verifier.verify(&Event::parse(&forged).unwrap()));
        assert_eq!(held(&verifier), [0, 2]);
    }
}
