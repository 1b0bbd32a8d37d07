//! The Nostr protocol: events, filters, messages, signatures. No I/O; time is an argument.
//!
//! From the ground up; a file names only files above it in this list.
//!
//! | file | what it holds |
//! |---|---|
//! | [`kind`] | the classes of kinds (NIP-01) |
//! | [`reason`] | the machine-readable reason of an `OK` or a `CLOSED` |
//! | `text` | JSON strings: scan, unescape, canonical escapes |
//! | `cursor` | a place in a JSON text, and its tokens |
//! | `scan` | one pass over an event's JSON |
//! | [`event`] | an event, its normalized JSON, its precomputed index tags |
//! | [`filter`] | filters, and whether an event passes |
//! | [`message`] | what clients say, and the answers |
//! | [`address`] | `kind:pubkey:d` (NIP-01) |
//! | [`pow`] | proof of work (NIP-13) |
//! | [`hll`] | HyperLogLog values of a COUNT (NIP-45) |
//! | [`repost`] | reposts of protected events (NIP-70) |
//! | [`sealed`] | events for their addressee only (NIP-59) |
//! | [`verify`] | signatures, with a cache of parsed keys |
//! | [`auth`] | the checks of a NIP-42 login |
//! | [`vanish`] | requests to vanish (NIP-62) |
//! | [`info`] | the NIP-11 document |
//! | [`key`] | public keys as people write them |

pub mod address;
pub mod auth;
mod cursor;
pub mod event;
pub mod filter;
pub mod hll;
pub mod info;
pub mod key;
pub mod kind;
pub mod message;
pub mod pow;
#[cfg(test)]
mod properties;
pub mod reason;
pub mod repost;
mod scan;
pub mod sealed;
#[doc(hidden)]
pub mod testing;
mod text;
pub mod vanish;
pub mod verify;

pub use event::{Event, EventError, Tag};
pub use filter::Filter;
pub use kind::Class;
pub use message::{ClientMessage, MessageError, ParseBounds, SubId};
pub use reason::{Prefix, Reason};
pub use verify::Verifier;

/// The bytes that 64 lower-case hex digits stand for, as ids and keys are written; `None` for any
/// other text.
pub(crate) fn lower_hex(text: &[u8]) -> Option<[u8; 32]> {
    cursor::decode_hex(text)
}
