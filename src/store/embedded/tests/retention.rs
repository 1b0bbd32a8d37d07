//! Retention against a relay that is a list: random rules, events, deletions and clocks. And what
//! the writer does of it by itself.

use std::collections::HashSet;

use proptest::prelude::*;

use super::super::apply::{Group, Scratch};
use super::super::keep::Keeper;
use super::super::upkeep::{Share, retain};
use super::model::{Model, word};
use super::*;
use crate::nostr::kind::DELETION;
use crate::store::Removal;
use crate::store::retention::{Retention, Rule};

/// The ids of what the rules leave, by the sentence that describes them.
fn keep(mut events: Vec<&Event>, rules: &Retention, now: u64) -> HashSet<[u8; 32]> {
    // Newest first.
    events.sort_by_key(|event| (std::cmp::Reverse(event.created_at()), *event.id()));
    let mut held = vec![0; rules.rules().len()];
    events.retain(|event| {
        let Some(at) = rules.rule_of(event.kind()) else {
            return true;
        };
        let rule = &rules.rules()[at];
        if rule.age.is_some_and(|age| event.created_at() + age < now) {
            return false;
        }
        held[at] += 1;
        rule.count.is_none_or(|count| held[at] <= count)
    });
    events.iter().map(|event| *event.id()).collect()
}

/// A store and what its writer remembers, step by step.
struct Bench {
    store: Embedded,
    scratch: Scratch,
    keeper: Keeper,
    rules: Retention,
    model: Model,
    now: u64,
}

impl Bench {
    fn new(dir: &std::path::Path, rules: Retention) -> Bench {
        Bench {
            store: Embedded::open(&options(dir)).expect("opens"),
            scratch: Scratch::default(),
            keeper: Keeper::new(rules.clone()),
            rules,
            model: Model::default(),
            now: 0,
        }
    }

    fn put(&mut self, events: &[&Event]) {
        let tables = &self.store.shared.tables;
        let before: Vec<Event> = self.model.events().into_iter().cloned().collect();
        let mut group = Group::begin(tables, &mut self.scratch).expect("begins");
        for event in events {
            if self.keeper.refusal(event).is_some() {
                // It would be removed at once: as the group began there were enough, all newer.
                let rule = self.rules.rule_of(event.kind()).expect("a rule");
                let count = self.rules.rules()[rule].count.expect("a count");
                let place = |event: &Event| (std::cmp::Reverse(event.created_at()), *event.id());
                let newer = before.iter().filter(|other| {
                    self.rules.rule_of(other.kind()) == Some(rule) && place(other) < place(event)
                });
                assert!(newer.count() as u64 >= count && event.kind() != DELETION);
                continue;
            }
            let outcome = group
                .add(event)
                .expect("adds")
                .expect("no request to vanish");
            assert_eq!(word(&outcome), self.model.put(event));
        }
        group.commit().expect("commits");
        self.keeper.follow(&self.scratch.changes);
    }

    /// One commit of a share, or one that fails.
    fn share(&mut self, halvings: u32, fails: bool) -> bool {
        let tables = &self.store.shared.tables;
        if !self.keeper.is_due(self.now) {
            return true;
        }
        let share = Share::part(halvings);
        if fails {
            let mut group = Group::begin(tables, &mut self.scratch).expect("begins");
            let mut share = share;
            group
                .retain(&mut self.keeper, self.now, &mut share)
                .expect("removes");
            drop(group);
            self.keeper.undo();
            return false;
        }
        retain(tables, &mut self.scratch, &mut self.keeper, self.now, share).expect("removes");
        self.keeper.follow(&self.scratch.changes);
        false
    }

    /// Lets upkeep run until nothing is left to do, and compares.
    fn settle(&mut self, halvings: u32) {
        while self.keeper.is_learning() {
            self.keeper
                .learn(&self.store.shared.tables, 1 << halvings)
                .expect("learns");
        }
        let mut shares = 0;
        while !self.share(halvings, false) {
            shares += 1;
            assert!(shares < 10_000, "it never ends");
        }
        let kept = keep(self.model.events(), &self.rules, self.now);
        self.model.retain(|event| kept.contains(event.id()));
        self.check();
    }

