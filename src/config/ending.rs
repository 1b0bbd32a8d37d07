//! The times of the drain.

use std::time::Duration;

use super::read::Reader;
use crate::limits;

/// Times of the drain. The window, the flush of its last close and that client's answer fit before
/// the hard stop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DrainBudget {
    /// Window over which closes are spread; zero: all at once.
    pub jitter: Duration,
    /// Between the signal and the first close.
    pub grace: Duration,
    /// From the end of the grace to the exit, whatever is left.
    pub hard_stop: Duration,
}

/// The drain's times, and the sum that must fit before the hard stop.
pub(super) fn drain(reader: &mut Reader<'_>) -> DrainBudget {
    const JITTER: &str = "BUZZ_DRAIN_JITTER_MS";
    // Any whole number, also one that no integer type holds: the window is clamped, not refused.
    let form = "a whole number of milliseconds, 0 or more";
    let asked = reader.value(JITTER, form, |text| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    });
    let jitter = asked.min(limits::DRAIN_JITTER_MS_MAX);
    if jitter != asked {
        reader.adjust(JITTER, jitter);
        reader.note(format!(
            "{JITTER} lowered from {asked} to {jitter}, the longest window"
        ));
    }
    let grace = reader.number("BUZZ_DRAIN_GRACE_MS", 0..=limits::DRAIN_SETTING_MS_MAX);
    let hard_stop = reader.number("BUZZ_HARD_STOP_MS", 0..=limits::DRAIN_SETTING_MS_MAX);

    let (flush, answer) = (limits::DRAIN_FLUSH_MS_MAX, limits::CLOSE_ANSWER_MS_MAX);
    let needed = jitter + flush + answer;
    if needed > hard_stop {
        reader.fault(format!(
            "BUZZ_HARD_STOP_MS: {hard_stop} milliseconds are too short: {JITTER} {jitter} + \
             {flush} to flush the last close + {answer} for its answer = {needed}; raise \
             BUZZ_HARD_STOP_MS to at least {needed} or lower {JITTER}"
        ));
    }
    let whole = grace
        + hard_stop
        + limits::TRANSFER_STOP_MS_MAX
        + limits::STORE_CLOSE_MS_MAX
        + limits::FLAGS_CLOSE_MS_MAX;
    if whole > limits::TERMINATION_GRACE_SECONDS * 1_000 {
        reader.note(format!(
            "a restart may take {whole} milliseconds (grace + hard stop + imports + store + flags): \
             deploy with a termination grace period above that"
        ));
    }
    DrainBudget {
        jitter: Duration::from_millis(jitter),
        grace: Duration::from_millis(grace),
        hard_stop: Duration::from_millis(hard_stop),
    }
}
