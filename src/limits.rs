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
const _: () = assert!(LIMIT_DEFAULT <= LIMIT_MAX_DEFAULT);
const _: () = assert!(FRAME_BYTES_MIN <= FRAME_BYTES_DEFAULT);
const _: () = assert!(FRAME_BYTES_DEFAULT <= FRAME_BYTES_MAX);

// The embedded store.

/// Address space reserved for the embedded store's file, in bytes. The file is sparse: it grows as
/// events come and never to this size on its own.
pub const STORE_MAP_BYTES_DEFAULT: usize = 256 << 30;
/// Smallest address space that the embedded store accepts, in bytes: an empty store and one commit.
pub const STORE_MAP_BYTES_MIN: usize = 1 << 20;
/// Read transactions that may be open at one time, over all threads. LMDB's own default is 126.
pub const STORE_READERS_DEFAULT: u32 = 512;
/// Events of one commit.
pub const COMMIT_EVENTS_MAX: usize = 1_024;
/// Bytes of event JSON in one commit; a larger event is a commit of its own.
pub const COMMIT_BYTES_MAX: usize = 4 << 20;
/// Index entries of one commit, so that events full of tags cannot stretch it.
pub const COMMIT_INDEX_ENTRIES_MAX: usize = 32_768;
/// Events that wait for the writer, the commit under way included.
pub const WRITE_QUEUE_EVENTS_MAX: usize = 65_536;
/// Bytes of event JSON that wait for the writer, the commit under way included.
pub const WRITE_QUEUE_BYTES_MAX: usize = 256 << 20;
/// Longest tag value that is an index key as it is, in bytes; a longer one is hashed.
pub const TAG_VALUE_RAW_BYTES_MAX: usize = 64;
/// Index runs that one filter may merge; with more values a wider index is read and sieved.
pub const MERGE_STREAMS_MAX: usize = 2_048;
/// Entries of a scan between two looks at the clock.
pub const SCAN_CLOCK_ENTRIES: u32 = 32;

const _: () = assert!(FRAME_BYTES_MAX <= WRITE_QUEUE_BYTES_MAX);
const _: () = assert!(COMMIT_EVENTS_MAX <= WRITE_QUEUE_EVENTS_MAX);
