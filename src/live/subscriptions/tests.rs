use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index as Pick, subsequence};

use super::*;
use crate::live::keys::Key;
use crate::nostr::testing::Author;

fn event(id: u8, author: u8, kind: u16, created_at: u64, tags: &[(char, String)]) -> Event {
    let tags: Vec<String> = tags
        .iter()
        .map(|(name, value)| format!("[\"{name}\",\"{value}\"]"))
        .collect();
    let (id, author) = (
        format!("{id:02x}").repeat(32),
        format!("{author:02x}").repeat(32),
    );
    let (tags, sig) = (tags.join(","), "00".repeat(64));
    Event::parse(&format!(
        "{{\"id\":\"{id}\",\"pubkey\":\"{author}\",\"created_at\":{created_at},\"kind\":{kind},\
         \"tags\":[{tags}],\"content\":\"\",\"sig\":\"{sig}\"}}"
    ))
    .expect("an event")
}

fn filters(texts: &[&str]) -> Vec<Filter> {
    texts
        .iter()
        .map(|text| Filter::parse(text, 100_000).expect("a filter"))
        .collect()
}

fn found(subscriptions: &mut Subscriptions, event: &Event) -> Vec<u64> {
    let mut out = vec![SubKey(u64::MAX)];
    subscriptions.matching(event, &mut out);
    let mut numbers: Vec<u64> = out.into_iter().map(|SubKey(number)| number).collect();
    numbers.sort_unstable();
    numbers
}

fn assert_no_garbage(subscriptions: &Subscriptions) {
    assert!(subscriptions.slots.is_empty());
    assert!(subscriptions.index.is_empty());
    assert!(subscriptions.registered.is_empty());
}

#[test]
fn each_dimension_finds_its_own() {
    let (one, two) = ("01".repeat(32), "02".repeat(32));
    let shapes = [
        format!("{{\"ids\":[\"{one}\"]}}"),
        format!("{{\"authors\":[\"{one}\"]}}"),
        format!("{{\"authors\":[\"{one}\"],\"kinds\":[1]}}"),
        format!("{{\"authors\":[\"{one}\"],\"kinds\":[1,2,3,4,5,6,7]}}"),
        "{\"kinds\":[1]}".to_owned(),
        "{\"#t\":[\"a\"]}".to_owned(),
        "{\"#t\":[\"a\"],\"kinds\":[1]}".to_owned(),
        "{\"#t\":[\"a\"],\"kinds\":[1,2,3,4,5,6,7]}".to_owned(),
        format!("{{\"#t\":[\"a\",\"b\"],\"authors\":[\"{one}\"]}}"),
        format!("{{\"#t\":[\"a\"],\"authors\":[\"{one}\",\"{two}\"]}}"),
        "{}".to_owned(),
        "{\"since\":5}".to_owned(),
    ];
    let mut subscriptions = Subscriptions::new();
    let places: Vec<Place> = shapes
        .iter()
        .enumerate()
        .map(|(number, shape)| subscriptions.insert(SubKey(number as u64), &filters(&[shape])))
        .collect();
    let tag = [('t', "a".to_owned())];
    let all: Vec<u64> = (0..shapes.len() as u64).collect();
    assert_eq!(found(&mut subscriptions, &event(1, 1, 1, 5, &tag)), all);
    assert_eq!(
        found(&mut subscriptions, &event(2, 1, 1, 5, &[])),
        [1, 2, 3, 4, 10, 11]
    );
    assert_eq!(
        found(&mut subscriptions, &event(2, 1, 9, 5, &tag)),
        [1, 5, 8, 9, 10, 11]
    );
    assert_eq!(
        found(&mut subscriptions, &event(2, 3, 1, 4, &tag)),
        [4, 5, 6, 7, 10]
    );
    assert_eq!(found(&mut subscriptions, &event(1, 3, 9, 4, &[])), [0, 10]);
    for (number, place) in all.into_iter().zip(places) {
        assert_eq!(subscriptions.remove(place, SubKey(99)), None);
        assert!(subscriptions.remove(place, SubKey(number)).is_some());
        assert_eq!(subscriptions.remove(place, SubKey(number)), None);
    }
    assert_no_garbage(&subscriptions);
}

