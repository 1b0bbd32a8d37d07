//! Outcomes, groups, the queue; pieces and watermarks.

use super::*;
use crate::limits::COMMIT_EVENTS_MAX;

pub fn outcomes_within_one_group_and_after(store: impl TestStore) {
    let first = note(1, 10);
    let forged = Event::parse(&first.json().replace("5a5a", "6b6b")).unwrap();
    for round in 0..2 {
        let group = [first.clone(), note(2, 5), first.clone(), forged.clone()];
        let outcomes = put(&store, &group);
        let words: Vec<&str> = outcomes.iter().map(word).collect();
        let expected = if round == 0 { "stored" } else { "duplicate" };
        assert_eq!(
            words,
            [expected, expected, "duplicate", "another signature"]
        );
    }
    assert_eq!(store.last_seq(), 2);
    let found = Found {
        seq: 1,
        sig: *first.sig(),
    };
    assert_eq!(store.find(first.id()), Some(found));
    assert_eq!(store.find(&id(3)), None);
    store.audit();
}

pub fn ephemeral_events_are_not_stored(store: impl TestStore) {
    let outcome = put_one(&store, &event(id(1), [1; 32], 1, 20_001, &[], ""));
    assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    assert_eq!(store.last_seq(), 0);
}

pub fn the_newest_version_stays_and_of_one_second_the_lowest_id(store: impl TestStore) {
    let profile = |number, time| event(id(number), [1; 32], time, 0, &[], "profile");
    let one = |number, time| put_one(&store, &profile(number, time));
    assert_eq!(seq(&one(5, 10)), 1);
    assert_eq!(word(&one(6, 9)), "superseded");
    assert_eq!(word(&one(6, 10)), "superseded");
    assert_eq!(seq(&one(4, 10)), 2);
    assert_eq!(word(&one(5, 10)), "superseded");
    // Three versions in one group: only the last of them remains, and takes the highest sequence.
    let group = [
        profile(7, 11),
        profile(8, 12),
        profile(9, 11),
        profile(10, 13),
    ];
    let outcomes = put(&store, &group);
    assert!(matches!(
        outcomes[..],
        [
            Outcome::Stored { seq: 3 },
            Outcome::Stored { seq: 4 },
            Outcome::Superseded,
            Outcome::Stored { seq: 5 }
        ]
    ));
    let stored = store.audit();
    assert_eq!(stored.keys().collect::<Vec<_>>(), [&5]);
    assert_eq!(*stored[&5].id(), id(10));
}

pub fn addresses_differ_by_author_kind_and_d(store: impl TestStore) {
    let article =
        |number, author, kind, d: &str| event(id(number), [author; 32], 5, kind, &[&["d", d]], "");
    let all = [
        article(1, 1, 30_000, "x"),
        article(2, 1, 30_000, "y"),
        article(3, 1, 30_001, "x"),
        article(4, 2, 30_000, "x"),
        event(id(5), [1; 32], 5, 30_000, &[], ""),
    ];
    assert!(put(&store, &all).iter().all(|o| word(o) == "stored"));
    let same = put_one(&store, &article(6, 1, 30_000, ""));
    assert_eq!(word(&same), "superseded");
    assert_eq!(store.audit().len(), 5);
}

pub fn a_burst_is_few_commits_and_outcomes_keep_their_order(store: impl TestStore) {
    let count = COMMIT_EVENTS_MAX as u64 * 2 + 1;
    let events: Vec<Event> = (0..count).map(|n| note(n, n)).collect();
    let outcomes = put(&store, &events);
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(seq(outcome), n as u64 + 1);
    }
    store.close();
    assert_eq!(store.pending(), 0);
    let commits = store.outcomes().commits();
    assert_eq!(commits, [COMMIT_EVENTS_MAX, COMMIT_EVENTS_MAX, 1]);
    store.audit();
}

pub fn closing_answers_what_was_taken_and_takes_no_more(store: impl TestStore) {
    let mut jobs: Vec<Job> = (0..100).map(|n| job(&note(n, n), n)).collect();
    store.submit(&mut jobs);
    store.close();
    assert_eq!(store.outcomes().all_done().len(), 100);
    let mut late = vec![job(&note(200, 1), 0)];
    store.submit(&mut late);
    assert_eq!(late.len(), 1);
}

pub fn export_reads_everything_in_order(store: impl TestStore) {
    let events: Vec<Event> = (0..50).map(|n| note(n, 100 - n)).collect();
    put(&store, &events);
    for piece in [1, 7, 1_000] {
        let seen = store.export(&Ask::piece(piece));
        let jsons = events.iter().map(|event| event.json().to_owned());
        assert_eq!(seen, (1..).zip(jsons).collect::<Vec<_>>());
    }
}

pub fn pieces_keep_to_their_size(store: impl TestStore) {
    let events: Vec<Event> = (0..40).map(|n| note(n, n)).collect();
    put(&store, &events);
    for piece in [1, 3, 1_000] {
        let mut query = store.query(&[Filter::default()], BOUNDS, &Ask::piece(piece));
        assert_eq!(query.watermark(), None);
        let mut sizes = Vec::new();
        while let Some(events) = query.next().expect("a piece") {
            sizes.push(events.len());
        }
        assert_eq!(query.watermark(), Some(40));
        assert_eq!(sizes.iter().sum::<usize>(), 40);
        let most = piece as usize;
        assert!(sizes.iter().all(|size| *size <= most), "{piece}: {sizes:?}");
    }
}

pub fn nothing_above_the_watermark_is_given(store: impl TestStore) {
    put(&store, &[note(1, 10), note(2, 20)]);
    let mut query = store.query(&[Filter::default()], BOUNDS, &Ask::piece(1));
    let mut given = query.next().expect("a piece").expect("more");
    put(&store, &[note(3, 5), note(4, 15), note(5, 25)]);
    while let Some(piece) = query.next().expect("a piece") {
        given.extend(piece);
    }
    assert_eq!(query.watermark(), Some(2));
    assert_eq!(given, [note(2, 20).json(), note(1, 10).json()]);
}

pub fn many_writers_get_one_order(store: impl TestStore) {
    const WRITERS: u64 = 4;
    const EACH: u64 = 300;
    let threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let submit = store.submitter();
            std::thread::spawn(move || {
                for n in 0..EACH {
                    let number = writer * EACH + n;
                    submit(&mut vec![job(&note(number, number), number)]);
                }
            })
        })
        .collect();
    let mut last = [None; WRITERS as usize];
    let mut seqs = Vec::new();
    for _ in 0..WRITERS * EACH {
        let done = store.outcomes().done();
        let (writer, n) = (done.origin.token / EACH, done.origin.token % EACH);
        let before = last[writer as usize].replace(n);
        assert!(before.is_none_or(|before| before + 1 == n), "out of order");
        seqs.push(seq(&done.outcome));
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("a writer"));
    assert!(seqs.iter().copied().eq(1..=WRITERS * EACH));
    assert_eq!(store.audit().len() as u64, WRITERS * EACH);
}
