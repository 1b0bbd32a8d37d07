//! The control thread's rooms: the life of the process, its signals, logs, and the health and
//! metrics servers. All of it runs on one tokio `current_thread` runtime beside the shards, knows
//! nothing of them, and never blocks on them.

use std::io;
use std::time::Duration;

use crate::limits;
use crate::metrics::Metrics;

pub mod access;
pub mod admin;
pub mod backup;
mod bounded;
pub mod caps;
pub mod command;
pub mod health;
pub mod logs;
pub mod migrate;
pub mod notify;
pub mod open;
pub mod pages;
pub mod reach;
pub mod refresh;
pub mod reload;
pub mod remembered;
pub mod signals;
pub mod socket;
pub mod start;
pub mod status;
pub mod stop;
pub mod transfer;
pub mod watchdog;

/// The control thread's runtime. Its blocking pool is for the flag provider's close and the access
/// lists.
///
/// # Errors
///
/// When the kernel refuses an epoll instance or a descriptor.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Runs the recorder's upkeep for ever; spawn it on the control runtime.
pub async fn metrics_upkeep(metrics: Metrics) {
    let mut ticks = tokio::time::interval(Duration::from_millis(limits::METRICS_UPKEEP_MS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        metrics.upkeep();
    }
}
