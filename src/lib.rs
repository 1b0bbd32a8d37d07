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
//! | [`secret`] | text that never shows itself |
//! | [`cli`] | one table of settings; subcommands |
//! | [`config`] | raw settings to typed ones; after it nobody sees a string |
//! | [`metrics`] | every series, in one table |
//! | [`flags`] | exactly one provider of the caps' flags |
//! | [`control`] | lifecycle, signals, logs, health and metrics servers |
//! | [`gate`] | the limiter that all shards share, whose limit moves while it is in use |

#[cfg(not(target_os = "linux"))]
compile_error!("buzz-uring runs on Linux only: it is built on io_uring, epoll and SO_REUSEPORT");

pub mod cli;
pub mod config;
pub mod control;
pub mod flags;
pub mod gate;
pub mod limits;
pub mod metrics;
pub mod secret;
