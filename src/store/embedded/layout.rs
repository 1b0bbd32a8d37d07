//! How events lie in the embedded store, byte by byte. This page comes before the code.
//!
//! One LMDB environment (file format of LMDB 0.9) in `<data dir>/events/`. Integers are big-endian,
//! so that byte order is number order. No database uses duplicate keys.
//!
//! ```text
//! database      key                                              value
//! ----------    ---------------------------------------------    -------------------------------------
//! meta          "schema"                                         version u32 (SCHEMA_VERSION)
//!               "sequence"                                       last sequence given out u64
//!               "indexed"                                        seq u64: of events up to it every entry is written
//! events        seq u64                                          0 u8 ‖ JSON, or 1 u8 ‖ expires u64 ‖ JSON
//! id            id [32]                                          seq u64 ‖ kind u16 ‖ who [8] ‖ created_at u64
//! address       pubkey [32] ‖ kind u16 ‖ sha256(d) [16]          seq u64 ‖ created_at u64 ‖ id [32]
//! time          order                                            seq u64 ‖ kind u16 ‖ who [8]
//! kind          kind u16 ‖ order                                 seq u64 ‖ who [8]
//! author        pubkey [32] ‖ order                              seq u64 ‖ kind u16
//! author_kind   pubkey [32] ‖ kind u16 ‖ order                   seq u64
//! tag           letter u8 ‖ form u8 ‖ value ‖ order              seq u64 ‖ kind u16 ‖ who [8]
//! access        pubkey [32]                                      bits u8: 1 banned, 2 allowed, 4 member
//! deleted       pubkey [32] ‖ 0 u8 ‖ id [32]                     created_at u64 of the request (NIP-09)
//!               pubkey [32] ‖ 1 u8 ‖ kind u16 ‖ sha256(d) [16]   created_at u64 of the request
//! vanished      pubkey [32]                                      created_at u64 of the request (NIP-62) ‖ 1 u8: under way
//! expiry        expires u64 ‖ seq u64                            nothing
//!
//! order   = !created_at u64 ‖ first 16 bytes of the id           newest first, then lowest id first
//! who     = first 8 bytes of the pubkey
//! form    = 0..=64   value is as it came, and so long
//!           254      value is 32 bytes, written as 64 lower-case hex digits in the event
//!           255      value is the first 16 bytes of the SHA-256 of a longer one
//! ```
//!
//! **Reading forward is reading history.** `order` is inverted time and then the id, so that a walk
//! from a key on gives `created_at` descending and `id` ascending, which is the order of answers,
//! and the last key seen is all that is needed to go on later. Within a run (equal bytes before
//! `order`) all keys are of one length, so that comparing the prefix is exact.
//!
//! **`kind` and `who` in the values** sieve entries without fetching the event. `who` is a part of
//! the pubkey: what passes it is checked in full against the event. So is a hashed tag value.
//!
//! **The JSON** is the normalized form of `nostr::event`: fixed order, no space, strings as they
//! were sent. The constants below name where its fixed parts lie.
//!
//! **Two ids alike in 16 bytes** at the same second would share an index key, and the later would
//! hide the earlier in that index. It takes 2^64 hashes to make such a pair, and both are still found
//! by id; a removal takes an index entry away only if it names the removed sequence.
//!
//! **Sequence numbers** are given in the order of commits and never twice: the last one lives in
//! `meta`, not in the last event, which may be removed.
//!
//! **Entries that come late.** `id`, `time`, `kind`, `author`, `author_kind` and `tag` are written after
//! their events, many at a time (`nursery`). `indexed` in `meta` says from where on they may be missing; then they
//! are made anew from `events`. What is removed has no entries, late or not.
//!
//! **Events that come late.** One that was stored alone may be in the `journal`, a file beside the
//! data file, and get its record with the next group.
//!
//! **An event that expires** (NIP-40) has the top bit set in every `seq` of `id` and of the ordered
//! indexes, and the time in front of its JSON. So a reader learns of it where it is anyway, and one
//! that counts entries knows which of them it must look at.
//!
//! **What the author took back** is told by `deleted` and `vanished`, by the author's key first: an
//! event is judged by at most three look-ups, and a key that vanishes takes its deletions along.
//!
//! **Room to grow.** A later schema raises SCHEMA_VERSION; a folder with a higher one is refused and
//! left as it is, one with a lower one is brought up to date by `upgrade`. The first byte of a record
//! tells what precedes the JSON.

