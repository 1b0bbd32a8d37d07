//! Outcomes, groups, the queue.

use super::*;
use crate::limits::COMMIT_EVENTS_MAX;

fn seq(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Stored { seq } => *seq,
        other => panic!("not stored: {other:?}"),
    }
}

#[test]
fn outcomes_within_one_group_and_after() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let first = note(1, 10);
    let forged = Event::parse(&first.json().replace("5a5a", "6b6b")).unwrap();
    for _ in 0..2 {
        let outcomes = running.put(&[first.clone(), note(2, 5), first.clone(), forged.clone()]);
        if let Outcome::Stored { seq: 1 } = outcomes[0] {
            assert_eq!(seq(&outcomes[1]), 2);
        } else {
            assert!(matches!(
                outcomes[..2],
                [Outcome::Duplicate, Outcome::Duplicate]
            ));
        }
        assert!(matches!(
            outcomes[2..],
            [Outcome::Duplicate, Outcome::SignatureDiffers]
        ));
    }
    let reader = running.store.reader();
    assert_eq!(reader.last_seq(), Ok(2));
    assert_eq!(
        reader.find(first.id()),
        Ok(Some(Found {
            seq: 1,
            sig: *first.sig()
        }))
    );
    assert_eq!(reader.find(&id(3)), Ok(None));
    let mut json = String::new();
    assert_eq!(
        reader.event_json(first.id(), |text| json.push_str(text)),
        Ok(true)
    );
    assert_eq!(json, first.json());
    audit(&running.store);
}

#[test]
fn ephemeral_events_are_not_stored() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let outcome = running.put_one(&event(id(1), [1; 32], 1, 20_001, &[], ""));
    assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    assert_eq!(running.store.reader().last_seq(), Ok(0));
}

#[test]
fn the_newest_version_stays_and_of_one_second_the_lowest_id() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let profile = |number, time| event(id(number), [1; 32], time, 0, &[], "profile");
    assert_eq!(seq(&running.put_one(&profile(5, 10))), 1);
    assert!(matches!(
        running.put_one(&profile(6, 9)),
        Outcome::Superseded
    ));
    assert!(matches!(
        running.put_one(&profile(6, 10)),
        Outcome::Superseded
    ));
    assert_eq!(seq(&running.put_one(&profile(4, 10))), 2);
    assert!(matches!(
        running.put_one(&profile(5, 10)),
        Outcome::Superseded
    ));
    // Three versions in one group: only the last of them remains, and takes the highest sequence.
    let outcomes = running.put(&[
        profile(7, 11),
        profile(8, 12),
        profile(9, 11),
        profile(10, 13),
    ]);
    assert!(matches!(
        outcomes[..],
        [
            Outcome::Stored { seq: 3 },
            Outcome::Stored { seq: 4 },
            Outcome::Superseded,
            Outcome::Stored { seq: 5 }
        ]
    ));
    let stored = audit(&running.store);
    assert_eq!(stored.keys().collect::<Vec<_>>(), [&5]);
    assert_eq!(*stored[&5].id(), id(10));
}

#[test]
fn addresses_differ_by_author_kind_and_d() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let article =
        |number, author, kind, d: &str| event(id(number), [author; 32], 5, kind, &[&["d", d]], "");
    let all = [
        article(1, 1, 30_000, "x"),
        article(2, 1, 30_000, "y"),
        article(3, 1, 30_001, "x"),
        article(4, 2, 30_000, "x"),
        event(id(5), [1; 32], 5, 30_000, &[], ""),
    ];
    assert!(
        running
            .put(&all)
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Stored { .. }))
    );
    assert!(matches!(
        running.put_one(&article(6, 1, 30_000, "")),
        Outcome::Superseded
    ));
    assert_eq!(audit(&running.store).len(), 5);
}

#[test]
fn a_group_is_bounded_and_outcomes_keep_their_order() {
    let dir = folder();
    let store = Embedded::open(&options(dir.path())).expect("opens");
    let events: Vec<Event> = (0..COMMIT_EVENTS_MAX as u64 * 2 + 1)
        .map(|n| note(n, n))
        .collect();
    let job = |event: &Event| Job {
        event: Arc::new(event.clone()),
        origin: Origin { shard: 0, token: 0 },
    };
    let mut jobs: Vec<Job> = events.iter().map(job).collect();
    store.submit(&mut jobs);
    assert_eq!(store.pending(), events.len());
    let running = Running::start(store);
    for (n, event) in events.iter().enumerate() {
        let done = running.done.recv_timeout(WAIT).expect("an outcome");
        assert_eq!(done.event.id(), event.id());
        assert_eq!(seq(&done.outcome), n as u64 + 1);
    }
    running.store.close();
    assert_eq!(running.store.pending(), 0);
    let commits: Vec<usize> = running.commits.try_iter().collect();
    assert_eq!(commits, [COMMIT_EVENTS_MAX, COMMIT_EVENTS_MAX, 1]);
    audit(&running.store);
}

#[test]
fn closing_answers_what_was_taken_and_takes_no_more() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let mut jobs: Vec<Job> = (0..100)
        .map(|n| Job {
            event: Arc::new(note(n, n)),
            origin: Origin { shard: 0, token: n },
        })
        .collect();
    running.store.submit(&mut jobs);
    running.store.close();
    assert_eq!(running.done.try_iter().count(), 100);
    let mut late = vec![Job {
        event: Arc::new(note(200, 1)),
        origin: Origin { shard: 0, token: 0 },
    }];
    running.store.submit(&mut late);
    assert_eq!(late.len(), 1);
}

