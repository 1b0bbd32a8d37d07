//! Entries that are written later than their group: found meanwhile, and after every end.

use super::super::apply::{Group, Scratch};
use super::super::young::{Fresh, Layer};
use super::*;
use std::ops::Bound;

/// Events that share authors, kinds and tags.
fn notes(numbers: std::ops::Range<u64>) -> Vec<Event> {
    let note = |n: u64| {
        let topic = format!("topic {}", n % 5);
        let mark = format!("{:064x}", n % 7);
        let tags: [&[&str]; 2] = [&["t", &topic], &["e", &mark]];
        event(
            id(n),
            [n as u8 % 3 + 1; 32],
            n / 2,
            (n % 2) as u16 + 1,
            &tags,
            "",
        )
    };
    numbers.map(note).collect()
}

fn questions() -> Vec<Filter> {
    let authors = || Some(vec![[1; 32], [2; 32]]);
    let tag = |value: &str| vec![(b't', vec![Box::from(value.as_bytes())])];
    vec![
        Filter::default(),
        Filter {
            ids: Some((0..400).step_by(3).map(id).collect()),
            ..Filter::default()
        },
        Filter {
            authors: authors(),
            ..Filter::default()
        },
        Filter {
            authors: authors(),
            kinds: Some(vec![1, 2]),
            since: Some(20),
            until: Some(150),
            ..Filter::default()
        },
        Filter {
            tags: tag("topic 3"),
            ..Filter::default()
        },
    ]
}

/// What there is, by every index, in slices of any size, as ids in the order of answers.
fn answers(store: &Embedded) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for filter in questions() {
        let filter = [filter];
        let whole = answer(&store.reader(), &filter, BOUNDS, &budget(u32::MAX));
        for entries in [1, 7] {
            assert_eq!(
                answer(&store.reader(), &filter, BOUNDS, &budget(entries)),
                whole
            );
        }
        let mut count = Count::new(Rc::from(filter));
        while count.slice(&store.reader(), &budget(9)).expect("a slice") == Progress::More {}
        assert_eq!(count.total(), whole.len() as u64);
        all.push(whole);
    }
    all
}

#[test]
fn answers_do_not_depend_on_where_entries_are() {
    let (dir, other) = (folder(), folder());
    let running = Running::open(&options(dir.path()));
    let direct = Running::open(&options(other.path()));
    let events = notes(0..300);
    direct.put(&events);
    assert!(
        direct.store.shared.tables.nursery.is_empty(),
        "a large group is written at once"
    );
    let expected = answers(&direct.store);
    for some in events.chunks(4) {
        running.put(some);
    }
    let nursery = &running.store.shared.tables.nursery;
    let indexed = nursery.indexed();
    assert!(indexed > 0 && indexed < 300 && !nursery.is_empty());
    assert_eq!(answers(&running.store), expected);
    audit(&running.store);
    let mut rest = 0;
    while !nursery.is_empty() {
        upkeep::settle(&running.store.shared.tables, &mut Scratch::default(), 50).expect("settles");
        assert_eq!(answers(&running.store), expected);
        rest += 1;
    }
    assert!(rest > 2, "it took {rest} slices");
    assert_eq!(nursery.indexed(), 300);
    assert_eq!(audit(&running.store).len(), 300);
}

#[test]
fn entries_are_made_anew_when_a_store_is_opened() {
    let dir = folder();
    let events = notes(0..200);
    let mut expected = Vec::new();
    for some in [&events[..90], &events[90..]] {
        let running = Running::open(&options(dir.path()));
        for some in some.chunks(3) {
            running.put(some);
        }
        // One slice of a layer has got into the trees.
        upkeep::settle(&running.store.shared.tables, &mut Scratch::default(), 5).expect("settles");
        assert!(!running.store.shared.tables.nursery.is_empty());
        expected = answers(&running.store);
    }
    let running = Running::open(&options(dir.path()));
    assert_eq!(answers(&running.store), expected);
    assert_eq!(audit(&running.store).len(), 200);
    settle(&running.store);
    assert_eq!(answers(&running.store), expected);
    assert_eq!(audit(&running.store).len(), 200);
}

#[test]
fn what_is_removed_while_it_is_young_never_comes_back() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let profile = |n: u64| event(id(1_000 + n), [9; 32], n, 0, &[&["t", "topic 3"]], "");
    for n in 0..40 {
        running.put_one(&profile(n));
    }
    let by_topic = &questions()[4..];
    let found = || answer(&running.store.reader(), by_topic, BOUNDS, &budget(3));
    assert_eq!(found(), [profile(39).json()]);
    // A count by tag looks at events in any case.
    let by_author = Filter {
        authors: Some(vec![[9; 32]]),
        ..Filter::default()
    };
    let mut count = Count::new(Rc::from([by_author]));
    while count
        .slice(&running.store.reader(), &budget(9))
        .expect("a slice")
        == Progress::More
    {}
    assert_eq!(count.total(), 1);
    assert_eq!(
        running.store.reader().find(&id(1_001)).expect("reads"),
        None
    );
    settle(&running.store);
    assert_eq!(found(), [profile(39).json()]);
    assert_eq!(audit(&running.store).len(), 1);
}

