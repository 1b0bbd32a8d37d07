//! The drain: every connection is told to leave, at once or spread evenly over a window.
//!
//! | file | what it holds |
//! |---|---|
//! | [`plan`] | who is told when; pure |
//!
//! Nothing here knows a socket or a shard.

pub mod plan;
