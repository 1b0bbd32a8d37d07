//! Which index answers a filter: the rules of the embedded store, over its tables' counterparts.
//!
//! In this order: `ids`; a tag that names one thing (`#a #d #e #i #q`); `authors` with `kinds`, one run
//! a pair; `authors`, one run each; any other tag, one run a value; `kinds`; time.
//!
//! Of several tags the one with the fewest values is taken. A rule that would need more than
//! [`DB_RUNS_MAX`] runs is passed over. What the runs leave open is the sieve's: it is applied to the
//! rows that a statement has read, whose number is bounded.

use super::keys::{Half, age_of, signed};
use crate::limits::{COMBINED_KINDS_MAX, DB_RUNS_MAX, DB_RUNS_WIDE_MIN};
use crate::nostr::filter::Filter;

/// Letters of tags whose value names one thing.
const NAMING_LETTERS: &[u8] = b"adeiq";

/// The runs of an index that hold all that may match.
#[derive(Debug)]
pub enum Runs {
    /// Looked up one by one.
    Ids(Vec<Vec<u8>>),
    /// Everything.
    Time,
    /// One a kind.
    Kinds(Vec<i32>),
    /// One an author.
    Authors(Vec<Vec<u8>>),
    /// One an author and kind.
    Pairs(Vec<Vec<u8>>, Vec<i32>),
    /// One a tag.
    Tags(Vec<Half>),
}

/// How a filter is answered.
#[derive(Debug)]
pub struct Plan {
    /// Where to look.
    pub runs: Runs,
    /// What an event's kind must be among.
    pub kinds: Option<Vec<i32>>,
    /// What an event's author must be among.
    pub authors: Option<Vec<Vec<u8>>>,
    /// Tags of which an event must have one of each group.
    pub tags: Vec<Half>,
    /// The group of each of `tags`.
    pub groups: Vec<i32>,
    /// The place before the newest that is wanted.
    pub start: Place,
    /// The highest age that is wanted.
    pub oldest: i64,
}

/// A place in the order of answers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    /// `-created_at`.
    pub age: i64,
    /// Of the id.
    pub half: Half,
}

impl Plan {
    /// Chooses. `None`: nothing can match.
    pub fn of(filter: &Filter) -> Option<Plan> {
        let beyond = filter.since.is_some_and(|since| since > i64::MAX as u64);
        if filter.is_void() || beyond {
            return None;
        }
        // Just before what is as old as `until`: no half is higher.
        let until = filter.until.filter(|until| *until < i64::MAX as u64);
        let start = Place {
            age: until.map_or(i64::MIN, |until| age_of(until) - 1),
            half: Half([0xff; 16]),
        };
        let mut plan = Plan {
            runs: Runs::Time,
            kinds: None,
            authors: None,
            tags: Vec::new(),
            groups: Vec::new(),
            start,
            oldest: -filter.since.map_or(0, signed),
        };
        let by_tag = plan.choose(filter);
        let rest = filter
            .tags
            .iter()
            .filter(|(letter, _)| Some(*letter) != by_tag);
        for (group, (letter, values)) in rest.enumerate() {
            for value in values {
                plan.tags.push(Half::of_tag(*letter, value));
                plan.groups.push(group as i32);
            }
        }
        Some(plan)
    }

    /// Another plan for the newest of many authors: who looks at everybody's newest first often needs
    /// nothing more. `None`: there are too few authors for that.
    pub fn wide(&self, filter: &Filter) -> Option<Plan> {
        let by_author = matches!(self.runs, Runs::Authors(_) | Runs::Pairs(..));
        if !by_author || self.len() < DB_RUNS_WIDE_MIN {
            return None;
        }
        let authors = filter.authors.as_ref()?;
        let kinds = filter.kinds.as_deref().map(numbers);
        let (runs, kinds) = match kinds {
            Some(kinds) if kinds.len() <= COMBINED_KINDS_MAX => (Runs::Kinds(kinds), None),
            kinds => (Runs::Time, kinds),
        };
        Some(Plan {
            runs,
            kinds,
            authors: Some(bytes(authors)),
            tags: self.tags.clone(),
            groups: self.groups.clone(),
            start: self.start,
            oldest: self.oldest,
        })
    }

    /// The number of runs.
    pub fn len(&self) -> usize {
        match &self.runs {
            Runs::Ids(_) | Runs::Time => 1,
            Runs::Kinds(kinds) => kinds.len(),
            Runs::Authors(authors) => authors.len(),
            Runs::Pairs(_, kinds) => kinds.len(),
            Runs::Tags(tags) => tags.len(),
        }
    }

    /// Whether a row of a run may fail the sieve.
    pub fn is_sieved(&self) -> bool {
        self.kinds.is_some() || self.authors.is_some() || !self.tags.is_empty()
    }

