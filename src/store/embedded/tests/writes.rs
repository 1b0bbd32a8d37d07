//! Groups, the queue, slices: what is the embedded store's own.

use super::*;
use crate::limits::COMMIT_EVENTS_MAX;

fn seq(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Stored { seq } => *seq,
        other => panic!("not stored: {other:?}"),
    }
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
