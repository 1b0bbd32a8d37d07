//! The embedded store under the tests that every store passes.

use super::super::apply::Scratch;
use super::super::upkeep::{Share, expire};
use super::*;
use crate::nostr::hll::Hll;
use crate::nostr::message::EoseHint;
use crate::store::conformance::{Ask, Outcomes, TestQuery, TestStore, conformance, sink};

struct Conforming {
    store: Embedded,
    outcomes: Outcomes,
    _dir: TempDir,
}

impl Conforming {
    fn fresh() -> Conforming {
        let dir = folder();
        let store = Embedded::open(&options(dir.path())).expect("opens");
        let (sink, outcomes) = sink();
        store.start_writer_at(sink, || 0);
        Conforming {
            store,
            outcomes,
            _dir: dir,
        }
    }
}

impl Drop for Conforming {
    fn drop(&mut self) {
        self.store.close();
    }
}

impl TestStore for Conforming {
    const CASES: u32 = 2_000;

    fn open() -> Option<Conforming> {
        Some(Conforming::fresh())
    }

    fn empty(&mut self) {
        *self = Conforming::fresh();
    }

    fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    fn submit(&self, jobs: &mut Vec<Job>) {
        self.store.submit(jobs);
    }

    fn submitter(&self) -> Box<dyn Fn(&mut Vec<Job>) + Send> {
        let store = self.store.clone();
        Box::new(move |jobs| store.submit(jobs))
    }

    fn pending(&self) -> usize {
        self.store.pending()
    }

    fn close(&self) {
        self.store.close();
    }

    fn query(&self, filters: &[Filter], bounds: QueryBounds, ask: &Ask) -> Box<dyn TestQuery> {
        let mut query = Query::new(Rc::<[Filter]>::from(filters), bounds);
        if let Some(viewer) = &ask.viewer {
            query = query.seen_by(viewer.clone());
        }
        Box::new(Asked {
            reader: self.store.reader(),
            query,
            done: false,
            budget: pieces(ask),
        })
    }

    fn count(&self, filters: &[Filter], ask: &Ask) -> (u64, Option<Hll>) {
        let mut count = Count::new(Rc::<[Filter]>::from(filters));
        if let Some(viewer) = &ask.viewer {
            count = count.seen_by(viewer.clone());
        }
        let reader = self.store.reader();
        while count.slice(&reader, &pieces(ask)).expect("a slice") == Progress::More {}
        (count.total(), count.hll().cloned())
    }

    fn sweep(&self, now: u64) {
        let tables = &self.store.shared.tables;
        while !expire(tables, &mut Scratch::default(), now, Share::part(0)).expect("sweeps") {}
    }

    fn find(&self, id: &[u8; 32]) -> Option<Found> {
        self.store.reader().find(id).expect("reads")
    }

    fn last_seq(&self) -> u64 {
        self.store.reader().last_seq().expect("reads")
    }

    fn export(&self, ask: &Ask) -> Vec<(u64, String)> {
        let (mut seen, mut after) = (Vec::new(), Some(0));
        while let Some(from) = after {
            let each = &mut |seq, json: &str| seen.push((seq, json.to_owned()));
            let reader = self.store.reader();
            after = reader
                .events_after(from, &pieces(ask), each)
                .expect("a slice");
        }
        seen
    }

    fn audit(&self) -> BTreeMap<u64, Event> {
        audit(&self.store)
    }

    fn edit(&self, keys: &[[u8; 32]], list: List, on: bool) -> Vec<bool> {
        self.store.edit_access(keys, list, on).expect("edits")
    }

    fn access(&self, key: &[u8; 32]) -> Access {
        self.store.reader().access(key).expect("reads")
    }

    fn entries(&self, after: Option<&[u8; 32]>) -> Vec<([u8; 32], Access)> {
        let mut entries = Vec::new();
        let list = &mut |key, access| {
            entries.push((key, access));
            std::ops::ControlFlow::Continue(())
        };
        self.store.reader().access_list(after, list).expect("reads");
        entries
    }
}

/// A piece is so many entries.
fn pieces(ask: &Ask) -> Budget {
    Budget {
        now: ask.now,
        ..budget(ask.piece)
    }
}

struct Asked {
    reader: Reader,
    query: Query,
    done: bool,
    budget: Budget,
}

impl TestQuery for Asked {
    fn next(&mut self) -> Result<Option<Vec<String>>, StoreError> {
        if self.done {
            return Ok(None);
        }
        let mut events = Vec::new();
        let sink = &mut |json: &str| events.push(json.to_owned());
        let progress = self.query.slice(&self.reader, &self.budget, sink)?;
        self.done = progress == Progress::Done;
        Ok(Some(events))
    }

    fn watermark(&self) -> Option<u64> {
        self.query.watermark()
    }

    fn hint(&self) -> Option<EoseHint> {
        self.query.hint()
    }
}

conformance!(Conforming);
