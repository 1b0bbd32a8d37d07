//! Answering filters in bounded slices.
//!
//! Filters are answered in the order given; within a filter `created_at` descends, then `id`
//! ascends. A filter's answer is its newest `limit` events. An event that an earlier filter has
//! given counts towards a later filter's limit and is not given again: the whole is the union of the
//! answers.
//!
//! The first slice's snapshot gives the watermark: the last sequence committed then. Everything
//! above it, in this slice or a later one, is left to live delivery. An event that is replaced while
//! the query runs is not given if its turn comes later: the new version is above the watermark and
//! comes live.
//!
//! Where a filter's limit ends its answer, a few entries further are looked at for one more match:
//! so `EOSE` can say whether there is more (NIP-67).
//!
//! A slice opens a read transaction and ends it. It stops at the first bound of its budget, but
//! never before it has made a step.

use std::ops::Deref;
use std::rc::Rc;
use std::time::Instant;

use hashbrown::HashSet;

use super::layout::{self, Entry};
use super::merge::{Step, View};
use super::reader::Reader;
use super::source::Source;
use crate::limits::{HINT_ENTRIES_MAX, SCAN_CLOCK_ENTRIES};
use crate::nostr::event::Event;
use crate::nostr::filter::Filter;
use crate::nostr::hll::Hll;
use crate::nostr::message::EoseHint;
use crate::nostr::sealed::{self, Viewer};
use crate::store::{Row, StoreError};

/// How many events one filter may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryBounds {
    /// The most, whatever a filter asks for.
    pub limit_max: usize,
    /// For a filter that asks for no number.
    pub limit_default: usize,
}

/// What one slice may use. It ends at the first bound reached.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Index entries read and events fetched.
    pub entries_max: u32,
    /// Bytes of JSON given. Passed only by a first event that is larger on its own.
    pub bytes_max: usize,
    /// The time to stop at; looked at every [`SCAN_CLOCK_ENTRIES`] entries.
    pub deadline: Option<Instant>,
    /// Seconds since 1970: what has expired by then is not there (NIP-40). Of 0 nothing has.
    pub now: u64,
}

/// Whether there is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything has been given.
    Done,
    /// Call again.
    More,
}

/// A query that can be stopped and resumed. Over `Rc` it stays on its shard; over `Arc` it may go on
/// on another thread, see [`with_filters`](Query::with_filters).
pub struct Query<F = Rc<[Filter]>> {
    scan: Scan<F>,
    bounds: QueryBounds,
    /// What the filter under way may still give; `None` before its first entry.
    remaining: Option<usize>,
    /// Sequences given, if a later filter could give them again.
    given: HashSet<u64, foldhash::fast::RandomState>,
    /// A filter has ended before all that it matches was seen.
    cut: bool,
    /// Sequences that a filter matched beyond its limit, and that have not been given.
    beyond: Vec<u64>,
}

impl<F: Deref<Target = [Filter]>> Query<F> {
    /// A query that has read nothing yet.
    pub fn new(filters: F, bounds: QueryBounds) -> Query<F> {
        Query {
            scan: Scan::new(filters),
            bounds,
            remaining: None,
            given: HashSet::default(),
            cut: false,
            beyond: Vec::new(),
        }
    }

    /// The same query at the same place over another pointer to equal filters, to move it to a
    /// thread or back.
    pub fn with_filters<G: Deref<Target = [Filter]>>(self, filters: G) -> Query<G> {
        Query {
            scan: self.scan.with_filters(filters),
            bounds: self.bounds,
            remaining: self.remaining,
            given: self.given,
            cut: self.cut,
            beyond: self.beyond,
        }
    }

    /// The same query for a client, who does not get what is sealed for others.
    pub fn seen_by(mut self, viewer: Viewer) -> Query<F> {
        self.scan.viewer = Some(viewer);
        self
    }

    /// The same query about what was stored up to a sequence, whenever its first slice is.
    pub fn up_to(mut self, watermark: u64) -> Query<F> {
        self.scan.watermark = Some(watermark);
        self
    }

