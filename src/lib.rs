//! # buzz-uring
//!
//! A Nostr relay for Linux: one shard per core on io_uring, share-nothing, with two concurrency
//! caps that operators move while it runs and a restart that closes connections evenly.
//!
//! The house, from the ground up. A room names only rooms above it in this list.
//!
//! | room | what it holds |
//! |---|---|
//! | [`limits`] | every bound, named with its unit |
//! | [`ws`] | WebSocket, server side: request heads, frames, messages; no I/O |

#[cfg(not(target_os = "linux"))]
compile_error!("buzz-uring runs on Linux only: it is built on io_uring, epoll and SO_REUSEPORT");

pub mod limits;
pub mod ws;
