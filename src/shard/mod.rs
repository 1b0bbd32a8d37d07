//! A shard: one pinned thread, its connections and its subscriptions.

pub mod mailbox;