#[test]
fn a_key_comes_once_however_often_it_matches() {
    let author = "01".repeat(32);
    let same = format!("{{\"authors\":[\"{author}\"]}}");
    let mut subscriptions = Subscriptions::new();
    let place = subscriptions.insert(
        SubKey(7),
        &filters(&[
            &same,
            &same,
            "{\"kinds\":[1]}",
            "{\"#t\":[\"a\",\"b\"]}",
            "{}",
        ]),
    );
    let tags = ["a", "b", "a"].map(|value| ('t', value.to_owned()));
    assert_eq!(found(&mut subscriptions, &event(1, 1, 1, 0, &tags)), [7]);
    assert_eq!(subscriptions.remove(place, SubKey(7)), Some(5));
    assert_no_garbage(&subscriptions);
}

#[test]
fn a_filter_that_can_match_nothing_occupies_nothing() {
    let mut subscriptions = Subscriptions::new();
    let void = [
        "{\"kinds\":[]}",
        "{\"ids\":[]}",
        "{\"#t\":[],\"kinds\":[1]}",
        "{\"since\":2,\"until\":1}",
    ];
    let place = subscriptions.insert(SubKey(1), &filters(&void));
    assert!(subscriptions.index.is_empty());
    assert_eq!(found(&mut subscriptions, &event(1, 1, 1, 1, &[])), [0; 0]);
    assert_eq!(subscriptions.len(), 1);
    assert_eq!(subscriptions.remove(place, SubKey(1)), Some(0));
    assert_no_garbage(&subscriptions);
}

#[test]
fn tag_values_are_compared_unescaped() {
    let mut subscriptions = Subscriptions::new();
    subscriptions.insert(
        SubKey(1),
        &filters(&["{\"#t\":[\"\\u0061\\n\"],\"kinds\":[1]}"]),
    );
    let event = Author::new(1).event(1, 1, &[&["t", "a\n"]], "");
    assert_eq!(found(&mut subscriptions, &event), [1]);
}

#[test]
fn a_popular_key_gives_its_memory_back() {
    let mut subscriptions = Subscriptions::new();
    let places: Vec<Place> = (0..20_000)
        .map(|number| {
            let author = format!("{{\"authors\":[\"{number:064x}\"]}}");
            subscriptions.insert(SubKey(number), &filters(&["{\"kinds\":[1]}", &author]))
        })
        .collect();
    let remove = |subscriptions: &mut Subscriptions, number: u64| {
        let removed = subscriptions.remove(places[number as usize], SubKey(number));
        assert_eq!(removed, Some(2));
    };
    let kind_1 = event(1, 1, 1, 1, &[]);
    assert_eq!(found(&mut subscriptions, &kind_1).len(), 20_000);
    for number in (0..20_000).filter(|number| number % 100 != 7) {
        remove(&mut subscriptions, number);
    }
    let left: Vec<u64> = (7..20_000).step_by(100).collect();
    assert_eq!(found(&mut subscriptions, &kind_1), left);
    assert!(subscriptions.index.capacity() < 4_000);
    for number in left {
        remove(&mut subscriptions, number);
    }
    assert_no_garbage(&subscriptions);
}

#[test]
fn the_mark_survives_its_wrap() {
    let mut subscriptions = Subscriptions::new();
    subscriptions.insert(SubKey(1), &filters(&["{}"]));
    let event = event(1, 1, 1, 1, &[]);
    assert_eq!(found(&mut subscriptions, &event), [1]);
    // The subscription was last asked at turn 1, and the next turn would be 1 again.
    subscriptions.turn = u32::MAX;
    for _ in 0..3 {
        assert_eq!(found(&mut subscriptions, &event), [1]);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Vec<Filter>),
    Remove(Pick),
    Match {
        id: u8,
        author: u8,
        kind: u16,
        created_at: u64,
        tags: Vec<(char, String)>,
    },
}

const LETTERS: [char; 3] = ['a', 'e', 'P'];
const KINDS: [u16; 7] = [0, 1, 2, 3, 4, 5, 6];

