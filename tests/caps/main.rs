//! The two caps as operators and clients meet them: the real relay, moved while it runs.
//!
//! The period of the refresh is the product's 5 s, so most of these tests wait; they run side by
//! side: on a machine of few cores ask for more of them, `cargo test --test caps -- --test-threads 16`.
//! Each ends with [`support::agree`]: what the relay counts is what its clients saw.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/launchdarkly.rs"]
mod launchdarkly;

mod access_log;
mod cold;
mod history;
mod logins;
mod moved;
mod outage;
mod providers;
mod refresh;
mod remembered;
mod runbook;
mod series;
mod support;
mod vanish;
