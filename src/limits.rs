//! Every bound of the relay, named with its unit, and how the bounds relate.
//!
//! A queue, buffer, loop, wait or retry whose bound is not here is a defect. What an operator may
//! change is a *default* here; everything else is a constant of the design.

/// Longest message a client may send, in bytes (`BUZZ_MAX_FRAME_BYTES`).
pub const FRAME_BYTES_DEFAULT: usize = 524_288;
/// Smallest value accepted for the message bound: an event must fit.
pub const FRAME_BYTES_MIN: usize = 1_024;
/// Largest value accepted for the message bound.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Fragments that one message may come in.
pub const FRAGMENTS_MAX: usize = 4_096;
/// Payload bytes of a control frame (RFC 6455 section 5.5).
pub const CONTROL_PAYLOAD_BYTES_MAX: usize = 125;

/// Bytes of a request head, request line included.
pub const HEAD_BYTES_MAX: usize = 8_192;
/// Header fields of a request head.
pub const HEAD_FIELDS_MAX: usize = 64;

/// Tags of one event.
pub const EVENT_TAGS_MAX: usize = 5_000;
/// Largest `kind` (NIP-01).
pub const KIND_MAX: u16 = u16::MAX;
/// Largest `created_at`: what fits a signed 64-bit integer, so that every database can hold it.
pub const CREATED_AT_MAX: u64 = i64::MAX as u64;

/// Filters of one REQ (`BUZZ_MAX_FILTERS`).
pub const FILTERS_DEFAULT: usize = 10;
/// Values in all filters of one connection (`BUZZ_MAX_FILTER_VALUES`).
pub const FILTER_VALUES_DEFAULT: usize = 20_000;
/// Subscriptions of one connection (`BUZZ_MAX_SUBSCRIPTIONS`).
pub const SUBSCRIPTIONS_DEFAULT: usize = 1_024;
/// Characters of a subscription id (`BUZZ_MAX_SUBID_LENGTH`; NIP-01 says 64).
pub const SUBID_LENGTH_DEFAULT: usize = 64;
/// Events that one filter may ask for (`BUZZ_MAX_LIMIT`).
pub const LIMIT_MAX_DEFAULT: usize = 1_000;
/// Events that a filter without `limit` gets (`BUZZ_DEFAULT_LIMIT`).
pub const LIMIT_DEFAULT: usize = 500;
/// How far `created_at` may lie ahead, in seconds (`BUZZ_CREATED_AT_FUTURE_SECONDS`).
pub const CREATED_AT_FUTURE_SECONDS_DEFAULT: u64 = 900;

// Nostr. The depth of JSON needs no number: every message is read by its shape, and what does not
// fit the shape ends the reading where it stands.

/// Characters of an unknown filter field that a refusal repeats.
pub const FILTER_KEY_CHARS_SHOWN_MAX: usize = 32;
/// Characters of an unknown message label that a refusal repeats.
pub const LABEL_CHARS_SHOWN_MAX: usize = 32;
/// Parsed public keys that a shard remembers, at about 100 bytes each.
pub const VERIFIER_KEYS_MAX: usize = 32_768;
/// How far `created_at` of a login may be off, in seconds (NIP-42).
pub const AUTH_AGE_SECONDS_MAX: u64 = 600;

const _: () = assert!(VERIFIER_KEYS_MAX.is_power_of_two());

// live
/// Places for ids of recent ephemeral events, of 8 bytes each, one table a process. A power of two.
pub const RECENT_IDS_ENTRIES: usize = 1 << 16;
/// Subscriptions of one shard: what a 31-bit number can tell apart. Memory ends long before.
pub const SUBSCRIPTIONS_SHARD_MAX: usize = 1 << 31;
/// Kinds of a filter up to which it is indexed by value and kind together: its index entries are at
/// most this many times its values.
pub const COMBINED_KINDS_MAX: usize = 4;
/// Entries of a table below which it is not worth shrinking.
pub const INDEX_SHRINK_ENTRIES_MIN: usize = 1_024;

const _: () = assert!(RECENT_IDS_ENTRIES.is_power_of_two());
const _: () = assert!(LIMIT_DEFAULT <= LIMIT_MAX_DEFAULT);
const _: () = assert!(FRAME_BYTES_MIN <= FRAME_BYTES_DEFAULT);
const _: () = assert!(FRAME_BYTES_DEFAULT <= FRAME_BYTES_MAX);