    /// Sets the runs, and the sieve of kinds and authors. Returns the tag whose runs they are.
    fn choose(&mut self, filter: &Filter) -> Option<u8> {
        let bytes =
            |keys: &[[u8; 32]]| -> Vec<Vec<u8>> { keys.iter().map(|k| k.to_vec()).collect() };
        let numbers = |kinds: &[u16]| -> Vec<i32> { kinds.iter().map(|k| (*k).into()).collect() };
        self.kinds = filter.kinds.as_deref().map(numbers);
        self.authors = filter.authors.as_deref().map(bytes);
        if let Some(ids) = &filter.ids {
            self.runs = Runs::Ids(bytes(ids));
            return None;
        }
        let fits = |runs: usize| runs <= DB_RUNS_MAX;
        let authors = filter
            .authors
            .as_deref()
            .filter(|authors| fits(authors.len()));
        let kinds = filter.kinds.as_deref().filter(|kinds| fits(kinds.len()));
        let tag = filter.tags.iter().filter(|(_, values)| fits(values.len()));
        // A naming tag first, then the fewest values.
        let tag = tag.min_by_key(|(l, values)| (!NAMING_LETTERS.contains(l), values.len()));
        let names = tag.is_some_and(|(letter, _)| NAMING_LETTERS.contains(letter));
        match (tag, authors, kinds) {
            (Some((letter, values)), author, _) if author.is_none() || names => {
                let of_tag = |value: &[u8]| Half::of_tag(*letter, value);
                self.runs = Runs::Tags(values.iter().map(|value| of_tag(value)).collect());
                return Some(*letter);
            }
            (_, Some(authors), Some(kinds)) if fits(authors.len() * kinds.len()) => {
                let pairs = authors.iter().flat_map(|author| {
                    kinds
                        .iter()
                        .map(move |kind| (author.to_vec(), i32::from(*kind)))
                });
                let (authors, kinds) = pairs.unzip();
                self.runs = Runs::Pairs(authors, kinds);
                (self.authors, self.kinds) = (None, None);
            }
            (_, Some(authors), _) => {
                self.runs = Runs::Authors(bytes(authors));
                self.authors = None;
            }
            (_, None, Some(kinds)) => {
                self.runs = Runs::Kinds(numbers(kinds));
                self.kinds = None;
            }
            (_, None, None) => {}
        }
        None
    }
}

fn bytes(keys: &[[u8; 32]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}

fn numbers(kinds: &[u16]) -> Vec<i32> {
    kinds.iter().map(|kind| (*kind).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(json: &str) -> Plan {
        Plan::of(&Filter::parse(json, 100_000).expect("a filter")).expect("a plan")
    }

    fn keys(count: usize) -> String {
        let keys: Vec<String> = (0..count).map(|n| format!("\"{n:064x}\"")).collect();
        keys.join(",")
    }

    #[test]
    fn takes_the_narrowest_index() {
        let (a, e) = (keys(2), keys(1));
        let of = |json: &str| match plan(json).runs {
            Runs::Ids(_) => "ids",
            Runs::Time => "time",
            Runs::Kinds(_) => "kinds",
            Runs::Authors(_) => "authors",
            Runs::Pairs(..) => "pairs",
            Runs::Tags(_) => "tags",
        };
        assert_eq!(of("{}"), "time");
        assert_eq!(of(r#"{"kinds":[1]}"#), "kinds");
        assert_eq!(of(&format!(r#"{{"authors":[{a}]}}"#)), "authors");
        assert_eq!(of(&format!(r#"{{"authors":[{a}],"kinds":[1]}}"#)), "pairs");
        assert_eq!(of(&format!(r##"{{"#e":[{e}],"kinds":[1]}}"##)), "tags");
        assert_eq!(of(&format!(r##"{{"#e":[{e}],"authors":[{a}]}}"##)), "tags");
        assert_eq!(
            of(&format!(r##"{{"#t":["x"],"authors":[{a}]}}"##)),
            "authors"
        );
        assert_eq!(of(&format!(r##"{{"ids":[{e}],"#t":["x"]}}"##)), "ids");
        let many = keys(DB_RUNS_MAX + 1);
        assert_eq!(of(&format!(r#"{{"authors":[{many}]}}"#)), "time");
        assert_eq!(
            of(&format!(r#"{{"authors":[{many}],"kinds":[1]}}"#)),
            "kinds"
        );
    }

    #[test]
    fn what_the_runs_leave_open_is_sieved() {
        let a = keys(2);
        let tagged = plan(&format!(r##"{{"#t":["x"],"authors":[{a}],"kinds":[1]}}"##));
        assert!(matches!(tagged.runs, Runs::Pairs(..)) && tagged.tags.len() == 1);
        assert!(tagged.kinds.is_none() && tagged.authors.is_none());
        let two = plan(r##"{"#t":["x","y"],"#r":["z"],"kinds":[1]}"##);
        assert!(matches!(&two.runs, Runs::Tags(tags) if tags.len() == 1));
        assert_eq!((two.groups, two.kinds), (vec![0, 0], Some(vec![1])));
        assert!(!plan(r#"{"kinds":[1,2]}"#).is_sieved());
    }

    #[test]
    fn a_look_at_everybody_keeps_to_the_times_and_the_tags() {
        let many = keys(DB_RUNS_WIDE_MIN);
        let text = format!(r##"{{"authors":[{many}],"#t":["x"],"since":5,"until":9}}"##);
        let filter = Filter::parse(&text, 100_000).expect("a filter");
        let narrow = Plan::of(&filter).expect("a plan");
        let wide = narrow.wide(&filter).expect("a wide one");
        assert!(matches!(wide.runs, Runs::Time));
        assert_eq!((wide.start, wide.oldest), (narrow.start, narrow.oldest));
        assert_eq!((wide.tags.len(), wide.groups.len()), (1, 1));
        assert_eq!(wide.authors.map_or(0, |a| a.len()), DB_RUNS_WIDE_MIN);
    }

    #[test]
    fn times_bound_the_runs() {
        let plan = plan(r#"{"since":5,"until":9}"#);
        assert_eq!((plan.start.age, plan.oldest), (-10, -5));
        let at = |created_at: u64, half| Place {
            age: age_of(created_at),
            half: Half([half; 16]),
        };
        assert!(at(9, 0) > plan.start && at(10, 0xff) <= plan.start);
        assert!(Plan::of(&Filter::parse(r#"{"since":9,"until":5}"#, 9).unwrap()).is_none());
        let far = Filter::parse(r#"{"since":18446744073709551615}"#, 9).unwrap();
        assert!(Plan::of(&far).is_none());
    }
}