    /// The last sequence of the first slice's snapshot; `None` before the first slice.
    pub fn watermark(&self) -> Option<u64> {
        self.scan.watermark
    }

    /// Goes on for one slice. Each event's JSON is handed to `sink`, which may keep nothing of it.
    pub fn slice(
        &mut self,
        reader: &Reader,
        budget: &Budget,
        sink: &mut dyn FnMut(&str),
    ) -> Result<Progress, StoreError> {
        self.slice_rows(reader, budget, &mut |row| sink(row.json))
    }

    /// As [`slice`](Self::slice), for one who keeps rows for a while: they come with their times.
    pub fn slice_rows(
        &mut self,
        reader: &Reader,
        budget: &Budget,
        sink: &mut dyn FnMut(Row<'_>),
    ) -> Result<Progress, StoreError> {
        let moment = reader.moment()?;
        let mut view = View::new(reader.tables(), &moment);
        let mut meter = Meter::new(budget);
        self.scan.begin(&view)?;
        while let Some(filter) = self.scan.filter() {
            let limit = self.bounds.limit(filter);
            let remaining = self.remaining.get_or_insert(limit);
            if *remaining == 0 {
                // With a limit of 0 nothing is asked for, so nothing is read.
                match limit {
                    0 => self.cut = true,
                    _ => self.look_beyond(&mut view, meter.now)?,
                }
                self.end_filter();
                continue;
            }
            match self.scan.peek(&mut view, &mut meter)? {
                Step::Pause => return Ok(Progress::More),
                Step::End => {
                    self.end_filter();
                    continue;
                }
                Step::Entry(entry) => match self.offer(entry.seq, &view, &mut meter, sink)? {
                    true => self.scan.advance(),
                    false => return Ok(Progress::More),
                },
            }
            if meter.spent() && self.remaining != Some(0) {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done)
    }

    /// Gives the event of an entry, if it is what the filter asks for. False: it is too large for
    /// what is left of the slice.
    fn offer(
        &mut self,
        seq: u64,
        view: &View<'_>,
        meter: &mut Meter,
        sink: &mut dyn FnMut(Row<'_>),
    ) -> Result<bool, StoreError> {
        let given = !self.given.is_empty() && self.given.contains(&seq);
        // What the index leaves open is open for an event given before, too: only what this filter
        // asks for counts towards its limit.
        if !given || self.scan.needs_event() {
            meter.entry();
            let Some(row) = view.tables.row_at(view.txn, view.young, seq, meter.now)? else {
                return Ok(true);
            };
            if !self.scan.event_matches(row.json)? {
                return Ok(true);
            }
            if !given {
                if !meter.has_room(row.json.len()) {
                    return Ok(false);
                }
                sink(row);
                meter.bytes(row.json.len());
                self.beyond.retain(|beyond| *beyond != seq);
                if self.scan.is_more_than_last() {
                    self.given.insert(seq);
                }
            }
        }
        self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(1));
        Ok(true)
    }

    /// What can be said, once everything has been given, of whether that is all there is (NIP-67).
    pub fn hint(&self) -> Option<EoseHint> {
        match (self.cut, self.beyond.is_empty()) {
            (false, _) => Some(EoseHint::Finish),
            (true, false) => Some(EoseHint::More),
            (true, true) => None,
        }
    }

    /// Looks behind a filter's limit for one more event that it matches, a few entries far.
    fn look_beyond(&mut self, view: &mut View<'_>, now: u64) -> Result<(), StoreError> {
        let mut meter = Meter::new(&Budget {
            entries_max: HINT_ENTRIES_MAX,
            bytes_max: 0,
            deadline: None,
            now,
        });
        loop {
            match self.scan.peek(view, &mut meter)? {
                Step::End => return Ok(()),
                Step::Pause => break,
                Step::Entry(entry) => {
                    let json = match self.given.contains(&entry.seq) {
                        true => None,
                        false => view.tables.json_at(view.txn, view.young, entry.seq, now)?,
                    };
                    if let Some(json) = json
                        && self.scan.event_matches(json)?
                    {
                        self.beyond.push(entry.seq);
                        break;
                    }
                    self.scan.advance();
                }
            }
        }
        self.cut = true;
        Ok(())
    }

    fn end_filter(&mut self) {
        self.remaining = None;
        self.scan.next_filter();
    }
}

impl QueryBounds {
    /// How many events a filter may give.
    pub fn limit(&self, filter: &Filter) -> usize {
        let asked = filter.limit.map_or(self.limit_default, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
        asked.min(self.limit_max)
    }
}

/// How many events match any of some filters; limits are ignored (NIP-45). Resumable like a
/// [`Query`]. Events are fetched only where the index does not decide, or where a HyperLogLog value
/// is made of their authors.
pub struct Count<F = Rc<[Filter]>> {
    scan: Scan<F>,
    total: u64,
    hll: Option<Hll>,
}

impl<F: Deref<Target = [Filter]>> Count<F> {
    /// A count that has read nothing yet.
    pub fn new(filters: F) -> Count<F> {
        Count {
            hll: Hll::of(&filters),
            scan: Scan::new(filters),
            total: 0,
        }
    }

    /// The same count at the same place over another pointer to equal filters.
    pub fn with_filters<G: Deref<Target = [Filter]>>(self, filters: G) -> Count<G> {
        Count {
            scan: self.scan.with_filters(filters),
            total: self.total,
            hll: self.hll,
        }
    }

    /// The same count for a client, who does not get what is sealed for others.
    pub fn seen_by(mut self, viewer: Viewer) -> Count<F> {
        self.scan.viewer = Some(viewer);
        self
    }

    /// Events counted so far; each once.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The HyperLogLog value of the events counted so far, for filters that have one (NIP-45).
    pub fn hll(&self) -> Option<&Hll> {
        self.hll.as_ref()
    }

    /// Goes on for one slice.
    pub fn slice(&mut self, reader: &Reader, budget: &Budget) -> Result<Progress, StoreError> {
        let moment = reader.moment()?;
        let mut view = View::new(reader.tables(), &moment);
        let mut meter = Meter::new(budget);
        self.scan.begin(&view)?;
        while self.scan.filter().is_some() {
            match self.scan.peek(&mut view, &mut meter)? {
                Step::Pause => return Ok(Progress::More),
                Step::End => self.scan.next_filter(),
                Step::Entry(entry) => {
                    self.total += u64::from(self.counts(&entry, &view, &mut meter)?);
                    self.scan.advance();
                }
            }
        }
        Ok(Progress::Done)
    }

    fn counts(
        &mut self,
        entry: &Entry,
        view: &View<'_>,
        meter: &mut Meter,
    ) -> Result<bool, StoreError> {
        let decided = !self.scan.needs_event() && self.scan.at == 0;
        if decided && !entry.expires && self.hll.is_none() {
            return Ok(true);
        }
        meter.entry();
        let Some(json) = view
            .tables
            .json_at(view.txn, view.young, entry.seq, meter.now)?
        else {
            return Ok(false);
        };
        if !self.scan.event_matches(json)? {
            return Ok(false);
        }
        if self.scan.at == 0 {
            if let Some(hll) = &mut self.hll {
                hll.add(&layout::json_pubkey(json)?);
            }
            return Ok(true);
        }
        let event = stored(json)?;
        Ok(!self.scan.filters[..self.scan.at]
            .iter()
            .any(|filter| filter.matches(&event)))
    }
}

/// The filters, one after the other.
struct Scan<F> {
    filters: F,
    /// The filter under way.
    at: usize,
    source: Option<Source>,
    watermark: Option<u64>,
    /// Who asks; `None` sees everything.
    viewer: Option<Viewer>,
}

impl<F: Deref<Target = [Filter]>> Scan<F> {
    fn new(filters: F) -> Scan<F> {
        Scan {
            filters,
            at: 0,
            source: None,
            watermark: None,
            viewer: None,
        }
    }

    fn with_filters<G>(self, filters: G) -> Scan<G> {
        Scan {
            filters,
            at: self.at,
            source: self.source,
            watermark: self.watermark,
            viewer: self.viewer,
        }
    }

    /// Begins a slice.
    fn begin(&mut self, view: &View<'_>) -> Result<(), StoreError> {
        if self.watermark.is_none() {
            self.watermark = Some(view.young.last_seq);
        }
        if let Some(source) = &mut self.source {
            source.resume();
        }
        Ok(())
    }

    fn filter(&self) -> Option<&Filter> {
        self.filters.get(self.at)
    }

    fn next_filter(&mut self) {
        self.at += 1;
        self.source = None;
    }

    fn is_more_than_last(&self) -> bool {
        self.at + 1 < self.filters.len()
    }

    fn peek(&mut self, view: &mut View<'_>, meter: &mut Meter) -> Result<Step, StoreError> {
        let Some(filter) = self.filters.get(self.at) else {
            return Ok(Step::End);
        };
        let source = self.source.get_or_insert_with(|| Source::new(filter));
        source.peek(filter, self.watermark.unwrap_or(0), view, meter)
    }

    fn advance(&mut self) {
        if let Some(source) = &mut self.source {
            source.advance();
        }
    }

    fn needs_event(&self) -> bool {
        let sieve = self.source.as_ref().map(Source::sieve);
        sieve.is_some_and(|sieve| sieve.needs_event()) || self.must_look()
    }

    /// Whether the filter under way could give what is sealed for somebody else than who asks.
    fn must_look(&self) -> bool {
        self.viewer.is_some() && self.filter().is_some_and(Viewer::must_look)
    }

    /// Whether who asks may see an event.
    fn may_see(&self, json: &str) -> Result<bool, StoreError> {
        match &self.viewer {
            Some(viewer) if sealed::is_sealed(layout::json_kind(json)?) => {
                Ok(viewer.may_see(&stored(json)?))
            }
            _ => Ok(true),
        }
    }

    /// Checks of an event what its index entry could not tell.
    fn event_matches(&self, json: &str) -> Result<bool, StoreError> {
        let (Some(filter), Some(source)) = (self.filter(), &self.source) else {
            return Ok(false);
        };
        let sieve = source.sieve();
        if sieve.authors
            && let Some(authors) = &filter.authors
        {
            let pubkey = layout::json_pubkey(json)?;
            if authors.binary_search(&pubkey).is_err() {
                return Ok(false);
            }
        }
        Ok((!sieve.event || filter.matches(&stored(json)?))
            && (!self.must_look() || self.may_see(json)?))
    }
}

fn stored(json: &str) -> Result<Event, StoreError> {
    Event::parse(json).map_err(|_| layout::corrupt("an event"))
}

/// Counts a slice's use against its budget.
pub(super) struct Meter {
    entries_left: u32,
    entries_to_clock: u32,
    bytes_left: usize,
    nothing_given: bool,
    deadline: Option<Instant>,
    spent: bool,
    /// See [`Budget::now`].
    now: u64,
}

impl Meter {
    pub(super) fn new(budget: &Budget) -> Meter {
        Meter {
            entries_left: budget.entries_max,
            entries_to_clock: SCAN_CLOCK_ENTRIES,
            bytes_left: budget.bytes_max,
            nothing_given: true,
            deadline: budget.deadline,
            spent: false,
            now: budget.now,
        }
    }

    /// Counts an entry. True: the slice is over.
    #[inline]
    pub(super) fn entry(&mut self) -> bool {
        self.entries_left = self.entries_left.saturating_sub(1);
        self.entries_to_clock -= 1;
        if self.entries_left == 0 {
            self.spent = true;
        }
        if self.entries_to_clock == 0 {
            self.entries_to_clock = SCAN_CLOCK_ENTRIES;
            self.spent |= self
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline);
        }
        self.spent
    }

    /// Counts bytes given.
    pub(super) fn bytes(&mut self, bytes: usize) {
        self.nothing_given = false;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.spent |= self.bytes_left == 0;
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.nothing_given || bytes <= self.bytes_left
    }

    fn spent(&self) -> bool {
        self.spent
    }
}
