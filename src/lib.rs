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
//! | [`error`] | the exit codes |
//! | [`secret`] | text that never shows itself |
//! | [`table`] | things with numbers, in chunks that never move |
//! | [`thin`] | bytes behind one pointer, for what there is very much of |
//! | [`version`] | what was built: version and commit |
//! | [`words`] | numbers with their nouns |
//! | [`cli`] | one table of settings; subcommands |
//! | [`config`] | raw settings to typed ones; after it nobody sees a string |
//! | [`metrics`] | every series, in one table |
//! | [`flags`] | exactly one provider of the caps' flags |
//! | [`lifecycle`] | where the process is in its life |
//! | [`gate`] | the limiter that all shards share, whose limit moves while it is in use |
//! | [`nostr`] | events, filters, messages, signatures; no I/O |
//! | [`ws`] | WebSocket, server side: request heads, frames, messages; no I/O |
//! | [`store`] | where events are kept: the promises, and the embedded store |
//! | [`transfer`] | events in and out by the line |
//! | [`live`] | who wants this event: a shard's subscriptions |
//! | [`drain`] | closes spread over a window: the plan, the counts, the order of things |
//! | [`shard`] | a thread with its share of the connections |
//! | [`control`] | start and end, signals, logs, health and metrics servers |
//! | [`look`] | a relay seen from outside: one picture, or a live one in a terminal |

#[cfg(not(target_os = "linux"))]
compile_error!("buzz-uring runs on Linux only: it is built on io_uring, epoll and SO_REUSEPORT");

pub mod bucket;
pub mod cli;
pub mod config;
pub mod control;
pub mod drain;
pub mod error;
pub mod flags;
pub mod gate;
pub mod lifecycle;
pub mod limits;
pub mod live;
pub mod look;
pub mod metrics;
pub mod nostr;
pub mod secret;
pub mod shard;
pub mod store;
pub mod table;
pub mod thin;
pub mod transfer;
pub mod version;
pub mod words;
pub mod ws;
