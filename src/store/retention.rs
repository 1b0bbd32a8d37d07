//! How long events are kept, as the operator says it: rules by kinds, each with an age, a count, both,
//! or neither, which keeps its kinds for ever. To an event the first rule applies that has its kind.
//!
//! Requests to delete and to vanish stand against what they took back for as long as they are there
//! to be passed on. So they belong to a rule only where it names their kind alone, as `5`, and to
//! none by a range or by `*`.
//!
//! A removed event leaves nothing behind: it may come again while a rule would keep it.

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use crate::nostr::kind::{self, Class};

/// Which events are kept, for how long, and how many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    rules: Vec<Rule>,
    /// Every kind that a rule has, and which; ascending, no two overlap.
    kinds: Vec<(RangeInclusive<u16>, usize)>,
}

/// What holds for the events of some kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its kinds; earlier rules may have taken some of them.
    pub kinds: Vec<RangeInclusive<u16>>,
    /// Seconds after its `created_at` at which an event is too old; `None`: never.
    pub age: Option<u64>,
    /// How many events of all its kinds together are kept, the newest; `None`: any number.
    pub count: Option<u64>,
}

impl Retention {
    /// Rules, the first first.
    ///
    /// # Errors
    ///
    /// The place of a rule, from 0, whose kinds have all been taken by earlier rules.
    pub fn new(rules: Vec<Rule>) -> Result<Retention, usize> {
        let mut kinds: Vec<(RangeInclusive<u16>, usize)> = Vec::new();
        for kind in 0..=u16::MAX {
            let Some(rule) = rules.iter().position(|rule| rule.names(kind)) else {
                continue;
            };
            match kinds.last_mut() {
                Some((range, of)) if *of == rule && range.end().checked_add(1) == Some(kind) => {
                    *range = *range.start()..=kind;
                }
                _ => kinds.push((kind..=kind, rule)),
            }
        }
        let taken = |rule| kinds.iter().any(|(_, of)| *of == rule);
        match (0..rules.len()).find(|rule| !taken(*rule)) {
            Some(idle) => Err(idle),
            None => Ok(Retention { rules, kinds }),
        }
    }

    /// The rules, the first first.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether nothing is ever removed.
    pub fn is_idle(&self) -> bool {
        let idle = |rule: &Rule| rule.age.is_none() && rule.count.is_none();
        self.rules.iter().all(idle)
    }

    /// The place of the rule that applies to a kind.
    pub fn rule_of(&self, kind: u16) -> Option<usize> {
        let place = self.kinds.binary_search_by(|(range, _)| {
            if range.contains(&kind) {
                Ordering::Equal
            } else {
                range.start().cmp(&kind)
            }
        });
        place.ok().map(|place| self.kinds[place].1)
    }

    /// Whether an event of `kind` and `created_at` would be too old at `now`, both in seconds since
    /// 1970, and so be removed at once. Requests to delete and to vanish never are: they have work to
    /// do; nor are ephemeral events, which are not kept at all.
    pub fn refuses(&self, kind: u16, created_at: u64, now: u64) -> bool {
        if is_request(kind) || Class::of(kind) == Class::Ephemeral {
            return false;
        }
        let age = self.rule_of(kind).and_then(|rule| self.rules[rule].age);
        age.is_some_and(|age| created_at.saturating_add(age) < now)
    }
}

impl Rule {
    /// Whether the rule is meant for a kind.
    fn names(&self, kind: u16) -> bool {
        let names = |range: &RangeInclusive<u16>| match is_request(kind) {
            true => *range == (kind..=kind),
            false => range.contains(&kind),
        };
        self.kinds.iter().any(names)
    }
}

/// Whether events of a kind take back others, and are never refused for their age.
pub fn is_request(kind: u16) -> bool {
    kind == kind::DELETION || kind == kind::VANISH
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(kinds: &[RangeInclusive<u16>], age: Option<u64>, count: Option<u64>) -> Rule {
        let kinds = kinds.to_vec();
        Rule { kinds, age, count }
    }

    #[test]
    fn the_first_rule_that_has_the_kind_applies() {
        let rules = vec![
            rule(&[0..=0, 3..=3], None, None),
            rule(&[0..=9], Some(100), None),
            rule(&[0..=u16::MAX], None, Some(7)),
        ];
        let retention = Retention::new(rules).expect("rules");
        let of = [0, 1, 3, 9, 10, u16::MAX].map(|kind| retention.rule_of(kind));
        assert_eq!(of, [Some(0), Some(1), Some(0), Some(1), Some(2), Some(2)]);
        assert!(!retention.is_idle());
    }

    #[test]
    fn requests_are_named_alone_or_not_at_all() {
        let by_range = Retention::new(vec![rule(&[0..=u16::MAX], Some(1), None)]).expect("rules");
        assert_eq!([5, 62].map(|kind| by_range.rule_of(kind)), [None, None]);
        assert_eq!(
            [4, 6].map(|kind| by_range.rule_of(kind)),
            [Some(0), Some(0)]
        );
        let named = vec![
            rule(&[0..=9], Some(1), None),
            rule(&[5..=5, 62..=62], Some(9), None),
        ];
        let named = Retention::new(named).expect("rules");
        assert_eq!([5, 62].map(|kind| named.rule_of(kind)), [Some(1), Some(1)]);
        assert!(!named.refuses(5, 0, 1_000), "it has work to do");
    }

    #[test]
    fn a_rule_that_can_never_apply_is_named() {
        let all = rule(&[0..=u16::MAX], Some(1), None);
        let one = rule(&[1..=1], Some(2), None);
        assert_eq!(Retention::new(vec![all.clone(), one.clone()]), Err(1));
        assert!(Retention::new(vec![one, all]).is_ok());
        let requests = rule(&[4..=5], Some(1), None);
        assert!(Retention::new(vec![rule(&[4..=4], None, None), requests]) == Err(1));
    }

    #[test]
    fn an_event_is_refused_when_it_is_older_than_its_rule_says() {
        let retention = Retention::new(vec![rule(&[1..=1], Some(100), None)]).expect("rules");
        assert!(!retention.refuses(1, 900, 1_000));
        assert!(retention.refuses(1, 899, 1_000));
        assert!(!retention.refuses(2, 0, 1_000));
        let all = Retention::new(vec![rule(&[0..=u16::MAX], Some(100), None)]).expect("rules");
        assert!(all.refuses(19_999, 0, 1_000) && !all.refuses(20_000, 0, 1_000));
        assert!(!retention.refuses(1, u64::MAX, 1_000));
        assert!(Retention::default().is_idle() && !Retention::default().refuses(1, 0, 1_000));
    }

    proptest! {
        #[test]
        fn a_kind_has_the_rule_that_a_look_at_all_rules_finds(
            ranges in prop::collection::vec((0..12u16, 0..12u16), 1..8),
        ) {
            let rules: Vec<Rule> = ranges
                .iter()
                .map(|(from, more)| rule(&[*from..=from + more], Some(1), None))
                .collect();
            let expected = |kind: u16| {
                let fits = |rule: &Rule| match kind {
                    5 | 62 => rule.kinds[0] == (kind..=kind),
                    _ => rule.kinds[0].contains(&kind),
                };
                rules.iter().position(fits)
            };
            match Retention::new(rules.clone()) {
                Ok(retention) => {
                    for kind in 0..30 {
                        prop_assert_eq!(retention.rule_of(kind), expected(kind));
                    }
                }
                Err(idle) => prop_assert!((0..30).all(|kind| expected(kind) != Some(idle))),
            }
        }
    }
}
