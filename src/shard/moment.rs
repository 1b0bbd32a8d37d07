//! A point in time in eight bytes, where an `Instant` has sixteen: a connection holds several, and
//! ten thousand connections that rest hold nothing else for long.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds since the process asked for its first one. Good for 584 years.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Moment(NonZeroU64);

const _: () = assert!(size_of::<Option<Moment>>() == 8);

impl Moment {
    /// As an `Instant`.
    pub fn instant(self) -> Instant {
        first() + Duration::from_nanos(self.0.get() - 1)
    }
}

impl From<Instant> for Moment {
    fn from(instant: Instant) -> Moment {
        let since = instant.saturating_duration_since(first());
        // One more, so that an Option of it is no larger.
        Moment(NonZeroU64::MIN.saturating_add(since.as_nanos() as u64))
    }
}

fn first() -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    *FIRST.get_or_init(Instant::now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_and_in_order() {
        let early = Moment::from(Instant::now());
        let now = Instant::now() + Duration::from_nanos(1);
        assert_eq!(Moment::from(now).instant(), now);
        assert!(early < Moment::from(now));
    }
}
