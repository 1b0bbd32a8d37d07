//! Which index answers a filter.
//!
//! The narrowest index wins, by rules that look at the filter alone:
//!
//! 1. `ids`: each id is looked up.
//! 2. A tag that names one thing (`#a #d #e #i #q`): few events refer to one event, address or link.
//! 3. `authors` with `kinds`: one run for each pair.
//! 4. `authors`: one run each.
//! 5. Any other tag: one run for each value.
//! 6. `kinds`: one run each.
//! 7. Time.
//!
//! Of several tags the one with the fewest values is taken. A rule that would need more than
//! [`MERGE_STREAMS_MAX`] runs is passed over, so a filter with very many values reads a wider index
//! and sieves it. What the index does not decide is checked entry by entry: kinds and the head of the
//! pubkey from the entry itself, the rest against the event.

use super::layout::{self, Entry, Index, Key};
use crate::limits::MERGE_STREAMS_MAX;
use crate::nostr::filter::Filter;

/// Letters of tags whose value names one thing.
const NAMING_LETTERS: &[u8] = b"adeiq";

/// How a filter is answered.
#[derive(Debug)]
pub enum Plan {
    /// Nothing can match.
    Nothing,
    /// Look up each id.
    Ids(Sieve),
    /// Merge these runs.
    Runs(Runs, Sieve),
}

/// The runs of one index that hold all that may match.
#[derive(Debug)]
pub struct Runs {
    /// The index.
    pub index: Index,
    prefixes: Vec<u8>,
    ends: Vec<u32>,
}

impl Runs {
    /// Their number, at least 1.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// What the keys of a run begin with.
    pub fn prefix(&self, run: usize) -> &[u8] {
        let start = if run == 0 { 0 } else { self.ends[run - 1] };
        &self.prefixes[start as usize..self.ends[run] as usize]
    }

    fn push(&mut self, prefix: &[u8]) {
        self.prefixes.extend_from_slice(prefix);
        self.ends.push(self.prefixes.len() as u32);
    }
}

/// What an entry must still pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sieve {
    /// `!until`: the youngest age wanted.
    pub youngest: u64,
    /// `!since`: the oldest age wanted.
    pub oldest: u64,
    /// Compare the entry's kind with the filter's.
    pub kinds: bool,
    /// Compare the head of the entry's pubkey, then the event's pubkey.
    pub authors: bool,
    /// Compare the event with the filter in full.
    pub event: bool,
}

impl Sieve {
    /// Whether the entry itself leaves the event a chance.
    #[inline]
    pub fn passes(&self, filter: &Filter, entry: &Entry) -> bool {
        if entry.age < self.youngest || entry.age > self.oldest {
            return false;
        }
        let kind_fits = || {
            filter
                .kinds
                .as_ref()
                .is_none_or(|kinds| kinds.binary_search(&entry.kind).is_ok())
        };
        let author_fits = || {
            let known = filter.authors.as_ref();
            known.is_none_or(|known| known.binary_search_by_key(&entry.who, layout::who).is_ok())
        };
        (!self.kinds || kind_fits()) && (!self.authors || author_fits())
    }

    /// Whether an entry that passed says nothing of the event yet.
    pub fn needs_event(&self) -> bool {
        self.authors || self.event
    }
}

/// Chooses.
pub fn plan(filter: &Filter) -> Plan {
    let empty = |len: Option<usize>| len == Some(0);
    let ids = filter.ids.as_ref().map(Vec::len);
    let authors = filter.authors.as_ref().map(Vec::len);
    let kinds = filter.kinds.as_ref().map(Vec::len);
    let nothing = empty(ids)
        || empty(authors)
        || empty(kinds)
        || filter.tags.iter().any(|(_, values)| values.is_empty())
        || filter
            .since
            .zip(filter.until)
            .is_some_and(|(since, until)| since > until);
    if nothing {
        return Plan::Nothing;
    }
    let sieve = Sieve {
        youngest: filter.until.map_or(0, |until| !until),
        oldest: filter.since.map_or(u64::MAX, |since| !since),
        kinds: kinds.is_some(),
        authors: authors.is_some(),
        event: !filter.tags.is_empty(),
    };
    if ids.is_some() {
        return Plan::Ids(sieve);
    }
    runs(filter, sieve)
}

