//! Starts the real relay and speaks to it, for the whole-process tests.
//!
//! Every relay has a folder and ports of its own, so tests run side by side. Nothing here waits for
//! a guessed time: each wait is for a condition, within [`WAIT`], and says what it waited for.
#![allow(dead_code, unused_imports)] // Each test binary uses its own part of this.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub mod client;
pub mod confine;
pub mod database;
pub mod hooks;
pub mod inherit;
pub mod raw;
pub mod relay;

pub use buzz_uring::nostr::testing::Author;
pub use client::Client;
pub use confine::Confine;
pub use hooks::{Hooks, hooked};
pub use raw::{Raw, get};
pub use relay::{Exit, Launch, Relay};

/// Longest wait for anything that should come at once. Far above what a busy machine needs: a test
/// that meets it has failed.
pub const WAIT: Duration = Duration::from_secs(30);

/// Time between two looks at a condition that cannot be waited for otherwise.
pub const LOOK: Duration = Duration::from_millis(5);

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is after 1970").as_secs()
}

/// The id of an event's JSON as the relay and [`Author`] write it.
pub fn id_of(json: &str) -> &str {
    &json[7..71]
}

/// Looks until `condition` gives something.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < end, "waited {WAIT:?} in vain: {what}");
        std::thread::sleep(LOOK);
    }
}

/// A fixed address on which nobody else is, also no other test: loopback addresses are many, so
/// each process has one of its own.
pub fn quiet_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let port = 20_000 + NEXT.fetch_add(1, Ordering::Relaxed);
    (Ipv4Addr::new(127, 77, high, low), port).into()
}

/// A reason why a test cannot be run here, for whoever reads the output.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
}
