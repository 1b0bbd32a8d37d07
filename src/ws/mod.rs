//! WebSocket, server side (RFC 6455), without I/O: bytes in, bytes out.
//!
//! One direction, each file naming only files above it:
//!
//! | file | what it holds |
//! |---|---|
//! | [`close`] | close codes, close payloads, the faults that end a connection |
//! | [`frame`] | opcodes, frame headers in both directions, the mask |
//! | [`decoder`] | received bytes → messages and control frames |
//! | [`handshake`] | request heads, the upgrade, plain HTTP answers |
//!
//! No extension is ever negotiated, so the reserved bits of every frame are zero, and no
//! subprotocol, so none is named in the answer.

pub mod close;
pub mod decoder;
pub mod frame;
pub mod handshake;

pub use close::Fault;
pub use decoder::{Decoded, Decoder, Item};
pub use frame::Opcode;
pub use handshake::{Head, HeadError, Upgrade, parse_head};

#[cfg(test)]
mod tests;