/// `#e` wants an id, in hex. Of the others one has values of one length, one of several.
fn tag_value(letter: char, number: u8) -> String {
    match letter {
        'e' => format!("{number:02x}").repeat(32),
        'P' => {
            ["", "short", "longer", "short"][usize::from(number) % 4].repeat(usize::from(number))
        }
        _ => format!("v{number}"),
    }
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let bytes = || option::weighted(0.4, subsequence(vec![[1; 32], [2; 32], [3; 32]], 0..=3));
    let kinds = option::weighted(0.5, subsequence(KINDS.to_vec(), 0..=7));
    let tags = subsequence(vec![0, 1, 2], 0..=2).prop_flat_map(|letters| {
        vec(subsequence(vec![1_u8, 2, 3, 4], 0..=4), letters.len())
            .prop_map(move |values| (letters.clone(), values))
    });
    let bound = || option::weighted(0.2, 0_u64..4);
    (
        option::weighted(0.2, subsequence(vec![[1; 32], [2; 32], [3; 32]], 0..=3)),
        bytes(),
        kinds,
        tags,
        bound(),
        bound(),
    )
        .prop_map(|(ids, authors, kinds, (letters, values), since, until)| {
            let mut tags: Vec<(u8, Vec<Box<[u8]>>)> = letters
                .into_iter()
                .zip(values)
                .map(|(letter, values)| {
                    let letter = LETTERS[letter];
                    let values = values
                        .into_iter()
                        .map(|value| tag_value(letter, value).into_bytes().into());
                    let mut values: Vec<_> = values.collect();
                    values.sort_unstable();
                    (letter as u8, values)
                })
                .collect();
            tags.sort_unstable();
            Filter {
                ids,
                authors,
                kinds,
                tags,
                since,
                until,
                limit: None,
            }
        })
}

fn any_step() -> impl Strategy<Value = Step> {
    let tag = (0..LETTERS.len(), 1_u8..=4)
        .prop_map(|(letter, value)| (LETTERS[letter], tag_value(LETTERS[letter], value)));
    prop_oneof![
        3 => vec(any_filter(), 1..4).prop_map(Step::Insert),
        2 => any::<Pick>().prop_map(Step::Remove),
        4 => (1_u8..=3, 1_u8..=3, 0_u16..8, 0_u64..4, vec(tag, 0..4))
            .prop_map(|(id, author, kind, created_at, tags)| Step::Match { id, author, kind, created_at, tags }),
    ]
}

/// What subscriptions are, without any cleverness.
type Model = Vec<(Place, u64, Vec<Filter>)>;

fn remove(
    subscriptions: &mut Subscriptions,
    (place, key, filters): &(Place, u64, Vec<Filter>),
) -> Result<(), TestCaseError> {
    let kept = filters.iter().filter(|filter| !filter.is_void());
    let values = kept.map(Filter::value_count).sum();
    prop_assert_eq!(subscriptions.remove(*place, SubKey(*key)), Some(values));
    prop_assert_eq!(subscriptions.remove(*place, SubKey(*key)), None);
    Ok(())
}

fn check_history(steps: Vec<Step>, mask: Key) -> Result<(), TestCaseError> {
    let mut subscriptions = Subscriptions::with_keys(Keys::with_mask(mask));
    let mut model = Model::new();
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Insert(filters) => {
                let place = subscriptions.insert(SubKey(number as u64), &filters);
                model.push((place, number as u64, filters));
            }
            Step::Remove(_) if model.is_empty() => prop_assert!(subscriptions.is_empty()),
            Step::Remove(pick) => {
                let gone = model.swap_remove(pick.index(model.len()));
                remove(&mut subscriptions, &gone)?;
            }
            Step::Match {
                id,
                author,
                kind,
                created_at,
                tags,
            } => {
                let event = event(id, author, kind, created_at, &tags);
                let mut expected: Vec<u64> = model
                    .iter()
                    .filter(|(_, _, filters)| filters.iter().any(|filter| filter.matches(&event)))
                    .map(|(_, key, _)| *key)
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(found(&mut subscriptions, &event), expected);
            }
        }
        prop_assert_eq!(subscriptions.len(), model.len());
    }
    for gone in model {
        remove(&mut subscriptions, &gone)?;
    }
    assert_no_garbage(&subscriptions);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_history_is_as_in_a_plain_list(steps in vec(any_step(), 0..120)) {
        check_history(steps, Key::MAX)?;
    }

    /// Four keys for all values: fingerprints that collide, within a subscription too.
    #[test]
    fn colliding_keys_change_nothing(steps in vec(any_step(), 0..120)) {
        check_history(steps, 3)?;
    }
}
