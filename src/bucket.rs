//! A token bucket: how much a client may do at a steady rate, and how much of it at once.
//!
//! Pure: the time is an argument. It holds no allowance but the moment at which it will be full, so
//! it is sixteen bytes, needs no timer, and is exact however seldom it is looked at.
//!
//! Rule: what is asked for is granted while a whole token is left, even if it is more than that; the
//! bucket then owes the difference and grants nothing until it is paid. So one message larger than
//! the whole bucket still passes, and the rate holds over time. A part of a token is nothing: a full
//! bucket grants its burst and not one more.

use std::time::{Duration, Instant};

/// What a bucket may grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    /// Tokens that come back in `per`. At least 1.
    pub tokens: u64,
    /// The time that `tokens` take to come back. Above zero.
    pub per: Duration,
    /// What a full bucket holds, as the time that it takes to fill. Above zero.
    pub burst: Duration,
}

/// A bucket, full when new.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    full_at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub fn new(now: Instant) -> Bucket {
        Bucket { full_at: now }
    }

    /// Takes `tokens` if a whole one is left. Returns whether it was.
    pub fn take(&mut self, rate: &Rate, tokens: u64, now: Instant) -> bool {
        let granted = self.has_any(rate, now);
        if granted {
            self.full_at = self.full_at.max(now) + rate.time_of(tokens);
        }
        granted
    }

    /// Takes `tokens` for something that happens anyway. What is owed then is at most one burst, so
    /// that it is paid in bounded time.
    pub fn charge(&mut self, rate: &Rate, tokens: u64, now: Instant) {
        let owed_most = now + 2 * rate.burst;
        let charged = self.full_at.max(now) + rate.time_of(tokens);
        self.full_at = charged.min(owed_most).max(self.full_at);
    }

    /// Goes on at another rate. The tokens that are left stay, as many of them as the new burst holds,
    /// and none is added; what is owed takes as long to be paid as it would have.
    pub fn change_rate(&mut self, was: &Rate, is: &Rate, now: Instant) {
        let missing = self.full_at.saturating_duration_since(now);
        let missing = match was.burst.checked_sub(missing) {
            Some(left) => is.burst.saturating_sub(is.time_of(was.tokens_in(left))),
            None => is.burst + (missing - was.burst),
        };
        self.full_at = now + missing;
    }

    /// Whether a whole token is left.
    pub fn has_any(&self, rate: &Rate, now: Instant) -> bool {
        let missing = self.full_at.saturating_duration_since(now);
        missing + rate.time_of_one() <= rate.burst
    }

    /// Whether nothing is missing: then it is as good as a new one.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

impl Rate {
    /// The time in which a token comes back: the burst, if that is shorter, for a full bucket grants.
    fn time_of_one(&self) -> Duration {
        let shortest = Duration::from_nanos(1);
        self.time_of(1).max(shortest).min(self.burst)
    }

