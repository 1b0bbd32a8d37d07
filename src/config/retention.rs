//! The text of `BUZZ_RETENTION`, read into rules.
//!
//! Rules stand between semicolons, what a rule says between spaces:
//! `kinds=0,3,10000-19999 keep; kinds=1,6,7 age=90d; kinds=* age=2y count=1000000`. An age has a
//! unit, a rule has kinds, and a rule that can never apply is a fault, so that what is meant and what
//! is done cannot differ in silence.

use std::ops::RangeInclusive;

use crate::limits::{RETENTION_AGE_SECONDS_MAX, RETENTION_RULES_MAX};
use crate::store::retention::{Retention, Rule};

/// What is accepted, for messages.
pub const FORM: &str = "rules such as `kinds=0,3,10000-19999 keep; kinds=1,6,7 age=90d; \
                        kinds=* age=2y count=1000000`, the first that has an event's kind applies";

/// Units of an age, in seconds.
const UNITS: &[(&str, u64)] = &[
    ("s", 1),
    ("min", 60),
    ("h", 3_600),
    ("d", 86_400),
    ("w", 7 * 86_400),
    ("y", 365 * 86_400),
];

/// Reads the rules.
///
/// # Errors
///
/// Which rule cannot be read or can never apply, and what to write instead.
pub fn parse(text: &str) -> Result<Retention, String> {
    let text = text.trim().trim_end_matches(';');
    let mut rules = Vec::new();
    for (at, text) in text.split(';').enumerate() {
        let named = |fault: String| format!("rule {}: {fault}", at + 1);
        rules.push(rule(text).map_err(named)?);
    }
    if rules.len() > RETENTION_RULES_MAX {
        return Err(format!("at most {RETENTION_RULES_MAX} rules"));
    }
    Retention::new(rules).map_err(|idle| {
        format!(
            "rule {}: earlier rules have all of its kinds, so it never applies; put it before \
             them (a range and `*` leave out 5 and 62, requests to delete and to vanish)",
            idle + 1
        )
    })
}

fn rule(text: &str) -> Result<Rule, String> {
    let (mut kinds, mut age, mut count, mut keep) = (None, None, None, None);
    for field in text.split_whitespace() {
        let twice = match field.split_once('=') {
            Some(("kinds", list)) => kinds.replace(read_kinds(list)?).is_some(),
            Some(("age", text)) => age.replace(read_age(text)?).is_some(),
            Some(("count", text)) => count.replace(read_count(text)?).is_some(),
            None if field == "keep" => keep.replace(()).is_some(),
            _ => {
                return Err(format!(
                    "`{field}` is none of kinds=…, age=…, count=… and keep (no space around `=` \
                     and `,`)"
                ));
            }
        };
        if twice {
            return Err(format!("`{field}` says a second time what was said before"));
        }
    }
    let bounded = age.is_some() || count.is_some();
    match (kinds, keep.is_some(), bounded) {
        (None, ..) => Err("it needs kinds=…, such as kinds=1,6,7 or kinds=*".to_owned()),
        (_, false, false) => Err("it needs an age=…, a count=…, or the word keep".to_owned()),
        (_, true, true) => Err("keep is for ever, so without age and count".to_owned()),
        (Some(kinds), ..) => Ok(Rule { kinds, age, count }),
    }
}

fn read_kinds(list: &str) -> Result<Vec<RangeInclusive<u16>>, String> {
    if list == "*" {
        return Ok(vec![0..=u16::MAX]);
    }
    let one = |text: &str| number(text).and_then(|kind| u16::try_from(kind).ok());
    let range = |text: &str| match text.split_once('-') {
        None => one(text).map(|kind| kind..=kind),
        Some((first, last)) => {
            let range = one(first)?..=one(last)?;
            (!range.is_empty()).then_some(range)
        }
    };
    let ranges = list.split(',').map(|text| {
        range(text).ok_or_else(|| {
            format!(
                "`{text}` is neither a kind from 0 to 65535 nor a range such as 1000-9999, the \
                 lower first"
            )
        })
    });
    ranges.collect()
}

