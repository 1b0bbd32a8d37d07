//! Bounds of the load generator, each with its unit. The relay's own are in the library.

use std::time::Duration;

/// Longest message taken from a relay, in bytes. Past it the connection is given up as broken.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Fragments that one message of a relay may come in.
pub const FRAGMENTS_MAX: usize = 65_536;
/// Bytes of a relay's answer to the upgrade.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 16_384;
/// Header fields of a relay's answer to the upgrade.
pub const RESPONSE_FIELDS_MAX: usize = 64;
/// Payload bytes of a control frame (RFC 6455 section 5.5).
pub const CONTROL_PAYLOAD_BYTES_MAX: usize = 125;

/// Bytes read from a socket at once, to begin with; a longer message makes the buffer grow.
pub const READ_BYTES: usize = 256 << 10;
/// Readiness notices taken from the kernel at once.
pub const READY_MAX: usize = 512;
/// Connections that may be between `connect` and their upgrade at any time. Below the shortest
/// accept queue in use (128), so that none waits for a SYN to be sent again after a second.
pub const OPENING_MAX: usize = 120;
/// Loopback source addresses in use: 127.0.0.2 and up. Each has about 28 000 ports.
pub const SOURCES_MAX: u32 = 250;
/// Time a connection may take from `connect` to its upgrade, in seconds.
pub const OPEN_SECONDS_MAX: u64 = 20;

/// Time the last answers may take after the last request, in seconds, unless told otherwise.
pub const DRAIN_SECONDS_DEFAULT: u64 = 15;
/// Longest latency that a histogram tells apart, in microseconds: one hour.
pub const LATENCY_MICROS_MAX: u64 = 3_600_000_000;
/// Significant digits of a histogram.
pub const LATENCY_DIGITS: u8 = 3;
/// Distinct reasons (of failures, refusals) that a report lists; further ones are counted as "other".
pub const REASONS_MAX: usize = 16;
/// Share of a core from which on the generator says that it may have been the limit.
pub const OWN_CPU_SHARE_MAX: f64 = 0.90;
/// Lateness of the generator's own sends, at the 99th percentile, from which on an open-loop run
/// says that the generator was the limit, in microseconds.
pub const OWN_LATE_MICROS_MAX: u64 = 2_000;

/// A crowd's first backoff after a 1012, and after its first failure twice that: what clients use.
pub const CROWD_BACKOFF: Duration = Duration::from_secs(1);
/// Longest backoff of a crowd's client.
pub const CROWD_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// How far a backoff is spread to both sides, in percent of it.
pub const CROWD_SPREAD_PERCENT: f64 = 25.0;

/// Requests in flight on one connection.
pub const WINDOW_MAX: usize = 4_096;
/// Operations of one run.
pub const OPERATIONS_MAX: u64 = 1_000_000_000;
/// Events that are made and signed before a run.
pub const EVENTS_MAX: usize = 4_000_000;
/// Time that set-up may take (connections, subscriptions, challenges), in seconds.
pub const SETUP_SECONDS_MAX: u64 = 300;
/// Bytes of one line of an event file.
pub const EVENT_LINE_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(READ_BYTES <= MESSAGE_BYTES_MAX);
const _: () = assert!(OPENING_MAX < 128);
