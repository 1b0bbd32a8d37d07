//! The end of a drain that does not end: a thread of its own, because it must act also when the control
//! thread is stuck.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Ends the process after a while, unless it is dropped before.
pub struct HardStop {
    _disarm: SyncSender<()>,
}

impl HardStop {
    /// Calls `fire` after this time.
    pub fn arm(after: Duration, fire: impl FnOnce() + Send + 'static) -> HardStop {
        let (disarm, wait) = sync_channel::<()>(0);
        let thread = std::thread::Builder::new().name("hard-stop".to_owned());
        let started = thread.spawn(move || {
            // Dropping the sender ends the wait with another error.
            if wait.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                fire();
            }
        });
        if let Err(error) = started {
            tracing::error!(%error, "there is no hard stop: no thread for it");
        }
        HardStop { _disarm: disarm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    #[test]
    fn the_hard_stop_fires_once_it_is_time_and_not_when_disarmed() {
        let fired = Arc::new(AtomicBool::new(false));
        let fire = |fired: &Arc<AtomicBool>| {
            let fired = fired.clone();
            move || fired.store(true, Ordering::SeqCst)
        };
        drop(HardStop::arm(Duration::from_millis(30), fire(&fired)));
        std::thread::sleep(Duration::from_millis(120));
        assert!(!fired.load(Ordering::SeqCst), "disarmed");
        let armed = HardStop::arm(Duration::from_millis(10), fire(&fired));
        let end = Instant::now() + Duration::from_secs(10);
        while !fired.load(Ordering::SeqCst) {
            assert!(Instant::now() < end, "never fired");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(armed);
    }
}