fn read_age(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (amount, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    let seconds = number(amount)
        .zip(unit)
        .and_then(|(amount, (_, seconds))| amount.checked_mul(*seconds));
    let range = 1..=RETENTION_AGE_SECONDS_MAX;
    seconds.filter(|age| range.contains(age)).ok_or_else(|| {
        format!("`age={text}` is not a number and a unit (s, min, h, d, w, y) up to 100y")
    })
}

fn read_count(text: &str) -> Result<u64, String> {
    let count = number(text).filter(|count| *count > 0);
    count.ok_or_else(|| format!("`count={text}` is not a whole number of events, at least 1"))
}

/// Digits alone: `parse` would accept a leading plus sign.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_in_their_order() {
        let text = " kinds=0,3,10000-19999 keep;kinds=1,6,7  age=90d ; count=100000 kinds=*;";
        let retention = parse(text).expect("rules");
        let rule = |kinds: &[_], age, count| Rule {
            kinds: kinds.to_vec(),
            age,
            count,
        };
        let expected = [
            rule(&[0..=0, 3..=3, 10_000..=19_999], None, None),
            rule(&[1..=1, 6..=6, 7..=7], Some(90 * 86_400), None),
            rule(&[0..=u16::MAX], None, Some(100_000)),
        ];
        assert_eq!(retention.rules(), expected);
    }

    #[test]
    fn an_age_has_a_unit() {
        for (text, seconds) in [
            ("1s", 1),
            ("30min", 1_800),
            ("36h", 129_600),
            ("1d", 86_400),
            ("2w", 1_209_600),
            ("100y", 3_153_600_000),
        ] {
            let rules = parse(&format!("kinds=1 age={text}"));
            assert_eq!(
                rules.expect("rules").rules()[0].age,
                Some(seconds),
                "{text}"
            );
        }
        for text in [
            "90",
            "d",
            "1m",
            "1 d",
            "1D",
            "+1d",
            "-1d",
            "1.5d",
            "0d",
            "101y",
            "",
            "99999999999999999999y",
            "18446744073709551615w",
        ] {
            let fault = parse(&format!("kinds=1 age={text}")).expect_err(text);
            assert!(fault.starts_with("rule 1: "), "{fault}");
        }
    }

    #[test]
    fn junk_is_told_by_its_rule_and_its_fix() {
        for (text, words) in [
            ("kinds=1 age=1d; kinds=2", "rule 2: it needs an age="),
            ("kinds=1 age=1d;; kinds=2 keep", "rule 2: it needs kinds="),
            ("age=1d", "rule 1: it needs kinds="),
            ("kinds=1 keep age=1d", "keep is for ever"),
            ("kinds=1 kinds=2 age=1d", "a second time"),
            ("kinds=1, 6 age=1d", "`` is neither a kind"),
            ("kinds=1,6, age=1d", "`` is neither a kind"),
            ("kinds=1 ,6 age=1d", "`,6` is none of"),
            ("kinds = 1 age=1d", "`kinds` is none of"),
            ("kind=1 age=1d", "`kind=1` is none of"),
            ("kinds=1 max_age=1d", "`max_age=1d` is none of"),
            ("kinds=65536 age=1d", "`65536` is neither a kind"),
            ("kinds=9-1 age=1d", "`9-1` is neither a kind"),
            ("kinds=-1 age=1d", "`-1` is neither a kind"),
            ("kinds=1- age=1d", "`1-` is neither a kind"),
            ("kinds=1 count=0", "at least 1"),
            ("kinds=1 count=1k", "`count=1k`"),
            (
                "kinds=* age=1y; kinds=1 age=1d",
                "rule 2: earlier rules have all of its kinds",
            ),
            ("keep", "rule 1: it needs kinds="),
            (";", "rule 1: it needs kinds="),
        ] {
            let fault = parse(text).expect_err(text);
            assert!(fault.contains(words), "{text}: {fault}");
        }
        let many = "kinds=1 keep; ".repeat(RETENTION_RULES_MAX + 1);
        assert!(parse(&many).expect_err("too many").contains("at most"));
    }
}
