//! Where the candidates for one filter come from: looked-up ids, or a walk over an index.

use super::layout::Entry;
use super::merge::{Merge, Step, View};
use super::plan::{Plan, Sieve, plan};
use super::query::Meter;
use crate::nostr::filter::Filter;
use crate::store::StoreError;

/// The candidates for one filter, in the order of answers.
pub struct Source {
    kind: Kind,
    sieve: Sieve,
}

enum Kind {
    Nothing,
    Ids(Ids),
    Merge(Merge),
}

impl Source {
    /// Chooses an index for the filter. Reads nothing yet.
    pub fn new(filter: &Filter) -> Source {
        match plan(filter) {
            Plan::Nothing => Source {
                kind: Kind::Nothing,
                sieve: Sieve {
                    youngest: 0,
                    oldest: 0,
                    kinds: false,
                    authors: false,
                    event: false,
                },
            },
            Plan::Ids(sieve) => Source {
                kind: Kind::Ids(Ids::default()),
                sieve,
            },
            Plan::Runs(runs, sieve) => Source {
                kind: Kind::Merge(Merge::new(runs, sieve.youngest, sieve.oldest)),
                sieve,
            },
        }
    }

    /// What a candidate must still pass against its event.
    pub fn sieve(&self) -> Sieve {
        self.sieve
    }

    /// Says that a new slice begins.
    pub fn resume(&mut self) {
        if let Kind::Merge(merge) = &mut self.kind {
            merge.resume();
        }
    }

    /// The next entry at or below the watermark that passes the sieve.
    pub fn peek(
        &mut self,
        filter: &Filter,
        watermark: u64,
        view: &mut View<'_>,
        meter: &mut Meter,
    ) -> Result<Step, StoreError> {
        loop {
            let step = match &mut self.kind {
                Kind::Nothing => Step::End,
                Kind::Ids(ids) => {
                    ids.peek(filter.ids.as_deref().unwrap_or_default(), view, meter)?
                }
                Kind::Merge(merge) => merge.peek(view, meter)?,
            };
            match step {
                Step::Entry(entry)
                    if entry.seq > watermark || !self.sieve.passes(filter, &entry) =>
                {
                    self.advance()
                }
                step => return Ok(step),
            }
        }
    }

    /// Says that the entry given last has been dealt with.
    pub fn advance(&mut self) {
        match &mut self.kind {
            Kind::Nothing => {}
            Kind::Ids(ids) => ids.given += 1,
            Kind::Merge(merge) => merge.advance(),
        }
    }
}

/// Ids are all looked up before the first is given, for their order is that of time. Their number is
/// bounded where filters are parsed.
#[derive(Default)]
struct Ids {
    looked_up: usize,
    found: Vec<Entry>,
    sorted: bool,
    given: usize,
}

impl Ids {
    fn peek(
        &mut self,
        ids: &[[u8; 32]],
        view: &View<'_>,
        meter: &mut Meter,
    ) -> Result<Step, StoreError> {
        while let Some(id) = ids.get(self.looked_up) {
            self.looked_up += 1;
            let entry = view.tables.id_entry(view.txn, view.young, id)?;
            self.found.extend(entry);
            if meter.entry() {
                return Ok(Step::Pause);
            }
        }
        if !self.sorted {
            self.found
                .sort_unstable_by_key(|entry| (entry.age, entry.id));
            self.sorted = true;
        }
        Ok(self
            .found
            .get(self.given)
            .map_or(Step::End, |entry| Step::Entry(*entry)))
    }
}
