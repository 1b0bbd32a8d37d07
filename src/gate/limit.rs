//! The gate's values: a limit, a change of it, and the gate at one instant.

use std::fmt;
use std::num::NonZeroU32;

use super::word::{COUNT_MAX, NO_LIMIT, Word};

/// How many permits may be held at once. Ordered: a count is below none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// At most so many. The gate counts to 2 097 150; a larger count is that.
    Count(NonZeroU32),
    /// No limit. What is in flight is counted all the same, so that a later lowering knows it.
    None,
}

impl Limit {
    /// A limit of `count`, or none if that is 0: the way a limit is shown in metrics.
    pub const fn from_count(count: u32) -> Limit {
        match NonZeroU32::new(count) {
            Some(count) => Limit::Count(count),
            None => Limit::None,
        }
    }

    /// The limit that a flag's value asks for under a ceiling: a positive value up to the
    /// ceiling; 0, a negative value or no value (a wrong type is no value) is the ceiling.
    pub fn from_flag(value: Option<i64>, ceiling: Limit) -> Limit {
        match value {
            Some(value) if value > 0 => {
                Limit::from_count(u32::try_from(value).unwrap_or(u32::MAX)).min(ceiling)
            }
            _ => ceiling,
        }
    }

    /// The count, or 0 for none: the way a limit is shown in metrics.
    pub const fn as_count(self) -> u32 {
        match self {
            Limit::Count(count) => count.get(),
            Limit::None => 0,
        }
    }

    /// The limit as the word's field holds it.
    pub(super) fn field(self) -> u32 {
        match self {
            Limit::Count(count) => count.get().min(COUNT_MAX),
            Limit::None => NO_LIMIT,
        }
    }

    pub(super) fn from_field(field: u32) -> Limit {
        if field == NO_LIMIT {
            Limit::None
        } else {
            Limit::from_count(field)
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Count(count) => count.fmt(f),
            Limit::None => f.write_str("none"),
        }
    }
}

/// The gate at one instant: all parts come from one load, so they agree with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The applied limit.
    pub limit: Limit,
    /// Permits held, and offers not yet claimed.
    pub in_flight: u32,
    /// Waiters that have no offer.
    pub waiting: u32,
    /// In flight above the limit.
    pub debt: u32,
    /// No permit is given any more.
    pub closed: bool,
}

impl Snapshot {
    pub(super) fn of(word: Word) -> Snapshot {
        Snapshot {
            limit: Limit::from_field(word.limit()),
            in_flight: word.in_flight(),
            waiting: word.waiting(),
            debt: word.in_flight().saturating_sub(word.limit()),
            closed: word.is_closed(),
        }
    }

    /// Permits that could be given now; `None` if there is no limit.
    pub fn free(&self) -> Option<u32> {
        match self.limit {
            Limit::Count(count) => Some(count.get().saturating_sub(self.in_flight)),
            Limit::None => None,
        }
    }
}

/// What a call of [`set_limit`](super::ConcurrencyGate::set_limit) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a change of the limit is to be logged"]
pub struct Applied {
    /// The limit before.
    pub old: Limit,
    /// The limit now, clamped.
    pub new: Limit,
}

impl Applied {
    /// Whether the limit is another than before.
    pub fn changed(&self) -> bool {
        self.old != self.new
    }
}
