//! When each connection is told to leave: a pure function of the connections of each shard, the
//! window and a seed.
//!
//! The window is cut into as many equal slots as there are connections, over all shards. Slots are
//! dealt to the shards so that each shard's share is spread over the whole window and the shards
//! are out of phase; in each slot one connection is closed, at a uniform point inside it. So every
//! connection's own time is uniform over the window, as if each drew its own, while the closes as
//! a whole are even. (Drawing alone gives peaks of 2.8 times the mean in 10 ms at 10 000
//! connections; shards that are even each by itself but in phase are worse than drawing.)
//!
//! Invariants:
//! - One delay for each connection, each in [1 ms, window].
//! - Sorted over all shards, delay `i` lies in slot `i`: no bin of any width holds more than its
//!   share, but for the two slots at its ends.
//! - The same arguments give the same plan.
//!
//! The deal is rotated by a random number of slots, so that a lone connection has no fixed time
//! and two processes with as many connections do not close in step.

use std::time::Duration;

use fastrand::Rng;

/// The first moment of a window: a close is never due in the moment that the drain starts.
pub const FIRST: Duration = Duration::from_millis(1);

/// For each shard, for each of its connections in the order of its table, when it is closed,
/// counted from the start of the closes.
///
/// A shard whose connections have become fewer leaves the surplus delays unused: nobody moves
/// forward, and those that are left are still spread over the whole window.
///
/// `window` is at least 1 ms; shorter ones count as 1 ms. No window at all is another path: then
/// nothing is planned.
pub fn plan(connections: &[usize], window: Duration, seed: u64) -> Vec<Vec<Duration>> {
    let mut random = Rng::with_seed(seed);
    let owners = deal(connections);
    let slots = owners.len() as u64;
    let width = window.saturating_sub(FIRST).as_nanos() as u64;
    // In 128 bits: with the bounds of today it would fit 64, but nothing here relies on them.
    let edge = |slot: u64| (u128::from(slot) * u128::from(width) / u128::from(slots.max(1))) as u64;

    let mut parts: Vec<Vec<Duration>> = connections
        .iter()
        .map(|count| Vec::with_capacity(*count))
        .collect();
    let rotation = random.u64(0..slots.max(1));
    for (rank, owner) in owners.into_iter().enumerate() {
        let slot = (rank as u64 + rotation) % slots;
        let (start, end) = (edge(slot), edge(slot + 1));
        let point = if start < end {
            random.u64(start..end)
        } else {
            start
        };
        parts[owner].push(FIRST + Duration::from_nanos(point));
    }
    for part in &mut parts {
        random.shuffle(part);
    }
    parts
}

