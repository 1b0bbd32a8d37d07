//! The questions of the query workload and their right answers, worked out from the events that a
//! relay was filled with.
//!
//! A question asks for `limit` events. Where enough authors or tags have as many, only those are
//! asked about, so that pages are full; else the ones with the most.

use std::collections::HashMap;

use serde_json::json;

use crate::dice::Dice;
use crate::events::{Stored, short};
use crate::wire::ShortId;

/// What a filter names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum By {
    /// One or several ids.
    Id,
    /// An author and kind 1.
    AuthorKind,
    /// Notes and reposts of many authors.
    Feed,
    /// A tag of this name.
    Tag(u8),
}

/// One filter and what it must bring.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Question {
    /// The filter's JSON.
    pub filter: String,
    /// The ids that must come, in their order.
    pub expected: Vec<ShortId>,
}

/// Kinds of a feed.
const FEED_KINDS: [u16; 2] = [1, 6];
/// Keys that are asked about where none has a full page.
const KEYS_MIN: usize = 20;

/// Makes `count` questions, the same for the same events and seed. `values` is how many ids or
/// authors a filter names, `limit` how many events it asks for.
pub fn make(
    events: &[Stored],
    by: By,
    values: usize,
    limit: usize,
    count: usize,
    seed: u64,
) -> Vec<Question> {
    if events.is_empty() {
        return Vec::new();
    }
    let mut sorted: Vec<&Stored> = events.iter().collect();
    // The order of an answer (NIP-01): newest first, and by id where the time is the same.
    sorted.sort_by(|a, b| b.created_at.cmp(&a.created_at).then(a.id.cmp(&b.id)));
    let mut dice = Dice::new(seed, 0x7175_6572_7900);
    match by {
        By::Id => (0..count)
            .map(|_| by_ids(&sorted, values, &mut dice))
            .collect(),
        By::AuthorKind => {
            let groups = groups(&sorted, limit, |event| {
                let author = (event.kind == 1).then(|| event.pubkey.clone());
                author.into_iter().collect()
            });
            one_group(
                &groups,
                limit,
                count,
                &mut dice,
                |author| json!({"authors": [author], "kinds": [1]}),
            )
        }
        By::Tag(name) => {
            let groups = groups(&sorted, limit, |event| {
                let own = event.tags.iter().filter(|(tag, _)| *tag == name);
                own.map(|(_, value)| value.clone()).collect()
            });
            let key = format!("#{}", char::from(name));
            one_group(
                &groups,
                limit,
                count,
                &mut dice,
                |value| json!({&key: [value]}),
            )
        }
        By::Feed => feeds(&sorted, values, limit, count, &mut dice),
    }
}

fn by_ids(sorted: &[&Stored], values: usize, dice: &mut Dice) -> Question {
    let mut picked: Vec<usize> = (0..values.min(sorted.len()))
        .map(|_| dice.below(sorted.len() as u64) as usize)
        .collect();
    picked.sort_unstable();
    picked.dedup();
    let ids: Vec<String> = picked
        .iter()
        .map(|at| const_hex::encode(sorted[*at].id))
        .collect();
    Question {
        filter: json!({"ids": ids}).to_string(),
        expected: picked.iter().map(|at| short(&sorted[*at].id)).collect(),
    }
}

/// Values and the events that have them, newest first; the ones worth asking about.
fn groups<'a>(
    sorted: &[&'a Stored],
    limit: usize,
    values: impl Fn(&Stored) -> Vec<String>,
) -> Vec<(String, Vec<&'a Stored>)> {
    let mut by_value: HashMap<String, Vec<&Stored>> = HashMap::new();
    for event in sorted {
        let mut own = values(event);
        own.sort_unstable();
        own.dedup();
        for value in own {
            by_value.entry(value).or_default().push(event);
        }
    }
    let mut groups: Vec<_> = by_value.into_iter().collect();
    groups.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0)));
    let full = groups
        .iter()
        .take_while(|group| group.1.len() >= limit)
        .count();
    groups.truncate(if full > 0 { full } else { KEYS_MIN });
    groups
}