    /// The whole tokens that come back in `time`.
    fn tokens_in(&self, time: Duration) -> u64 {
        let tokens = time.as_nanos() * u128::from(self.tokens) / self.per.as_nanos().max(1);
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// The time in which `tokens` come back, at most a day: a single message owes no more.
    fn time_of(&self, tokens: u64) -> Duration {
        const LONGEST_NANOS: u128 = 86_400 * 1_000_000_000;
        let nanos = u128::from(tokens) * self.per.as_nanos() / u128::from(self.tokens.max(1));
        Duration::from_nanos(nanos.min(LONGEST_NANOS) as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn rate(tokens: u64, burst: u64) -> Rate {
        Rate {
            tokens,
            per: Duration::from_secs(1),
            burst: Duration::from_secs(burst),
        }
    }

    #[test]
    fn a_burst_passes_at_once_and_then_the_rate_holds() {
        let start = Instant::now();
        let rate = rate(10, 2);
        let mut bucket = Bucket::new(start);
        let at_once = (0..100).filter(|_| bucket.take(&rate, 1, start)).count();
        assert_eq!(at_once, 20);
        // The next one a tenth of a second later, and not before.
        assert!(!bucket.take(&rate, 1, start + 99 * MILLISECOND));
        assert!(bucket.take(&rate, 1, start + 100 * MILLISECOND));
        assert!(!bucket.take(&rate, 1, start + 199 * MILLISECOND));
        assert!(bucket.take(&rate, 1, start + 200 * MILLISECOND));
    }

    #[test]
    fn what_is_larger_than_the_bucket_passes_and_is_paid_for() {
        let start = Instant::now();
        let rate = rate(1_000, 1);
        let mut bucket = Bucket::new(start);
        assert!(bucket.take(&rate, 10_000, start));
        assert!(!bucket.take(&rate, 1, start + 9_000 * MILLISECOND));
        assert!(bucket.take(&rate, 1, start + 9_001 * MILLISECOND));
    }

    #[test]
    fn what_happens_anyway_owes_at_most_a_burst() {
        let start = Instant::now();
        let rate = rate(10, 2);
        let mut bucket = Bucket::new(start);
        for _ in 0..1_000 {
            bucket.charge(&rate, 1_000, start);
        }
        assert!(!bucket.has_any(&rate, start + 2_099 * MILLISECOND));
        assert!(bucket.has_any(&rate, start + 2_100 * MILLISECOND));
        assert!(!bucket.is_full(start + 3_999 * MILLISECOND));
        assert!(bucket.is_full(start + 4_000 * MILLISECOND));
    }

    #[test]
    fn another_rate_neither_gives_nor_takes_tokens() {
        let start = Instant::now();
        let left = |bucket: &Bucket, rate: &Rate, at| {
            let mut bucket = *bucket;
            (0..10_000).take_while(|_| bucket.take(rate, 1, at)).count()
        };
        let (slow, fast, long) = (rate(10, 2), rate(100, 2), rate(10, 60));
        let mut bucket = Bucket::new(start);
        for _ in 0..8 {
            assert!(bucket.take(&slow, 1, start));
        }
        for (is, expected) in [(fast, 12), (long, 12), (rate(5, 1), 5)] {
            let mut changed = bucket;
            changed.change_rate(&slow, &is, start);
            assert_eq!(left(&changed, &is, start), expected, "{is:?}");
        }
        // An empty one stays empty, and fills at the new rate.
        while bucket.take(&slow, 1, start) {}
        bucket.change_rate(&slow, &fast, start);
        assert_eq!(left(&bucket, &fast, start), 0);
        assert_eq!(left(&bucket, &fast, start + 100 * MILLISECOND), 10);
        // A full one holds no more than before, and what is too much for it is lost.
        let mut full = Bucket::new(start);
        full.change_rate(&slow, &long, start);
        assert_eq!(left(&full, &long, start), 20);
        full.change_rate(&long, &rate(1, 1), start);
        assert_eq!(left(&full, &rate(1, 1), start), 1);
        // A debt lasts as long as before.
        let mut owing = Bucket::new(start);
        owing.take(&slow, 50, start);
        owing.change_rate(&slow, &rate(1, 1), start);
        assert!(!owing.has_any(&rate(1, 1), start + 3_999 * MILLISECOND));
        assert!(owing.has_any(&rate(1, 1), start + 4_000 * MILLISECOND));
    }

    #[test]
    fn nothing_overflows() {
        let start = Instant::now();
        let rate = Rate {
            tokens: 1,
            per: Duration::from_secs(3_600),
            burst: Duration::from_secs(1),
        };
        let mut bucket = Bucket::new(start);
        // Full, it grants, though a token is more than it holds.
        assert!(bucket.take(&rate, u64::MAX, start));
        bucket.charge(&rate, u64::MAX, start);
        assert!(!bucket.take(&rate, u64::MAX, start));
    }

    proptest! {
        /// Over any window, no more is granted than the burst, the rate's share of the window, and
        /// the one message that overdraws; and a client that keeps to the rate is never refused.
        #[test]
        fn grants_keep_to_the_rate(
            tokens in 1_u64..1_000,
            burst in 1_u64..5,
            asks in prop::collection::vec((0_u64..200, 1_u64..50), 1..300),
        ) {
            let rate = rate(tokens, burst);
            let start = Instant::now();
            let (mut bucket, mut now, mut granted, mut last) = (Bucket::new(start), start, 0, 0);
            // The dumb model: an allowance in thousandths that grows every millisecond.
            let full = 1_000 * (tokens * burst) as i64;
            let mut allowance = full;
            for (wait, asked) in asks {
                now += wait as u32 * MILLISECOND;
                allowance = full.min(allowance + (wait * tokens) as i64);
                let expected = allowance >= 1_000;
                // Within a token's thousandth of the edge rounding may decide.
                let near = (allowance - 1_000).abs() <= tokens as i64;
                let took = bucket.take(&rate, asked, now);
                prop_assert!(took == expected || near, "{took} with {allowance} left");
                if took {
                    allowance -= 1_000 * asked as i64;
                    granted += asked;
                    last = asked;
                }
            }
            let passed = now.duration_since(start).as_millis() as u64;
            prop_assert!(granted <= tokens * burst + tokens * passed / 1_000 + last + 1);
        }
    }
}
