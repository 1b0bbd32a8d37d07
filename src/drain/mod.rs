//! The drain: every connection is told to leave, at once or spread evenly over a window.
//!
//! | file | what it holds |
//! |---|---|
//! | [`plan`] | who is told when; pure |
//! | [`ledger`] | what became of it, counted by the shards |
//! | [`run`] | the order of things, from the signal to the last socket's end |
//!
//! Nothing here knows a socket or a shard: [`run`] asks for them through a trait.

pub mod ledger;
pub mod plan;
pub mod run;

/// The reason that stands in the Close frame, and in the answer to an upgrade during the drain.
pub const REASON: &str = "relay restarting";
