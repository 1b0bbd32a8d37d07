//! The store against a list: random histories of events that replace, delete, outlive and banish each
//! other, random filters of random clients, slices of every size, writes between slices.
//!
//! `STORE_MODEL_CASES` sets how many histories (default 3 000; `docs/protocol.md` has the long run).

use proptest::prelude::*;

use super::super::apply::Scratch;
use super::super::upkeep::{Share, expire};
use super::model::{Asked, Model, limit, word};
use super::pool::{AUTHORS, EVENTS_MAX, Names, Sketch, author, pool, sketches};
use super::*;
use crate::nostr::kind::VANISH;
use crate::nostr::message::EoseHint;
use crate::nostr::sealed::Viewer;

const BOUNDS: QueryBounds = QueryBounds {
    limit_max: 10,
    limit_default: 7,
};

#[derive(Clone, Debug)]
struct Question {
    filters: Vec<Sketch>,
    /// The authors who have logged in.
    viewer: Option<Vec<usize>>,
    /// Entries a slice.
    entries: u32,
}

fn question(filters_max: usize) -> impl Strategy<Value = Question> {
    let viewer = prop::option::of(prop::collection::vec(0..AUTHORS, 0..3));
    let entries = prop_oneof![1..4u32, 4..40u32, Just(u32::MAX)];
    let parts = (sketches(filters_max), viewer, entries);
    parts.prop_map(|(filters, viewer, entries)| Question {
        filters,
        viewer,
        entries,
    })
}

#[derive(Clone, Debug)]
enum Step {
    /// Events of the pool to write in one group; true: with another signature.
    Write(Vec<(usize, bool)>),
    /// A question, with nothing going on beside it.
    Ask(Question),
    /// A question of one filter, with events written before each further slice.
    AskWhile(Question, Vec<Vec<usize>>),
    Tick(u64),
    Sweep,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let group = prop::collection::vec((0..EVENTS_MAX, prop::bool::weighted(0.05)), 1..12);
    let writes = prop::collection::vec(prop::collection::vec(0..EVENTS_MAX, 1..4), 0..4);
    let step = prop_oneof![
        12 => group.prop_map(Step::Write),
        12 => question(4).prop_map(Step::Ask),
        6 => (question(1), writes).prop_map(|(question, writes)| Step::AskWhile(question, writes)),
        2 => (1..4u64).prop_map(Step::Tick),
        2 => Just(Step::Sweep),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 4..24)
}

struct Run<'p> {
    pool: &'p [Event],
    names: Names,
    folder: TempDir,
    /// `None` between two lives.
    running: Option<Running>,
    model: Model,
    now: u64,
}

