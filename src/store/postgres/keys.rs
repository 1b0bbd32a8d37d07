//! How events, tags and what was taken back are named in the tables: 16 bytes each.
//!
//! - half: the first half of an event's id. It breaks ties of time, as the id itself would: two ids
//!   that agree in it take 2^64 hashes to make, and then their order is open.
//! - tag: SHA-256 of letter and value. A tag that a filter did not ask for passes for one that it
//!   did after as many hashes, among its maker's own events.
//! - address: SHA-256 of author, kind and `d` tag.
//! - target: what a deletion names: the half of an id, or an address.

use std::error::Error;

use bytes::BytesMut;
use sha2::{Digest, Sha256};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::nostr::event::Event;
use crate::nostr::kind::Class;

/// 16 bytes, in a column of type `uuid`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Half(pub [u8; 16]);

impl Half {
    /// The first half of an id.
    pub fn of(id: &[u8; 32]) -> Half {
        let mut half = [0; 16];
        half.copy_from_slice(&id[..16]);
        Half(half)
    }

    /// The name of a tag.
    pub fn of_tag(letter: u8, value: &[u8]) -> Half {
        Half::of_hash(Sha256::new().chain_update([letter]).chain_update(value))
    }

    /// The name of a `p` tag that names a key.
    pub fn of_addressee(key: &[u8; 32]) -> Half {
        let mut hex = [0; 64];
        // The buffer has exactly the length of 32 bytes in hex.
        let _ = const_hex::encode_to_slice(key, &mut hex);
        Half::of_tag(b'p', &hex)
    }

    /// The name of an address.
    pub fn of_address(pubkey: &[u8; 32], kind: u16, d: &str) -> Half {
        let hash = Sha256::new().chain_update(pubkey);
        Half::of_hash(hash.chain_update(kind.to_be_bytes()).chain_update(d))
    }

    /// The address of an event of which one version is kept.
    pub fn address_of(event: &Event) -> Option<Half> {
        let d = match event.class() {
            Class::Replaceable => "",
            Class::Addressable => event.d_tag(),
            Class::Regular | Class::Ephemeral => return None,
        };
        Some(Half::of_address(event.pubkey(), event.kind(), d))
    }

    /// The names of an event's tags, each once.
    pub fn tags_of(event: &Event) -> Vec<Half> {
        let tags = event.index_tags();
        let mut tags: Vec<Half> = tags
            .map(|(letter, value)| Half::of_tag(letter, value))
            .collect();
        tags.sort_unstable();
        tags.dedup();
        tags
    }

    fn of_hash(hash: Sha256) -> Half {
        Half::of(&hash.finalize().into())
    }
}

/// `-created_at`, which is at most `i64::MAX` by the parser's rule.
pub fn age_of(created_at: u64) -> i64 {
    -i64::try_from(created_at).unwrap_or(i64::MAX)
}

/// A number for the database, whose integers are signed: what is beyond is as good as for ever.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl ToSql for Half {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Half {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Half, Box<dyn Error + Sync + Send>> {
        Ok(Half(raw.try_into()?))
    }

    accepts!(UUID);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    #[test]
    fn names_tell_apart_what_differs() {
        assert_ne!(Half::of_tag(b'e', b"x"), Half::of_tag(b'p', b"x"));
        assert_eq!(
            Half::of_addressee(&[0xab; 32]),
            Half::of_tag(b'p', "ab".repeat(32).as_bytes())
        );
        let address = Half::of_address(&[1; 32], 30_023, "d");
        assert_ne!(address, Half::of_address(&[1; 32], 30_024, "d"));
        assert_ne!(address, Half::of_address(&[2; 32], 30_023, "d"));
        assert_ne!(address, Half::of_address(&[1; 32], 30_023, ""));
    }

    #[test]
    fn a_tag_that_comes_twice_is_named_once() {
        let tags: [&[&str]; 3] = [&["t", "x"], &["t", "y"], &["t", "x"]];
        let event = Author::new(1).event(1, 1, &tags, "");
        let names = Half::tags_of(&event);
        assert_eq!(names.len(), 2);
        assert!(names.contains(&Half::of_tag(b't', b"x")));
    }

    #[test]
    fn what_is_newer_has_a_lower_age() {
        assert!(age_of(2) < age_of(1));
        assert_eq!(age_of(i64::MAX as u64), -i64::MAX);
        assert_eq!(signed(u64::MAX), i64::MAX);
    }
}