fn runs(filter: &Filter, sieve: Sieve) -> Plan {
    let fits = |runs: usize| runs <= MERGE_STREAMS_MAX;
    let authors = filter
        .authors
        .as_deref()
        .filter(|authors| fits(authors.len()));
    let kinds = filter.kinds.as_deref().filter(|kinds| fits(kinds.len()));
    let pairs = authors
        .zip(kinds)
        .filter(|(authors, kinds)| fits(authors.len() * kinds.len()));
    let tag = filter.tags.iter().filter(|(_, values)| fits(values.len()));
    // A naming tag first, then the fewest values.
    let tag = tag.min_by_key(|(letter, values)| (!NAMING_LETTERS.contains(letter), values.len()));
    let names = tag.is_some_and(|(letter, _)| NAMING_LETTERS.contains(letter));

    let mut key = Key::new();
    match (tag, authors) {
        (Some(tag), None) => by_tag(filter, tag, sieve),
        (Some(tag), Some(_)) if names => by_tag(filter, tag, sieve),
        (_, Some(authors)) => {
            let index = if pairs.is_some() {
                Index::AuthorKind
            } else {
                Index::Author
            };
            let mut runs = Runs {
                index,
                prefixes: Vec::new(),
                ends: Vec::new(),
            };
            for author in authors {
                let Some((_, kinds)) = pairs else {
                    runs.push(author);
                    continue;
                };
                for kind in kinds {
                    key.truncate(0);
                    runs.push(key.push(author).push(&kind.to_be_bytes()).as_bytes());
                }
            }
            let sieve = Sieve {
                kinds: sieve.kinds && pairs.is_none(),
                authors: false,
                ..sieve
            };
            Plan::Runs(runs, sieve)
        }
        (None, None) => {
            let mut runs = Runs {
                index: Index::Time,
                prefixes: Vec::new(),
                ends: Vec::new(),
            };
            let Some(kinds) = kinds else {
                runs.push(&[]);
                return Plan::Runs(runs, sieve);
            };
            runs.index = Index::Kind;
            kinds.iter().for_each(|kind| runs.push(&kind.to_be_bytes()));
            Plan::Runs(
                runs,
                Sieve {
                    kinds: false,
                    ..sieve
                },
            )
        }
    }
}