impl Run<'_> {
    fn store(&self) -> &Embedded {
        &self.running.as_ref().expect("it lives").store
    }

    fn write(&mut self, group: &[Event]) {
        // A request to vanish is answered when all is gone: later than its neighbours.
        for group in group.chunk_by(|a, b| a.kind() != VANISH && b.kind() != VANISH) {
            let running = self.running.as_ref().expect("it lives");
            let expected: Vec<_> = group.iter().map(|event| self.model.put(event)).collect();
            let outcomes: Vec<_> = running.put(group).iter().map(word).collect();
            assert_eq!(outcomes, expected, "{group:?}");
        }
    }

    fn pick(&self, place: usize) -> Event {
        self.pool[place % self.pool.len()].clone()
    }

    fn asked(&self, question: &Question) -> Asked {
        let keys = question.viewer.as_ref();
        Asked {
            now: self.now,
            keys: keys.map(|keys| keys.iter().map(|n| author(*n)).collect()),
        }
    }

    fn filters(&self, question: &Question) -> Rc<[Filter]> {
        let filters = question.filters.iter();
        filters.map(|sketch| sketch.filter(&self.names)).collect()
    }

    fn query(&self, question: &Question) -> Query {
        let query = Query::new(self.filters(question), BOUNDS);
        match self.asked(question).keys {
            Some(keys) => query.seen_by(Viewer::new(&keys)),
            None => query,
        }
    }

    fn budget(&self, question: &Question) -> Budget {
        Budget {
            now: self.now,
            ..budget(question.entries)
        }
    }

    fn counter(&self, question: &Question) -> Count {
        let count = Count::new(self.filters(question));
        match self.asked(question).keys {
            Some(keys) => count.seen_by(Viewer::new(&keys)),
            None => count,
        }
    }

    fn ask(&self, question: &Question) {
        let (asked, filters) = (self.asked(question), self.filters(question));
        let (reader, budget) = (self.store().reader(), self.budget(question));
        let mut query = self.query(question);
        let mut given = Vec::new();
        let mut sink = |json: &str| given.push(json.to_owned());
        while query.slice(&reader, &budget, &mut sink).expect("a slice") == Progress::More {}
        let expected = self.model.answer(&filters, BOUNDS, &asked);
        let json: Vec<&str> = expected.iter().map(|event| event.json()).collect();
        assert_eq!(given, json, "{filters:?} {asked:?}");
        let all = self.model.union(&filters, &asked);
        let complete = all.iter().all(|event| expected.contains(event));
        match query.hint() {
            Some(EoseHint::Finish) => assert!(complete, "{filters:?}"),
            Some(EoseHint::More) => assert!(!complete, "{filters:?}"),
            // One filter leaves it open only if it asks for nothing: the pool is small.
            None => assert!(filters.len() > 1 || filters[0].limit == Some(0)),
        }
        let mut count = self.counter(question);
        while count.slice(&reader, &budget).expect("a slice") == Progress::More {}
        assert_eq!(count.total(), all.len() as u64, "{filters:?} {asked:?}");
        let hll = self.model.hll(&filters, &asked);
        assert_eq!(count.hll(), hll.as_ref(), "{filters:?} {asked:?}");
    }

    /// With events removed under way, an answer is the model's at the watermark without some of
    /// those.
    fn ask_while(&mut self, question: &Question, writes: Vec<Vec<usize>>) {
        let (asked, filters) = (self.asked(question), self.filters(question));
        let (reader, budget) = (self.store().reader(), self.budget(question));
        let before = self.model.clone();
        let (mut query, mut count) = (self.query(question), self.counter(question));
        let mut given = Vec::new();
        let mut writes = writes.into_iter();
        let mut more = (Progress::More, Progress::More);
        while more != (Progress::Done, Progress::Done) {
            let mut sink = |json: &str| given.push(json.to_owned());
            if more.0 == Progress::More {
                more.0 = query.slice(&reader, &budget, &mut sink).expect("a slice");
            }
            if more.1 == Progress::More {
                more.1 = count.slice(&reader, &budget).expect("a slice");
            }
            let places = writes.next().unwrap_or_default();
            let group: Vec<Event> = places.iter().map(|place| self.pick(*place)).collect();
            self.write(&group);
        }
        let matching = before.matching(&filters[0], &asked);
        let stays = |event: &&&Event| self.model.kept(event, &before);
        let (all, least) = (matching.len(), matching.iter().filter(stays).count());
        assert!(
            (least..=all).contains(&(count.total() as usize)),
            "{filters:?}"
        );
        let mut left = limit(&filters[0], BOUNDS);
        let mut rest = given.iter().peekable();
        let mut missing = false;
        for event in matching {
            if left > 0 && rest.next_if(|json| *json == event.json()).is_some() {
                left -= 1;
            } else if self.model.kept(event, &before) {
                assert_eq!(left, 0, "missing: {event:?}");
                missing = true;
            }
        }
        assert_eq!(rest.next(), None, "an event too many, or out of order");
        if missing {
            assert_ne!(query.hint(), Some(EoseHint::Finish), "{filters:?}");
        }
        if given.len() == all {
            assert_ne!(query.hint(), Some(EoseHint::More), "{filters:?}");
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(places) => {
                let pick = |&(place, forged): &(usize, bool)| match (self.pick(place), forged) {
                    (event, false) => event,
                    (event, true) => {
                        Event::parse(&event.json().replace("5a5a5a5a", "6b6b6b6b")).unwrap()
                    }
                };
                let group: Vec<Event> = places.iter().map(pick).collect();
                self.write(&group);
            }
            Step::Ask(question) => self.ask(&question),
            Step::AskWhile(question, writes) => self.ask_while(&question, writes),
            Step::Tick(by) => self.now += by,
            Step::Sweep => {
                let tables = &self.store().shared.tables;
                while !expire(tables, &mut Scratch::default(), self.now, Share::part(0))
                    .expect("sweeps")
                {}
                self.model.sweep(self.now);
            }
            Step::Restart => {
                // The folder is let go before it is taken again.
                drop(self.running.take());
                self.running = Some(Running::open(&options(self.folder.path())));
            }
        }
    }
}

fn run(pool: &[Event], steps: Vec<Step>) {
    let folder = folder();
    let mut run = Run {
        pool,
        names: Names::of_pool(pool),
        running: Some(Running::open(&options(folder.path()))),
        folder,
        model: Model::default(),
        now: 1,
    };
    steps.into_iter().for_each(|step| run.step(step));
    let stored: BTreeMap<u64, Event> = audit(run.store());
    let mut stored: Vec<&Event> = stored.values().collect();
    stored.sort_by_key(|event| *event.id());
    assert_eq!(stored, run.model.events());
}

fn cases() -> u32 {
    let cases = std::env::var("STORE_MODEL_CASES");
    cases.map_or(3_000, |cases| cases.parse().expect("a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn the_store_is_a_list(pool in pool(), steps in steps()) {
        run(&pool, steps);
    }
}