    fn check(&self) {
        let stored = audit(&self.store);
        let mut expected: Vec<&str> = self.model.events().into_iter().map(Event::json).collect();
        let mut stored: Vec<&str> = stored.values().map(Event::json).collect();
        expected.sort_unstable();
        stored.sort_unstable();
        assert_eq!(stored, expected);
        if !self.keeper.is_learning() {
            self.keeper.audit(self.model.events().into_iter());
        }
    }
}

const CASES: u32 = 192;
const KINDS: [u16; 9] = [0, 1, 1, 7, 5, 1_000, 1_001, 30_023, 30_024];

fn rules() -> impl Strategy<Value = Retention> {
    let kinds = prop::sample::select(vec![
        vec![1..=1],
        vec![7..=7, 0..=0],
        vec![5..=5],
        vec![1_000..=1_009],
        vec![30_000..=39_999],
        vec![0..=9],
        vec![0..=u16::MAX],
    ]);
    let bounds = prop_oneof![
        4 => (5..40u64).prop_map(|age| (Some(age), None)),
        4 => (1..6u64).prop_map(|count| (None, Some(count))),
        2 => (5..40u64, 1..6u64).prop_map(|(age, count)| (Some(age), Some(count))),
        1 => Just((None, None)),
    ];
    let rule = (kinds, bounds).prop_map(|(kinds, (age, count))| Rule { kinds, age, count });
    prop::collection::vec(rule, 1..4).prop_map(|mut rules| {
        loop {
            match Retention::new(rules.clone()) {
                Ok(retention) => return retention,
                Err(idle) => drop(rules.remove(idle)),
            }
        }
    })
}

/// Events of two authors; what deletes names others by their place.
fn pool() -> impl Strategy<Value = Vec<Event>> {
    let draft = (0..KINDS.len(), 0..2u8, 1..60u64, any::<u8>(), 0..40usize);
    prop::collection::vec(draft, 4..40).prop_map(|drafts| {
        let id = |n: usize| {
            let mut id = [drafts[n].3; 32];
            id[1] = n as u8;
            id
        };
        let build = |(n, draft): (usize, &(usize, u8, u64, u8, usize))| {
            let (kind, author, at, _, named) = *draft;
            let kind = KINDS[kind];
            let named = const_hex::encode(id(named % drafts.len()));
            let d = ["", "a", "b"][n % 3];
            let tags: &[&[&str]] = match kind {
                DELETION => &[&["e", &named]],
                30_000.. => &[&["d", d]],
                _ => &[],
            };
            event(id(n), [author + 1; 32], at, kind, tags, "")
        };
        drafts.iter().enumerate().map(build).collect()
    })
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<usize>),
    Tick(u64),
    Learn(u32),
    Share(u32, bool),
    Settle(u32),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => prop::collection::vec(0..40usize, 1..8).prop_map(Step::Put),
        2 => (1..20u64).prop_map(Step::Tick),
        2 => (1..5u32).prop_map(Step::Learn),
        3 => (0..11u32, any::<bool>()).prop_map(|(halvings, fails)| Step::Share(halvings, fails)),
        2 => (0..11u32).prop_map(Step::Settle),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 4..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    /// After upkeep has run the store holds exactly what the list holds, whatever came before:
    /// shares of any size, commits that failed, and starts with everything still to be learned.
    #[test]
    fn the_rules_leave_what_they_say(rules in rules(), pool in pool(), steps in steps()) {
        let dir = folder();
        let mut bench = Bench::new(dir.path(), rules);
        for step in steps {
            match step {
                Step::Put(which) => {
                    let events: Vec<&Event> = which.iter().map(|n| &pool[n % pool.len()]).collect();
                    bench.put(&events);
                }
                Step::Tick(seconds) => bench.now += seconds,
                Step::Learn(entries) => {
                    if bench.keeper.is_learning() {
                        bench.keeper.learn(&bench.store.shared.tables, entries).expect("learns");
                    }
                }
                Step::Share(halvings, fails) => {
                    // What a share leaves is not told by the list; what it takes never comes back.
                    bench.share(halvings, fails);
                    if fails {
                        prop_assert_eq!(audit(&bench.store).len(), bench.model.events().len());
                    } else {
                        let left = audit(&bench.store);
                        let left: HashSet<[u8; 32]> = left.values().map(|one| *one.id()).collect();
                        let kept = keep(bench.model.events(), &bench.rules, bench.now);
                        prop_assert!(kept.is_subset(&left), "too much was removed");
                        bench.model.retain(|event| left.contains(event.id()));
                    }
                }
                Step::Settle(halvings) => bench.settle(halvings),
                Step::Restart => bench.keeper = Keeper::new(bench.rules.clone()),
            }
        }
        bench.settle(0);
    }
}