fn one_group(
    groups: &[(String, Vec<&Stored>)],
    limit: usize,
    count: usize,
    dice: &mut Dice,
    filter: impl Fn(&str) -> serde_json::Value,
) -> Vec<Question> {
    if groups.is_empty() {
        return Vec::new();
    }
    (0..count)
        .map(|_| {
            let (value, events) = &groups[dice.below(groups.len() as u64) as usize];
            let mut filter = filter(value);
            filter["limit"] = limit.into();
            Question {
                filter: filter.to_string(),
                expected: events
                    .iter()
                    .take(limit)
                    .map(|event| short(&event.id))
                    .collect(),
            }
        })
        .collect()
}

fn feeds(
    sorted: &[&Stored],
    values: usize,
    limit: usize,
    count: usize,
    dice: &mut Dice,
) -> Vec<Question> {
    let mut by_author: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, event) in sorted
        .iter()
        .enumerate()
        .filter(|(_, event)| FEED_KINDS.contains(&event.kind))
    {
        by_author.entry(&event.pubkey).or_default().push(at);
    }
    let mut authors: Vec<&str> = by_author.keys().copied().collect();
    authors.sort_unstable();
    (0..count)
        .map(|_| {
            let mut followed: Vec<&str> = (0..values)
                .map(|_| authors[dice.below(authors.len() as u64) as usize])
                .collect();
            followed.sort_unstable();
            followed.dedup();
            let mut found: Vec<usize> = followed
                .iter()
                .flat_map(|author| &by_author[author])
                .copied()
                .collect();
            found.sort_unstable();
            found.truncate(limit);
            Question {
                filter: json!({"authors": followed, "kinds": FEED_KINDS, "limit": limit})
                    .to_string(),
                expected: found.into_iter().map(|at| short(&sorted[at].id)).collect(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Maker, STORED_TIME_DEFAULT};

    /// Answers a filter the slow way, from its JSON.
    fn answer(events: &[Stored], filter: &str) -> Vec<ShortId> {
        let filter: serde_json::Value = serde_json::from_str(filter).unwrap();
        let names = |key: &str, value: &str| {
            filter[key].is_null()
                || filter[key]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|one| one == value)
        };
        let kinds = |kind: u16| {
            filter["kinds"].is_null()
                || filter["kinds"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|one| *one == kind)
        };
        let tagged = |event: &Stored| {
            filter
                .as_object()
                .unwrap()
                .keys()
                .filter(|key| key.starts_with('#'))
                .all(|key| {
                    event
                        .tags
                        .iter()
                        .any(|(name, value)| key.as_bytes()[1] == *name && names(key, value))
                })
        };
        let mut found: Vec<&Stored> = events
            .iter()
            .filter(|event| names("ids", &const_hex::encode(event.id)))
            .filter(|event| names("authors", &event.pubkey) && kinds(event.kind) && tagged(event))
            .collect();
        found.sort_by(|a, b| b.created_at.cmp(&a.created_at).then(a.id.cmp(&b.id)));
        found.truncate(
            filter["limit"]
                .as_u64()
                .map_or(usize::MAX, |limit| limit as usize),
        );
        found.into_iter().map(|event| short(&event.id)).collect()
    }

    #[test]
    fn answers_are_those_of_a_dumb_store() {
        let maker = Maker::stored(3, STORED_TIME_DEFAULT);
        let mut events: Vec<Stored> = (0..2_000).map(|index| maker.stored_event(index)).collect();
        events.reverse();
        for by in [
            By::Id,
            By::AuthorKind,
            By::Feed,
            By::Tag(b'e'),
            By::Tag(b'p'),
            By::Tag(b't'),
        ] {
            for limit in [1, 7, 5_000] {
                let questions = make(&events, by, 5, limit, 20, 1);
                assert_eq!(questions.len(), 20);
                for question in &questions {
                    assert!(!question.expected.is_empty());
                    assert_eq!(
                        question.expected,
                        answer(&events, &question.filter),
                        "{}",
                        question.filter
                    );
                }
                if by != By::Id && by != By::Feed && limit == 7 {
                    assert!(
                        questions
                            .iter()
                            .all(|question| question.expected.len() == 7),
                        "full pages"
                    );
                }
            }
        }
        assert_eq!(
            make(&events, By::Feed, 5, 7, 20, 1),
            make(&events, By::Feed, 5, 7, 20, 1)
        );
        assert_ne!(
            make(&events, By::Feed, 5, 7, 20, 1),
            make(&events, By::Feed, 5, 7, 20, 2)
        );
    }

    #[test]
    fn nothing_stored_nothing_asked() {
        assert!(make(&[], By::Id, 1, 1, 5, 1).is_empty());
    }
}
