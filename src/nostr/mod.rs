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
//! | [`verify`] | signatures, with a cache of parsed keys |
//! | [`auth`] | the checks of a NIP-42 login |
//! | [`info`] | the NIP-11 document |
//! | [`key`] | public keys as people write them |

pub mod auth;
mod cursor;
pub mod event;
pub mod filter;
pub mod info;
pub mod key;
pub mod kind;
pub mod message;
#[cfg(test)]
mod properties;
pub mod reason;
mod scan;
pub mod sealed;
#[doc(hidden)]
pub mod testing;
mod text;
pub mod verify;

pub use event::{Event, EventError, Tag};
pub use filter::Filter;
pub use kind::Class;
pub use message::{ClientMessage, MessageError, ParseBounds, SubId};
pub use reason::{Prefix, Reason};
pub use verify::Verifier;