/// The shard of each slot, before the rotation.
///
/// Connection `j` of shard `s` wants to be at `(j + (s + ½) / S) / N` of the window, where `S` is
/// the number of shards and `N` of this shard's connections; the slots are filled in that order.
/// Shards of equal size take turns, and a small one comes at even distances between the others.
fn deal(connections: &[usize]) -> Vec<usize> {
    let shards = connections.len();
    let mut wishes: Vec<(u128, u128, usize)> = connections
        .iter()
        .enumerate()
        .flat_map(|(shard, &count)| {
            (0..count).map(move |nth| {
                // The fraction above, with 2·S in numerator and denominator.
                let numerator = 2 * shards * nth + 2 * shard + 1;
                (numerator as u128, count as u128, shard)
            })
        })
        .collect();
    // Compared as fractions, exactly, so that the order does not hang on rounding.
    wishes.sort_unstable_by(|(a, of_a, shard_a), (b, of_b, shard_b)| {
        (a * of_b).cmp(&(b * of_a)).then(shard_a.cmp(shard_b))
    });
    wishes.into_iter().map(|(_, _, shard)| shard).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use proptest::prelude::*;

    const WINDOW: Duration = Duration::from_secs(20);

    fn sorted(parts: &[Vec<Duration>]) -> Vec<Duration> {
        let mut all: Vec<Duration> = parts.iter().flatten().copied().collect();
        all.sort_unstable();
        all
    }

    /// Closes in the fullest bin over the mean of all, bins counted from the window's start.
    fn peak_over_mean(all: &[Duration], window: Duration, bin: Duration) -> f64 {
        let bins = (window.as_nanos() / bin.as_nanos()) as usize;
        let mut counts = vec![0_usize; bins];
        for delay in all {
            let at = ((*delay - FIRST).as_nanos() / bin.as_nanos()) as usize;
            counts[at.min(bins - 1)] += 1;
        }
        let peak = counts.iter().max().copied().unwrap_or(0) as f64;
        peak / (all.len() as f64 / bins as f64)
    }

    /// The bounds that hold for every plan, by counting.
    fn check(connections: &[usize], window: Duration, seed: u64) {
        let parts = plan(connections, window, seed);
        let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(lengths, connections, "one delay for each connection");
        let all = sorted(&parts);
        let width = window.saturating_sub(FIRST).as_nanos();
        for (index, delay) in all.iter().enumerate() {
            assert!(*delay >= FIRST, "{delay:?} is before the window");
            assert!(*delay <= window.max(FIRST), "{delay:?} is after it");
            // One close in each slot.
            let nanos = (*delay - FIRST).as_nanos();
            let slot = |nth: usize| nth as u128 * width / all.len() as u128;
            assert!(nanos >= slot(index), "close {index} is early: {delay:?}");
            assert!(nanos <= slot(index + 1), "close {index} is late: {delay:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_shards_and_any_window_are_even(
            connections in prop::collection::vec(0_usize..400, 0..20),
            millis in 1_u64..20_001,
            seed: u64,
        ) {
            check(&connections, Duration::from_millis(millis), seed);
        }

        #[test]
        fn the_same_seed_gives_the_same_plan_and_another_one_another(
            connections in prop::collection::vec(10_usize..100, 1..8),
            seed: u64,
        ) {
            let first = plan(&connections, WINDOW, seed);
            prop_assert_eq!(&first, &plan(&connections, WINDOW, seed));
            prop_assert_ne!(first, plan(&connections, WINDOW, seed ^ 1));
        }

        /// In any run of slots, a shard has its share, within the shards that can be in between.
        #[test]
        fn every_shard_s_share_is_spread_over_the_whole_window(
            connections in prop::collection::vec(0_usize..300, 1..12),
        ) {
            let owners = deal(&connections);
            let shards = connections.len() as f64;
            for (shard, count) in connections.iter().enumerate() {
                let share = *count as f64 / owners.len().max(1) as f64;
                let mut had = 0.0;
                for (slot, owner) in owners.iter().enumerate() {
                    had += f64::from(u8::from(*owner == shard));
                    let due = (slot + 1) as f64 * share;
                    prop_assert!((had - due).abs() <= 2.0 + shards * share, "{had} of {due}");
                }
            }
        }
    }

    #[test]
    fn none_one_and_a_hundred_thousand() {
        check(&[], WINDOW, 1);
        check(&[0, 0, 0], WINDOW, 1);
        check(&[0, 1, 0], WINDOW, 1);
        check(&[100_000 / 16; 16], WINDOW, 1);
        check(&[1, 99_990, 9], WINDOW, 1);
        assert_eq!(plan(&[0, 0], WINDOW, 1), [vec![], vec![]]);
    }

    #[test]
    fn a_window_of_one_millisecond_closes_all_at_its_only_moment() {
        let parts = plan(&[3, 5], FIRST, 7);
        assert!(parts.iter().flatten().all(|delay| *delay == FIRST));
        assert_eq!(parts.iter().flatten().count(), 8);
    }

    /// Or the oldest connections of every shard would always be the first to go.
    #[test]
    fn the_order_of_the_table_says_nothing_about_the_time() {
        let part = &plan(&[500, 500], WINDOW, 3)[0];
        let rising = part.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((150..=350).contains(&rising), "{rising} of 499 rise");
    }

    #[test]
    fn equal_shards_take_turns() {
        let owners = deal(&[50; 4]);
        for turn in owners.chunks(4) {
            let mut turn = turn.to_vec();
            turn.sort_unstable();
            assert_eq!(turn, [0, 1, 2, 3]);
        }
    }

    /// Without a phase of its own each small shard would have its first slot at the very start.
    #[test]
    fn small_shards_come_at_even_distances() {
        let owners = deal(&[96, 1, 1, 1, 1]);
        let single = |(slot, owner): (usize, &usize)| (*owner != 0).then_some(slot);
        let singles: Vec<usize> = owners.iter().enumerate().filter_map(single).collect();
        let apart = singles.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(apart.min() >= Some(15), "{singles:?}");
    }

    /// The table of docs/drain.md.
    #[test]
    fn ten_thousand_closes_are_even_at_every_scale() {
        for seed in 0..20 {
            let all = sorted(&plan(&[625; 16], WINDOW + FIRST, seed));
            for millis in [10, 100, 1_000] {
                let peak = peak_over_mean(&all, WINDOW, Duration::from_millis(millis));
                assert!((peak - 1.0).abs() < 1e-9, "{peak} in {millis} ms");
            }
        }
    }

    /// What the plan replaces: the same measure tells it from every connection drawing its own.
    #[test]
    fn drawing_alone_is_not_even() {
        let mut random = Rng::with_seed(1);
        let width = WINDOW.as_nanos() as u64;
        let draws = (0..10_000).map(|_| FIRST + Duration::from_nanos(random.u64(0..width)));
        let all: Vec<Duration> = draws.collect();
        assert!(peak_over_mean(&all, WINDOW, Duration::from_millis(10)) > 2.0);
        assert!(peak_over_mean(&all, WINDOW, Duration::from_millis(100)) > 1.2);
    }

    /// One connection over many seeds: everywhere in the window, as if it drew its own time.
    #[test]
    fn a_connection_s_own_time_is_uniform() {
        let mut tenths = [0; 10];
        for seed in 0..4_000 {
            let delay = plan(&[3, 5], WINDOW, seed)[1][2];
            let tenth = (delay.as_nanos() * 10 / WINDOW.as_nanos()) as usize;
            tenths[tenth.min(9)] += 1;
        }
        // 400 each; six standard deviations are 114.
        let even = tenths.iter().all(|count| (286..=514).contains(count));
        assert!(even, "{tenths:?}");
    }
}
