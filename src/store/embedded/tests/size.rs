//! A store that has reached its size: what is refused, what still works, and how it gets room again.

use super::*;
use crate::store::retention::{Retention, Rule};

/// The smallest size that can be set. A whole share of upkeep touches more pages than its reserve has.
const SMALL: usize = crate::limits::STORE_BYTES_MIN;

fn small(dir: &std::path::Path) -> EmbeddedOptions {
    EmbeddedOptions {
        map_bytes: SMALL,
        ..options(dir)
    }
}

fn key(author: u64) -> [u8; 32] {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&author.to_be_bytes());
    key
}

/// Events with many index entries, spread over all of the indexes' pages, and a page of content each:
/// what an entry leaves in a page that it shares is not counted as free.
fn spread(number: u64) -> Event {
    let content = "x".repeat(3_000);
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = |n: u64| format!("{:016x}", number.rotate_left(n as u32 * 7));
    let values: Vec<String> = (0..12).map(value).collect();
    let tags: Vec<[&str; 2]> = values.iter().map(|value| ["t", value.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    event(
        id(number),
        key(number % 5),
        number % 9_000,
        1,
        &tags,
        &content,
    )
}

/// Fills the store until events are refused. Returns those that were stored.
fn fill(running: &Running) -> Vec<Event> {
    let mut stored = Vec::new();
    for group in 0.. {
        let events: Vec<Event> = (0..50).map(|n| spread(group * 50 + n)).collect();
        let outcomes = running.put(&events);
        let mut refused = 0;
        for (event, outcome) in events.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Stored { .. } => stored.push(event),
                Outcome::Failed(error) if error.kind() == StoreErrorKind::Full => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        if refused == 50 {
            break;
        }
    }
    let usage = running.store.usage().expect("reads");
    let used = usage.used_bytes * 100 / SMALL as u64;
    assert!((70..80).contains(&used), "{usage:?}");
    stored
}

fn deletion(number: u64, of: &[Event]) -> Event {
    let ids: Vec<String> = of
        .iter()
        .map(|event| const_hex::encode(event.id()))
        .collect();
    let tags: Vec<[&str; 2]> = ids.iter().map(|id| ["e", id.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    event(id(u64::MAX - number), *of[0].pubkey(), 10_000, 5, &tags, "")
}

fn is_stored(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Stored { .. })
}

#[test]
fn deletions_make_room_in_a_full_store() {
    let dir = folder();
    let running = Running::open(&small(dir.path()));
    let stored = fill(&running);
    assert!(stored.len() > 1_000, "{}", stored.len());
    // Access lists are edited as ever.
    assert_eq!(
        running
            .store
            .edit_access(&[[3; 32]], List::Banned, true)
            .expect("edits"),
        [true]
    );
    let mine: Vec<Event> = stored
        .iter()
        .filter(|event| *event.pubkey() == key(0))
        .cloned()
        .collect();
    for (n, events) in mine.chunks(20).enumerate() {
        let outcome = running.put_one(&deletion(n as u64, events));
        assert!(is_stored(&outcome), "{outcome:?}");
    }
    let left = audit(&running.store);
    assert!(
        !left
            .values()
            .any(|event| event.kind() == 1 && *event.pubkey() == key(0))
    );
    assert!(running.store.usage().expect("reads").percent() < 100);
    assert!(is_stored(&running.put_one(&spread(1 << 40))));
}

#[test]
fn a_key_vanishes_from_a_full_store() {
    let dir = folder();
    let running = Running::open(&small(dir.path()));
    let stored = fill(&running);
    // Even of one that deletions have filled further.
    let mut requests = 0;
    while is_stored(&running.put_one(&deletion(requests, &stored[..1]))) {
        requests += 1;
    }
    assert!(requests > 10, "{requests}");
    for author in [1, 2] {
        let tags: &[&[&str]] = &[&["relay", "ALL_RELAYS"]];
        let outcome = running.put_one(&event(id(author), key(author), 20_000, 62, tags, ""));
        assert!(is_stored(&outcome), "{outcome:?}");
    }
    let is_left = |event: &Event| event.kind() == 62 || ![key(1), key(2)].contains(event.pubkey());
    assert!(audit(&running.store).values().all(is_left));
    assert!(is_stored(&running.put_one(&spread(1 << 40))));
}

#[test]
fn retention_empties_a_full_store() {
    let dir = folder();
    let running = Running::open(&small(dir.path()));
    let stored = fill(&running);
    drop(running);
    let store = open_again(&small(dir.path())).expect("opens");
    let rule = Rule {
        kinds: vec![1..=1],
        age: None,
        count: Some(100),
    };
    store.retain(Retention::new(vec![rule]).expect("a rule"));
    let running = Running::start(store);
    let end = std::time::Instant::now() + WAIT;
    while count_all(&running) > 100 {
        assert!(
            std::time::Instant::now() < end,
            "{} of {} left",
            count_all(&running),
            stored.len()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    audit(&running.store);
    assert!(is_stored(&running.put_one(&note(1 << 40, 20_000))));
}

fn count_all(running: &Running) -> u64 {
    let mut count = Count::new(Rc::<[Filter]>::from([Filter::default()]));
    let progress = count.slice(&running.store.reader(), &budget(u32::MAX));
    assert_eq!(progress, Ok(Progress::Done));
    count.total()
}

#[test]
fn a_store_that_holds_more_than_it_may_gets_smaller() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let events: Vec<Event> = (0..4_000).map(spread).collect();
    let outcomes = running.put(&events);
    assert!(outcomes.iter().all(is_stored));
    let used = running.store.usage().expect("reads").used_bytes;
    assert!(used > SMALL as u64, "{used}");
    drop(running);
    // Without a free page left.
    compact(&options(dir.path())).expect("compacts");
    let running = Running::open(&small(dir.path()));
    let usage = running.store.usage().expect("reads");
    assert_eq!((usage.bytes_max, usage.percent()), (SMALL as u64, 100));
    let refused = running.put_one(&note(1, 20_000));
    assert!(matches!(refused, Outcome::Failed(_)), "{refused:?}");
    for author in 0..3 {
        let tags: &[&[&str]] = &[&["relay", "ALL_RELAYS"]];
        let request = event(id(!author), key(author), 20_000, 62, tags, "");
        let outcome = running.put_one(&request);
        assert!(is_stored(&outcome), "{outcome:?}");
    }
    assert!(running.store.usage().expect("reads").percent() < 100);
    assert!(is_stored(&running.put_one(&note(1, 20_000))));
    audit(&running.store);
}