use sha2::{Digest, Sha256};

use crate::limits::TAG_VALUE_RAW_BYTES_MAX;
use crate::nostr::event::Event;
use crate::store::{StoreError, StoreErrorKind};

/// The version of this layout.
pub const SCHEMA_VERSION: u32 = 4;

/// Key of the layout's version in `meta`.
pub const META_SCHEMA: &[u8] = b"schema";
/// Key of the last sequence in `meta`.
pub const META_SEQUENCE: &[u8] = b"sequence";
/// Key in `meta` of the sequence up to which every entry is in its database.
pub const META_INDEXED: &[u8] = b"indexed";
/// Key in `meta` of the store's own name, by which it knows its journal.
pub const META_NAME: &[u8] = b"name";

/// Random bytes that no other store has.
pub type StoreName = [u8; 16];

/// First byte of a record: the JSON follows.
const FORMAT_JSON: u8 = 0;
/// First byte of a record: the time follows at which the event expires, then the JSON.
const FORMAT_EXPIRES: u8 = 1;
/// Set in a sequence of an index: the event expires.
const EXPIRES: u64 = 1 << 63;

/// Bytes of `order`.
pub const ORDER_BYTES: usize = 24;
/// The longest key: a tag with the longest raw value.
pub const KEY_BYTES_MAX: usize = 2 + TAG_VALUE_RAW_BYTES_MAX + ORDER_BYTES;

const FORM_HEX: u8 = 254;
const FORM_HASHED: u8 = 255;
/// Bytes kept of a hash.
const HASH_BYTES: usize = 16;
/// Hex digits of the signature, which end two bytes before the JSON does.
const SIG_HEX_BYTES: usize = 128;
/// Where the pubkey's 64 hex digits begin in the JSON.
const PUBKEY_AT: usize = 83;
const CREATED_AT_AT: usize = PUBKEY_AT + 64 + b"\",\"created_at\":".len();

// What LMDB accepts as a key when built with its defaults.
const _: () = assert!(KEY_BYTES_MAX <= 511);
const _: () = assert!(TAG_VALUE_RAW_BYTES_MAX < FORM_HEX as usize);

/// The ordered indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Everything, by time.
    Time,
    /// By kind.
    Kind,
    /// By author.
    Author,
    /// By author and kind.
    AuthorKind,
    /// By tag letter and value.
    Tag,
}

/// What an index entry says of its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `!created_at`: grows with age.
    pub age: u64,
    /// The first 16 bytes of the id, as a number.
    pub id: u128,
    /// Where the event is.
    pub seq: u64,
    /// Its kind.
    pub kind: u16,
    /// The first bytes of its pubkey, as a number.
    pub who: u64,
    /// Whether it expires at some time; its record says when.
    pub expires: bool,
}

/// A key, or the start of one, built in place.
#[derive(Clone)]
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
}

impl Key {
    /// No bytes yet.
    pub fn new() -> Key {
        Key {
            bytes: [0; KEY_BYTES_MAX],
            len: 0,
        }
    }

    /// Appends bytes. The layout keeps every key within [`KEY_BYTES_MAX`].
    pub fn push(&mut self, part: &[u8]) -> &mut Key {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }

    /// Appends `order`.
    pub fn push_order(&mut self, age: u64, id: u128) -> &mut Key {
        self.push(&age.to_be_bytes()).push(&id.to_be_bytes())
    }