#[test]
fn the_queue_leaves_what_does_not_fit() {
    let queue = writer::Queue::new();
    let event = Arc::new(note(1, 1));
    let job = Job {
        event,
        origin: Origin { shard: 0, token: 0 },
    };
    let mut jobs = vec![job; crate::limits::WRITE_QUEUE_EVENTS_MAX + 5];
    queue.submit(&mut jobs);
    assert_eq!(jobs.len(), 5);
    queue.submit(&mut jobs);
    assert_eq!(jobs.len(), 5);
    assert_eq!(queue.pending(), crate::limits::WRITE_QUEUE_EVENTS_MAX);
}

#[test]
fn a_version_that_cannot_be_read_back_fails_only_its_successor() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let profile = |number, time| event(id(number), [1; 32], time, 0, &[], "profile");
    running.put_one(&profile(1, 1));
    let tables = &running.store.shared.tables;
    let mut txn = tables.env.write_txn().expect("a transaction");
    tables
        .events
        .put(&mut txn, &1u64.to_be_bytes(), b"\0{")
        .expect("damages the record");
    txn.commit().expect("commits");
    let outcomes = running.put(&[note(2, 1), profile(3, 2), note(4, 1)]);
    assert_eq!(seq(&outcomes[0]), 2);
    match &outcomes[1] {
        Outcome::Failed(error) => assert_eq!(error.kind(), StoreErrorKind::Corrupt),
        other => panic!("{other:?}"),
    }
    assert_eq!(seq(&outcomes[2]), 3);
}

#[test]
fn export_reads_everything_in_order() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let events: Vec<Event> = (0..50).map(|n| note(n, 100 - n)).collect();
    running.put(&events);
    let reader = running.store.reader();
    for budget in [budget(1), budget(7), budget(1_000)] {
        let mut seen = Vec::new();
        let mut after = Some(0);
        while let Some(from) = after {
            after = reader
                .events_after(from, &budget, &mut |seq, json| {
                    seen.push((seq, json.to_owned()))
                })
                .expect("a slice");
        }
        let expected: Vec<_> = (1..)
            .zip(events.iter().map(|event| event.json().to_owned()))
            .collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn slices_keep_to_their_bytes() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let events: Vec<Event> = (0..40).map(|n| note(n, n)).collect();
    running.put(&events);
    let reader = running.store.reader();
    let length = events[0].json().len();
    let budget = Budget {
        entries_max: 1_000,
        bytes_max: 3 * length + 1,
        deadline: None,
        now: 0,
    };
    let mut query = Query::new(Rc::<[Filter]>::from([Filter::default()]), BOUNDS);
    assert_eq!(query.watermark(), None);
    let mut slices = Vec::new();
    loop {
        let mut given = 0;
        let progress = query
            .slice(&reader, &budget, &mut |_| given += 1)
            .expect("a slice");
        slices.push(given);
        if progress == Progress::Done {
            break;
        }
    }
    assert_eq!(query.watermark(), Some(40));
    assert_eq!(slices.iter().sum::<usize>(), 40);
    assert!(slices.iter().all(|&given| given <= 3), "{slices:?}");
    let tight = Budget {
        bytes_max: 1,
        ..budget
    };
    assert_eq!(
        answer(&reader, &[Filter::default()], BOUNDS, &tight).len(),
        40,
        "one event a slice at least"
    );
}

#[test]
fn a_slice_ends_at_its_deadline() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put(&(0..200).map(|n| note(n, n)).collect::<Vec<_>>());
    let past = Budget {
        entries_max: u32::MAX,
        bytes_max: usize::MAX,
        deadline: Some(std::time::Instant::now()),
        now: 0,
    };
    let mut query = Query::new(Rc::<[Filter]>::from([Filter::default()]), BOUNDS);
    let mut given = 0;
    let progress = query
        .slice(&running.store.reader(), &past, &mut |_| given += 1)
        .expect("a slice");
    assert_eq!(progress, Progress::More);
    assert!((1..=32).contains(&given), "{given}");
}

#[test]
fn nothing_above_the_watermark_is_given() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put(&[note(1, 10), note(2, 20)]);
    let reader = running.store.reader();
    let mut query = Query::new(Rc::<[Filter]>::from([Filter::default()]), BOUNDS);
    let mut given = Vec::new();
    let mut sink = |json: &str| given.push(json.to_owned());
    assert_eq!(
        query.slice(&reader, &budget(1), &mut sink),
        Ok(Progress::More)
    );
    running.put(&[note(3, 5), note(4, 15), note(5, 25)]);
    // The rest is read by another thread, as a cold scan would be.
    let query = query.with_filters(Arc::<[Filter]>::from([Filter::default()]));
    let elsewhere = reader.clone();
    let rest = std::thread::spawn(move || {
        let (mut query, mut rest) = (query, Vec::new());
        while query
            .slice(&elsewhere, &budget(1), &mut |json| {
                rest.push(json.to_owned())
            })
            .unwrap()
            == Progress::More
        {}
        assert_eq!(query.watermark(), Some(2));
        rest
    });
    given.extend(rest.join().expect("the rest"));
    assert_eq!(given, [note(2, 20).json(), note(1, 10).json()]);
}
