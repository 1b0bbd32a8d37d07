//! Numbers for people: few digits, a unit, and a dash for what is not known.

use std::time::Duration;

use crate::words;

/// What is not known.
pub const UNKNOWN: &str = "-";

/// How many: at most five characters.
pub fn count(count: u64) -> String {
    const STEPS: &[(u64, &str)] = &[
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1_000, "k"),
    ];
    // Four digits are read as fast as three and a letter.
    if count < 10_000 {
        return count.to_string();
    }
    scaled(count, STEPS, "")
}

/// How many of what, as [`count`] writes it.
pub fn counted_short(number: u64, noun: &str) -> String {
    format!("{} {}", count(number), words::noun(number, noun))
}

/// How much: of a power of 1024.
pub fn bytes(bytes: u64) -> String {
    const STEPS: &[(u64, &str)] = &[
        (1 << 40, " TiB"),
        (1 << 30, " GiB"),
        (1 << 20, " MiB"),
        (1 << 10, " KiB"),
    ];
    scaled(bytes, STEPS, " B")
}

/// How many a second.
pub fn rate(a_second: Option<f64>) -> String {
    match a_second {
        None => UNKNOWN.to_owned(),
        Some(rate) if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => count(rate.round() as u64),
    }
}

/// How long something takes.
pub fn took(seconds: Option<f64>) -> String {
    match seconds {
        None => UNKNOWN.to_owned(),
        Some(seconds) if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

/// How long ago, or for how long.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{minutes} min {} s", seconds % 60),
        3_600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// A limit; none is no limit.
pub fn limit(limit: Option<u64>) -> String {
    limit.map_or_else(|| "none".to_owned(), count)
}

fn scaled(number: u64, steps: &[(u64, &str)], plain: &str) -> String {
    let step = steps.iter().find(|(step, _)| number >= *step);
    let Some((step, unit)) = step else {
        return format!("{number}{plain}");
    };
    let scaled = number as f64 / *step as f64;
    // Cut, not rounded: 999.96 must not become a thousand of the smaller unit.
    let digits = if scaled < 100.0 { 1 } else { 0 };
    let power = 10_f64.powi(digits);
    let cut = (scaled * power).floor() / power;
    format!("{cut:.*}{unit}", digits as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_digits_and_a_unit() {
        for (number, shown) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10.0k"),
            (99_999, "99.9k"),
            (999_999, "999k"),
            (1_234_567, "1.2M"),
            (u64::MAX, "18446744T"),
        ] {
            assert_eq!(count(number), shown);
        }
        for (number, shown) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (5 << 20, "5.0 MiB"),
            (300 << 30, "300 GiB"),
        ] {
            assert_eq!(bytes(number), shown);
        }
        for (number, shown) in [
            (None, "-"),
            (Some(0.0), "0"),
            (Some(0.25), "0.2"),
            (Some(9.96), "10"),
            (Some(12_345.6), "12.3k"),
        ] {
            assert_eq!(rate(number), shown);
        }
        for (number, shown) in [
            (None, "-"),
            (Some(0.000_25), "250 us"),
            (Some(0.005), "5.0 ms"),
            (Some(2.0), "2.0 s"),
        ] {
            assert_eq!(took(number), shown);
        }
        for (seconds, shown) in [
            (5, "5 s"),
            (65, "1 min 5 s"),
            (3_725, "1 h 2 min"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), shown);
        }
        assert_eq!((limit(None), limit(Some(4))), ("none".into(), "4".into()));
    }
}
