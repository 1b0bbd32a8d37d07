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

/// Depth of JSON that any client message may nest (an event needs 3: event, tags, tag).
pub const JSON_DEPTH_MAX: usize = 8;
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

// ws: what the wire format itself bounds.

/// Header bytes of a frame that a client sends: 2, 8 of length, 4 of mask key (RFC 6455 section 5.2).
pub const CLIENT_FRAME_HEADER_BYTES_MAX: usize = 14;
/// Header bytes of a frame that a server sends: it has no mask key.
pub const SERVER_FRAME_HEADER_BYTES_MAX: usize = 10;
/// Bytes of a close reason: a control payload less the two of the code.
pub const CLOSE_REASON_BYTES_MAX: usize = CONTROL_PAYLOAD_BYTES_MAX - 2;

// Lengths of a message are kept in 32 bits, so that an idle decoder stays small.
const _: () = assert!(FRAME_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(FRAGMENTS_MAX <= u32::MAX as usize);

const _: () = assert!(LIMIT_DEFAULT <= LIMIT_MAX_DEFAULT);
const _: () = assert!(FRAME_BYTES_MIN <= FRAME_BYTES_DEFAULT);
const _: () = assert!(FRAME_BYTES_DEFAULT <= FRAME_BYTES_MAX);