fn by_tag(filter: &Filter, (letter, values): &(u8, Vec<Box<[u8]>>), sieve: Sieve) -> Plan {
    let mut runs = Runs {
        index: Index::Tag,
        prefixes: Vec::new(),
        ends: Vec::new(),
    };
    let mut key = Key::new();
    let mut hashed = false;
    for value in values {
        key.truncate(0);
        hashed |= layout::push_tag(&mut key, *letter, value);
        runs.push(key.as_bytes());
    }
    Plan::Runs(
        runs,
        Sieve {
            event: hashed || filter.tags.len() > 1,
            ..sieve
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter() -> Filter {
        Filter {
            ids: None,
            authors: None,
            kinds: None,
            tags: Vec::new(),
            since: None,
            until: None,
            limit: None,
        }
    }

    fn many(count: usize) -> Vec<[u8; 32]> {
        let mut keys = vec![[0; 32]; count];
        for (n, key) in keys.iter_mut().enumerate() {
            key[..4].copy_from_slice(&(n as u32).to_be_bytes());
        }
        keys
    }

    fn value(text: &str) -> Box<[u8]> {
        text.as_bytes().into()
    }

    fn index_of(filter: &Filter) -> (Index, usize, Sieve) {
        match plan(filter) {
            Plan::Runs(runs, sieve) => (runs.index, runs.len(), sieve),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn takes_the_narrowest_index() {
        let kinds = Some(vec![1, 7]);
        let authors = Some(many(3));
        let t = vec![(b't', vec![value("nostr")])];
        let e = vec![(b'e', vec![value("x")])];
        let of = |authors: &Option<Vec<_>>, kinds: &Option<Vec<_>>, tags: &Vec<_>| {
            let (index, runs, _) = index_of(&Filter {
                authors: authors.clone(),
                kinds: kinds.clone(),
                tags: tags.clone(),
                ..filter()
            });
            (index, runs)
        };
        assert_eq!(of(&None, &None, &vec![]), (Index::Time, 1));
        assert_eq!(of(&None, &kinds, &vec![]), (Index::Kind, 2));
        assert_eq!(of(&authors, &None, &vec![]), (Index::Author, 3));
        assert_eq!(of(&authors, &kinds, &vec![]), (Index::AuthorKind, 6));
        assert_eq!(of(&None, &kinds, &t), (Index::Tag, 1));
        assert_eq!(of(&authors, &kinds, &t), (Index::AuthorKind, 6));
        assert_eq!(of(&authors, &kinds, &e), (Index::Tag, 1));
        let both = vec![
            (b'e', vec![value("x"), value("y")]),
            (b't', vec![value("z")]),
        ];
        assert_eq!(of(&None, &None, &both), (Index::Tag, 2));
    }

    #[test]
    fn sieves_what_the_index_leaves_open() {
        let (_, _, sieve) = index_of(&Filter {
            authors: Some(many(2)),
            kinds: Some(vec![1]),
            ..filter()
        });
        assert!(!sieve.kinds && !sieve.authors && !sieve.event);
        let tags = vec![(b'e', vec![value("x")])];
        let (_, _, sieve) = index_of(&Filter {
            authors: Some(many(2)),
            kinds: Some(vec![1]),
            tags: tags.clone(),
            ..filter()
        });
        assert!(sieve.kinds && sieve.authors && !sieve.event);
        let (_, _, sieve) = index_of(&Filter {
            tags: vec![(b't', vec![value(&"x".repeat(65))])],
            ..filter()
        });
        assert!(sieve.event, "a hashed value is checked against the event");
        let (_, _, sieve) = index_of(&Filter {
            tags: vec![tags[0].clone(), (b't', vec![value("z")])],
            ..filter()
        });
        assert!(sieve.event, "the second tag is checked against the event");
    }

    #[test]
    fn too_many_values_fall_back_to_a_wider_index() {
        let half = MERGE_STREAMS_MAX / 2 + 1;
        let (index, runs, sieve) = index_of(&Filter {
            authors: Some(many(half)),
            kinds: Some(vec![1, 2]),
            ..filter()
        });
        assert_eq!((index, runs), (Index::Author, half));
        assert!(sieve.kinds && !sieve.authors);
        let too_many = Some(many(MERGE_STREAMS_MAX + 1));
        let (index, _, sieve) = index_of(&Filter {
            authors: too_many.clone(),
            kinds: Some(vec![1]),
            ..filter()
        });
        assert_eq!(index, Index::Kind);
        assert!(!sieve.kinds && sieve.authors);
        let (index, _, sieve) = index_of(&Filter {
            authors: too_many,
            ..filter()
        });
        assert_eq!(index, Index::Time);
        assert!(sieve.authors);
        let values = (0..=MERGE_STREAMS_MAX)
            .map(|n| value(&n.to_string()))
            .collect();
        let (index, _, sieve) = index_of(&Filter {
            tags: vec![(b't', values)],
            ..filter()
        });
        assert_eq!(index, Index::Time);
        assert!(sieve.event);
    }

    #[test]
    fn what_cannot_match_reads_nothing() {
        let nothing = [
            Filter {
                ids: Some(vec![]),
                ..filter()
            },
            Filter {
                authors: Some(vec![]),
                ..filter()
            },
            Filter {
                kinds: Some(vec![]),
                ..filter()
            },
            Filter {
                tags: vec![(b't', vec![])],
                ..filter()
            },
            Filter {
                since: Some(2),
                until: Some(1),
                ..filter()
            },
        ];
        for filter in nothing {
            assert!(matches!(plan(&filter), Plan::Nothing), "{filter:?}");
        }
    }
}
