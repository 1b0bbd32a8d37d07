//! Queries that chance does not make.

use super::model::{Asked, Model};
use super::*;

#[test]
fn many_runs_are_merged_in_order() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let mut model = Model::default();
    let pool: Vec<Event> = (0..600u64)
        .map(|n| {
            let author = [(n * 7 % 97) as u8; 32];
            event(
                id(n * 7_919 % 1_000),
                author,
                n * 31 % 200,
                [1, 6, 7][n as usize % 3],
                &[],
                "x",
            )
        })
        .collect();
    running.put(&pool);
    assert!(pool.iter().all(|event| model.put(event) == "stored"));
    let authors: Vec<[u8; 32]> = (0..97).map(|n| [n; 32]).collect();
    let filter = Filter {
        authors: Some(authors),
        kinds: Some(vec![1, 7]),
        ..Filter::default()
    };
    for limit in [1, 50, 1_000] {
        let filters = [Filter {
            limit: Some(limit),
            ..filter.clone()
        }];
        for entries in [1, 100, u32::MAX] {
            let given = answer(&running.store.reader(), &filters, BOUNDS, &budget(entries));
            let expected = model.answer(&filters, BOUNDS, &Asked::by_all());
            let expected: Vec<&str> = expected.iter().map(|event| event.json()).collect();
            assert_eq!(given, expected);
        }
    }
}

#[test]
fn two_ids_alike_in_sixteen_bytes_do_not_remove_each_other() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let twin = |last, time, kind| {
        let mut id = [3; 32];
        id[31] = last;
        event(id, [1; 32], time, kind, &[&["t", "x"]], "")
    };
    // One second, one author, one kind: they share every key. The later one has the entries.
    running.put(&[twin(2, 5, 10_000)]);
    running.put(&[twin(1, 5, 10_000)]);
    assert_eq!(audit(&running.store).len(), 1);
    let filters = [Filter {
        kinds: Some(vec![10_000]),
        ..Filter::default()
    }];
    let given = answer(&running.store.reader(), &filters, BOUNDS, &budget(9));
    assert_eq!(given, [twin(1, 5, 10_000).json()]);
}

#[test]
fn what_an_earlier_filter_gave_counts_only_where_it_matches() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let tagged = event(id(1), [1; 32], 1, 1, &[&["t", "x"]], "");
    running.put(&[tagged.clone(), event(id(2), [1; 32], 2, 1, &[], "")]);
    let newest = Filter {
        limit: Some(1),
        ..Filter::default()
    };
    let by_author = Filter {
        authors: Some(vec![[1; 32]]),
        tags: vec![(b't', vec![b"x"[..].into()])],
        limit: Some(1),
        ..Filter::default()
    };
    // The walk over the author's events meets the untagged one, already given, first.
    let given = answer(
        &running.store.reader(),
        &[newest, by_author],
        BOUNDS,
        &budget(9),
    );
    assert_eq!(given.last().map(String::as_str), Some(tagged.json()));
}