#[test]
fn a_failed_commit_leaves_what_was_young() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    for event in notes(0..60) {
        running.put_one(&event);
    }
    let tables = &running.store.shared.tables;
    let expected = answers(&running.store);
    let mut scratch = Scratch::default();
    let mut group = Group::begin(tables, &mut scratch).expect("begins");
    group.settle_some(usize::MAX);
    group.add(&notes(60..61)[0]).expect("adds");
    drop(group);
    assert_eq!(answers(&running.store), expected);
    audit(&running.store);
    settle(&running.store);
    assert_eq!(answers(&running.store), expected);
    assert_eq!(audit(&running.store).len(), 60);
}

#[test]
fn an_idle_writer_writes_them_all() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put(&notes(0..5));
    let nursery = &running.store.shared.tables.nursery;
    assert!(!nursery.is_empty());
    let end = std::time::Instant::now() + WAIT;
    while !nursery.is_empty() {
        assert!(std::time::Instant::now() < end, "they are still young");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(nursery.indexed(), 5);
    assert_eq!(audit(&running.store).len(), 5);
}

#[test]
fn a_store_of_schema_2_has_all_of_its_entries() {
    let dir = folder();
    {
        let running = Running::open(&options(dir.path()));
        running.put(&notes(0..30));
        settle(&running.store);
        let tables = &running.store.shared.tables;
        let mut txn = tables.env.write_txn().expect("a transaction");
        let meta = &tables.meta;
        meta.delete(&mut txn, layout::META_INDEXED)
            .expect("deletes");
        meta.put(&mut txn, layout::META_SCHEMA, &2u32.to_be_bytes())
            .expect("writes");
        txn.commit().expect("commits");
    }
    let running = Running::open(&options(dir.path()));
    let nursery = &running.store.shared.tables.nursery;
    assert_eq!((nursery.is_empty(), nursery.indexed()), (true, 30));
    assert_eq!(audit(&running.store).len(), 30);
}

#[test]
fn a_layer_is_an_ordered_map() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut model = BTreeMap::new();
    let mut layer = Layer::default();
    for _ in 0..30 {
        let mut fresh = Fresh::default();
        let dropped = random.u32(0..20);
        for nth in 0..random.u32(1..20) {
            let tree = [Tree::Id, Tree::Author, Tree::AuthorKind, Tree::Tag][random.usize(0..4)];
            let key: Vec<u8> = (0..random.usize(8..12)).map(|_| random.u8(0..2)).collect();
            let value = random.u64(..).to_be_bytes();
            fresh.push(tree, &key, &value, nth);
            if nth != dropped {
                model.insert((tree, key), value);
            }
        }
        layer = Layer::merged(&layer, &fresh.layer(|nth| nth != dropped));
        if random.bool() {
            layer = layer.packed();
        }
        let same = layer
            .from(0)
            .zip(&model)
            .all(|((tree, key, value), (other, saved))| {
                (tree, key) == (other.0, &other.1[..]) && value == saved
            });
        assert!(same && layer.len() == model.len());
        for _ in 0..50 {
            let tree = [Tree::Id, Tree::Author, Tree::AuthorKind, Tree::Tag][random.usize(0..4)];
            let key: Vec<u8> = (0..random.usize(8..12)).map(|_| random.u8(0..2)).collect();
            let place = (tree, key.clone());
            assert_eq!(
                layer.get(tree, &key),
                model.get(&place).map(|value| &value[..])
            );
            for (from, bound) in [
                (Bound::Included(&key[..]), Bound::Included(&place)),
                (Bound::Excluded(&key[..]), Bound::Excluded(&place)),
            ] {
                let expected = model.range((bound, Bound::Unbounded)).next();
                let expected = expected.filter(|((other, _), _)| *other == tree);
                let found = layer.at(tree, layer.seek(tree, from));
                assert_eq!(
                    found.map(|(key, _)| key),
                    expected.map(|((_, key), _)| &key[..])
                );
            }
        }
    }
}

/// What is in neither place at one moment would be missed.
#[test]
fn a_reader_misses_nothing_while_entries_leave() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let answered = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let by_author = Filter {
        authors: Some(vec![[1; 32], [2; 32], [3; 32]]),
        ..Filter::default()
    };
    let (reader, known) = (running.store.reader(), Arc::clone(&answered));
    let asking = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < 600 {
            let before = known.load(std::sync::atomic::Ordering::Acquire);
            let bounds = QueryBounds {
                limit_default: 1_000,
                ..BOUNDS
            };
            let found = answer(
                &reader,
                std::slice::from_ref(&by_author),
                bounds,
                &budget(u32::MAX),
            );
            let mut each = found.clone();
            each.sort_unstable();
            each.dedup();
            assert!(found.len() >= before && each.len() == found.len());
            seen = found.len();
        }
    });
    for some in notes(0..600).chunks(3) {
        running.put(some);
        answered.fetch_add(some.len(), std::sync::atomic::Ordering::Release);
    }
    asking.join().expect("nothing was missing");
}
