//! The service manager's watchdog, fed by the shards' hearts.
//!
//! A ping says that every shard has beaten lately, and that the control thread runs, which sends
//! it. When either stops, so do the pings, and the manager ends the process and starts it anew.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::notify::Manager;
use crate::limits::WATCHDOG_PERIOD_MIN;

/// Time between two pings, if the service manager wants any of this process: half of what it
/// waits for one.
pub fn period() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok();
    period_of(
        variable("WATCHDOG_USEC").as_deref(),
        variable("WATCHDOG_PID").as_deref(),
        std::process::id(),
    )
}

/// Pings while `alive` says so, for ever; spawn it on the control runtime.
pub async fn feed(manager: Manager, period: Duration, alive: impl Fn() -> Result<(), String>) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut was_alive = true;
    loop {
        ticks.tick().await;
        match alive() {
            Ok(()) => {
                if !was_alive {
                    tracing::warn!("every shard runs again; the watchdog is fed");
                    manager.status("every shard runs again");
                }
                was_alive = true;
                manager.alive();
            }
            Err(why) => {
                if was_alive {
                    tracing::error!("the watchdog is not fed any more: {why}");
                    manager.status(&why);
                }
                was_alive = false;
            }
        }
    }
}

/// `pid` names the process that the watchdog waits for; without it, it is whoever reads this.
fn period_of(micros: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let micros: u64 = micros?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros / 2).max(WATCHDOG_PERIOD_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_comes_twice_in_the_time_that_the_manager_waits() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(period_of(Some("20000000"), None, 7), seconds(10));
        assert_eq!(period_of(Some("20000000"), Some("7"), 7), seconds(10));
        assert_eq!(period_of(Some("1"), None, 7), Some(WATCHDOG_PERIOD_MIN));
    }

    #[test]
    fn nobody_waits_for_a_ping_of_this_process() {
        for (micros, pid) in [
            (None, None),
            (Some("20000000"), Some("8")),
            (Some("20000000"), Some("")),
            (Some("0"), None),
            (Some("soon"), None),
        ] {
            assert_eq!(period_of(micros, pid, 7), None, "{micros:?} {pid:?}");
        }
    }
}
