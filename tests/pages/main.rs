//! The pages for people, in a real browser: what the relay's address shows, and what the health
//! port's shows while the relay works, drains, ends and comes back.
//!
//! The browser is Chromium, driven by its own driver. Where there is none these tests say so.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/launchdarkly.rs"]
mod launchdarkly;

mod browser;
mod front;
mod headers;
mod looks;
mod site;
mod status;
mod strangers;
