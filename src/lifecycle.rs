//! Where the process is in its life: one atomic that shards, servers and the drain look at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where the process is in its life. Only ever forwards.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Stage {
    /// Opening the store, starting shards; not ready.
    Starting,
    /// Serving; ready.
    Ready,
    /// Told to stop while others keep the listening sockets: no socket is accepted any more, and
    /// those that are ask for their upgrade, which they get.
    Leaving,
    /// Told to stop: no new connections, the old ones are closed in order.
    Draining,
    /// Connections have ended; store and flags are being closed.
    Closing,
    /// Nothing is left but the exit.
    Stopped,
}

impl Stage {
    /// The word that status and logs show.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Ready => "ready",
            Stage::Leaving => "leaving",
            Stage::Draining => "draining",
            Stage::Closing => "closing",
            Stage::Stopped => "stopped",
        }
    }

    /// What a readiness probe is answered: whether traffic is wanted, and a JSON body.
    pub fn readiness(self) -> (bool, &'static str) {
        match self {
            Stage::Starting => (false, r#"{"status":"starting"}"#),
            Stage::Ready => (true, r#"{"status":"ready"}"#),
            _ => (false, r#"{"status":"shutting_down"}"#),
        }
    }

    fn of(byte: u8) -> Stage {
        match byte {
            0 => Stage::Starting,
            1 => Stage::Ready,
            2 => Stage::Leaving,
            3 => Stage::Draining,
            4 => Stage::Closing,
            _ => Stage::Stopped,
        }
    }
}

/// The stage of this process, shared with shards and admin servers.
#[derive(Debug)]
pub struct Lifecycle {
    stage: AtomicU8,
}

impl Lifecycle {
    /// A process that starts.
    pub fn new() -> Arc<Lifecycle> {
        Arc::new(Lifecycle {
            stage: AtomicU8::new(Stage::Starting as u8),
        })
    }

    /// The stage now.
    pub fn stage(&self) -> Stage {
        // SeqCst, as in `advance`: a registration inserts itself and then looks here, the drain
        // advances and then counts, and one of the two must see the other.
        Stage::of(self.stage.load(Ordering::SeqCst))
    }

    /// Moves on to `stage`; false when the process was there already, or past it. So a drain that
    /// began while starting is not undone by the start's end, and of two callers one wins.
    pub fn advance(&self, stage: Stage) -> bool {
        self.stage.fetch_max(stage as u8, Ordering::SeqCst) < stage as u8
    }

    /// True from the moment that connections which open are the drain's to close.
    pub fn is_draining(&self) -> bool {
        self.stage() >= Stage::Draining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_only_goes_forwards_and_each_step_has_one_winner() {
        let life = Lifecycle::new();
        assert_eq!((life.stage(), life.is_draining()), (Stage::Starting, false));
        assert!(life.advance(Stage::Leaving));
        assert!(!life.is_draining());
        assert!(life.advance(Stage::Draining));
        assert!(!life.advance(Stage::Draining));
        // A start that ends after the signal does not make the process ready again.
        assert!(!life.advance(Stage::Ready));
        assert_eq!((life.stage(), life.is_draining()), (Stage::Draining, true));
        assert!(life.advance(Stage::Stopped));
        assert!(life.is_draining());
    }

    #[test]
    fn every_stage_survives_its_byte() {
        use Stage::{Closing, Draining, Leaving, Ready, Starting, Stopped};
        for stage in [Starting, Ready, Leaving, Draining, Closing, Stopped] {
            assert_eq!(Stage::of(stage as u8), stage);
        }
    }
}