/// A sink that counts what is removed, and forgets the rest.
struct Counting(Sender<(Removal, usize)>, Sender<Done>);

impl CommitSink for Counting {
    fn committed(&mut self, done: &mut Vec<Done>) {
        done.drain(..).for_each(|done| drop(self.1.send(done)));
    }

    fn removed(&mut self, why: Removal, events: usize) {
        let _ = self.0.send((why, events));
    }
}

fn by_rule(
    kinds: std::ops::RangeInclusive<u16>,
    age: Option<u64>,
    count: Option<u64>,
) -> Retention {
    let kinds = vec![kinds];
    Retention::new(vec![Rule { kinds, age, count }]).expect("a rule")
}

#[test]
fn the_writer_keeps_to_the_rules_by_itself_in_shares() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let events: Vec<Event> = (0..4_000).map(|n| note(n, 1_000 + n)).collect();
    for events in events.chunks(1_000) {
        running.put(events);
    }
    drop(running);

    let store = open_again(&options(dir.path())).expect("opens");
    store.retain(by_rule(0..=9, Some(2_000), Some(1_500)));
    let (removed, removals) = channel();
    let (done, answers) = channel();
    store.start_writer_at(Counting(removed, done), || 5_000);
    let mut left = 4_000;
    while left > 1_500 {
        let (why, events) = removals.recv_timeout(WAIT).expect("a removal");
        assert_eq!(why, Removal::Retention);
        assert!((1..=1_024).contains(&events), "{events} in one commit");
        left -= events;
    }
    assert_eq!(left, 1_500);
    // The newest stay; what is older than all of them is refused, and what is newer takes a place.
    let put = |event: &Event| {
        let event = Arc::new(event.clone());
        let origin = Origin { shard: 0, token: 0 };
        store.submit(&mut vec![Job { event, origin }]);
        answers.recv_timeout(WAIT).expect("an answer").outcome
    };
    let refused = put(&note(9_000, 3_499));
    assert!(matches!(refused, Outcome::Refused(_)), "{refused:?}");
    assert!(matches!(put(&note(9_001, 6_000)), Outcome::Stored { .. }));
    let (_, events) = removals.recv_timeout(WAIT).expect("a removal");
    assert_eq!(events, 1);
    store.close();
    let stored = audit(&store);
    assert_eq!(stored.len(), 1_500);
    assert!(stored.values().all(|event| event.created_at() >= 3_501));
}

#[test]
fn a_removed_event_may_come_again_where_the_rules_allow_it() {
    let dir = folder();
    let mut bench = Bench::new(dir.path(), by_rule(1..=1, None, Some(1)));
    let (old, new) = (note(1, 10), note(2, 20));
    bench.put(&[&old, &new]);
    bench.settle(0);
    assert_eq!(audit(&bench.store).len(), 1);
    let deletion = event(
        [9; 32],
        [1; 32],
        30,
        5,
        &[&["e", &const_hex::encode(new.id())]],
        "",
    );
    bench.put(&[&deletion, &old]);
    bench.settle(0);
    let mut ids: Vec<_> = audit(&bench.store)
        .values()
        .map(|event| *event.id())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [*old.id(), [9; 32]]);
}

#[test]
fn what_was_deleted_stays_gone_when_the_request_is_not_kept() {
    let dir = folder();
    let mut bench = Bench::new(dir.path(), by_rule(5..=5, Some(10), None));
    let kept = note(1, 10);
    let deletion = event(
        [9; 32],
        [1; 32],
        30,
        5,
        &[&["e", &const_hex::encode(kept.id())]],
        "",
    );
    bench.put(&[&kept, &deletion]);
    bench.now = 100;
    bench.settle(0);
    assert!(
        audit(&bench.store).is_empty(),
        "neither the note nor the request"
    );
    bench.put(&[&kept]);
    assert!(
        audit(&bench.store).is_empty(),
        "the note is still taken back"
    );
}