    /// Cuts back to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The bytes so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Appends the part of a tag key before `order`. True when the value had to be hashed, so that a
/// match must be checked against the event.
pub fn push_tag(key: &mut Key, letter: u8, value: &[u8]) -> bool {
    let mut raw = [0; 32];
    if value.len() == 64 && decode_hex_lower(value, &mut raw) {
        key.push(&[letter, FORM_HEX]).push(&raw);
        return false;
    }
    if value.len() <= TAG_VALUE_RAW_BYTES_MAX {
        key.push(&[letter, value.len() as u8]).push(value);
        return false;
    }
    key.push(&[letter, FORM_HASHED]).push(&hash(value));
    true
}

/// The key of a replaceable or addressable event; `d` is empty for a replaceable one.
pub fn address_key(pubkey: &[u8; 32], kind: u16, d: &[u8]) -> [u8; 50] {
    let mut key = [0; 50];
    key[..32].copy_from_slice(pubkey);
    key[32..34].copy_from_slice(&kind.to_be_bytes());
    key[34..].copy_from_slice(&hash(d));
    key
}

/// The value of [`address_key`].
pub fn address_value(seq: u64, event: &Event) -> [u8; 48] {
    let mut value = [0; 48];
    value[..8].copy_from_slice(&seq.to_be_bytes());
    value[8..16].copy_from_slice(&event.created_at().to_be_bytes());
    value[16..].copy_from_slice(event.id());
    value
}

/// The version of an address that is stored: sequence, `created_at`, id.
pub fn parse_address(value: &[u8]) -> Result<(u64, u64, [u8; 32]), StoreError> {
    let value: &[u8; 48] = value.try_into().map_err(|_| corrupt("an address"))?;
    Ok((
        number(&value[..8]),
        number(&value[8..16]),
        array(&value[16..]),
    ))
}

/// The value of the `id` database.
pub fn id_value(seq: u64, event: &Event) -> [u8; 26] {
    let mut value = [0; 26];
    value[..8].copy_from_slice(&index_seq(event, seq).to_be_bytes());
    value[8..10].copy_from_slice(&event.kind().to_be_bytes());
    value[10..18].copy_from_slice(&event.pubkey()[..8]);
    value[18..].copy_from_slice(&event.created_at().to_be_bytes());
    value
}

/// The entry that the `id` database holds for `id`.
pub fn parse_id(id: &[u8; 32], value: &[u8]) -> Result<Entry, StoreError> {
    let value: &[u8; 26] = value.try_into().map_err(|_| corrupt("an id"))?;
    Ok(Entry {
        age: !number(&value[18..]),
        id: id_head(id),
        seq: number(&value[..8]) & !EXPIRES,
        expires: number(&value[..8]) & EXPIRES != 0,
        kind: u16::from_be_bytes(array(&value[8..10])),
        who: number(&value[10..18]),
    })
}

/// Reads one entry of an ordered index. `None`: the key is not of the run that starts with `prefix`.
#[inline]
pub fn parse_entry(
    index: Index,
    prefix: &[u8],
    key: &[u8],
    value: &[u8],
) -> Result<Option<Entry>, StoreError> {
    // An empty prefix points nowhere: comparing with it takes 80 ns on CPUs where a masked load of an
    // unmapped address, though harmless, is suppressed by microcode.
    let is_of_run = |key: &[u8]| prefix.is_empty() || &key[..prefix.len()] == prefix;
    if key.len() != prefix.len() + ORDER_BYTES || !is_of_run(key) {
        return Ok(None);
    }
    let order = &key[prefix.len()..];
    let (kind, who) = match (index, value.len()) {
        (Index::Time | Index::Tag, 18) => (
            u16::from_be_bytes(array(&value[8..10])),
            number(&value[10..18]),
        ),
        (Index::Kind, 16) => (
            u16::from_be_bytes(array(&prefix[..2])),
            number(&value[8..16]),
        ),
        (Index::Author, 10) => (
            u16::from_be_bytes(array(&value[8..10])),
            number(&prefix[..8]),
        ),
        (Index::AuthorKind, 8) => (
            u16::from_be_bytes(array(&prefix[32..34])),
            number(&prefix[..8]),
        ),
        _ => return Err(corrupt("an index entry")),
    };
    let seq = number(&value[..8]);
    Ok(Some(Entry {
        age: number(&order[..8]),
        id: u128::from_be_bytes(array(&order[8..])),
        seq: seq & !EXPIRES,
        kind,
        who,
        expires: seq & EXPIRES != 0,
    }))
}

/// The sequence in the value of an entry of `id` or of an ordered index.
pub fn entry_seq(value: &[u8]) -> u64 {
    number(&value[..8]) & !EXPIRES
}

/// How many entries an event has in the databases, at most.
pub fn entry_count(event: &Event) -> usize {
    // `events`, `id`, and four indexes that every event is in.
    6 + event.index_tags().count()
}

/// Calls `each` with every ordered index entry of an event: index, key, value. Equal tags give equal
/// keys.
pub fn for_each_entry<E>(
    event: &Event,
    seq: u64,
    mut each: impl FnMut(Index, &[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (age, id) = (!event.created_at(), id_head(event.id()));
    let kind = event.kind().to_be_bytes();
    let mut value = [0; 18];
    value[..8].copy_from_slice(&index_seq(event, seq).to_be_bytes());
    value[8..10].copy_from_slice(&kind);
    value[10..].copy_from_slice(&event.pubkey()[..8]);
    let mut by_kind = [0; 16];
    by_kind[..8].copy_from_slice(&value[..8]);
    by_kind[8..].copy_from_slice(&value[10..]);

    let mut key = Key::new();
    each(Index::Time, key.push_order(age, id).as_bytes(), &value)?;
    key.truncate(0);
    each(
        Index::Kind,
        key.push(&kind).push_order(age, id).as_bytes(),
        &by_kind,
    )?;
    key.truncate(0);
    each(
        Index::Author,
        key.push(event.pubkey()).push_order(age, id).as_bytes(),
        &value[..10],
    )?;
    key.truncate(32);
    each(
        Index::AuthorKind,
        key.push(&kind).push_order(age, id).as_bytes(),
        &value[..8],
    )?;
    for (letter, tag) in event.index_tags() {
        key.truncate(0);
        push_tag(&mut key, letter, tag);
        each(Index::Tag, key.push_order(age, id).as_bytes(), &value)?;
    }
    Ok(())
}

/// Appends the record of an event.
pub fn push_record(record: &mut Vec<u8>, event: &Event) {
    match event.expiration() {
        None => record.push(FORMAT_JSON),
        Some(expires) => {
            record.push(FORMAT_EXPIRES);
            record.extend_from_slice(&expires.to_be_bytes());
        }
    }
    record.extend_from_slice(event.json().as_bytes());
}

/// The JSON of a record.
#[inline]
pub fn record_json(record: &[u8]) -> Result<&str, StoreError> {
    let json = match record.split_first() {
        Some((&FORMAT_JSON, json)) => Some(json),
        Some((&FORMAT_EXPIRES, rest)) => rest.get(8..),
        _ => None,
    };
    json.and_then(|json| simdutf8::basic::from_utf8(json).ok())
        .ok_or(corrupt("an event"))
}

/// When the event of a record expires, in seconds since 1970 (NIP-40).
#[inline]
pub fn record_expires(record: &[u8]) -> Option<u64> {
    match record {
        [FORMAT_EXPIRES, rest @ ..] if rest.len() >= 8 => Some(number(&rest[..8])),
        _ => None,
    }
}

/// The key of `expiry`.
pub fn expiry_key(expires: u64, seq: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&expires.to_be_bytes());
    key[8..].copy_from_slice(&seq.to_be_bytes());
    key
}

/// Time and sequence of a key of `expiry`.
pub fn parse_expiry(key: &[u8]) -> Result<(u64, u64), StoreError> {
    let key: &[u8; 16] = key.try_into().map_err(|_| corrupt("an expiry time"))?;
    Ok((number(&key[..8]), number(&key[8..])))
}

/// The key under which `deleted` holds that an author took an id back.
pub fn deleted_id_key(pubkey: &[u8; 32], id: &[u8; 32]) -> [u8; 65] {
    let mut key = [0; 65];
    key[..32].copy_from_slice(pubkey);
    key[33..].copy_from_slice(id);
    key
}

/// The key under which `deleted` holds that an author took an address back, from [`address_key`].
pub fn deleted_address_key(address: &[u8; 50]) -> [u8; 51] {
    let mut key = [0; 51];
    key[..32].copy_from_slice(&address[..32]);
    key[32] = 1;
    key[33..].copy_from_slice(&address[32..]);
    key
}

/// A time as `deleted` holds it.
pub fn parse_time(value: &[u8]) -> Result<u64, StoreError> {
    let value: &[u8; 8] = value.try_into().map_err(|_| corrupt("a deletion"))?;
    Ok(number(value))
}

/// The value of `vanished`.
pub fn vanished_value(until: u64, under_way: bool) -> [u8; 9] {
    let mut value = [0; 9];
    value[..8].copy_from_slice(&until.to_be_bytes());
    value[8] = u8::from(under_way);
    value
}

/// Time, and whether events are still being removed.
pub fn parse_vanished(value: &[u8]) -> Result<(u64, bool), StoreError> {
    match value {
        [time @ .., under_way] if time.len() == 8 => Ok((number(time), *under_way != 0)),
        _ => Err(corrupt("a request to vanish")),
    }
}

/// The signature in a stored event's JSON.
pub fn json_sig(json: &str) -> Result<[u8; 64], StoreError> {
    let mut sig = [0; 64];
    json.len()
        .checked_sub(SIG_HEX_BYTES + 2)
        .and_then(|at| json.as_bytes().get(at..at + SIG_HEX_BYTES))
        .and_then(|hex| const_hex::decode_to_slice(hex, &mut sig).ok())
        .ok_or(corrupt("an event"))?;
    Ok(sig)
}

/// The pubkey in a stored event's JSON.
pub fn json_pubkey(json: &str) -> Result<[u8; 32], StoreError> {
    let mut pubkey = [0; 32];
    json.as_bytes()
        .get(PUBKEY_AT..PUBKEY_AT + 64)
        .and_then(|hex| const_hex::decode_to_slice(hex, &mut pubkey).ok())
        .ok_or(corrupt("an event"))?;
    Ok(pubkey)
}

/// The kind of an event, from its JSON.
pub fn json_kind(json: &str) -> Result<u16, StoreError> {
    // Behind `created_at`, whose digits hold no comma.
    let rest = json.get(CREATED_AT_AT..).unwrap_or_default();
    rest.split_once(",\"kind\":")
        .and_then(|(_, rest)| rest.split(',').next())
        .and_then(|digits| digits.parse().ok())
        .ok_or(corrupt("an event"))
}

/// A sequence as the indexes hold it.
fn index_seq(event: &Event, seq: u64) -> u64 {
    seq | if event.expiration().is_some() {
        EXPIRES
    } else {
        0
    }
}

/// The first 16 bytes of an id, as a number: numbers compare as the bytes do.
pub fn id_head(id: &[u8; 32]) -> u128 {
    u128::from_be_bytes(array(&id[..16]))
}

/// The first 8 bytes of a pubkey, as a number.
pub fn who(pubkey: &[u8; 32]) -> u64 {
    number(&pubkey[..8])
}

/// A big-endian number of 8 bytes. The caller has checked the length.
pub fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(array(bytes))
}

/// An error that names what could not be read back.
pub fn corrupt(what: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, what)
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes
        .try_into()
        .expect("the layout's lengths are constants")
}

fn hash(value: &[u8]) -> [u8; HASH_BYTES] {
    array(&Sha256::digest(value)[..HASH_BYTES])
}

/// Upper-case digits are another value: they must not meet the lower-case ones in one key.
fn decode_hex_lower(hex: &[u8], out: &mut [u8; 32]) -> bool {
    !hex.iter().any(u8::is_ascii_uppercase) && const_hex::decode_to_slice(hex, out).is_ok()
}
