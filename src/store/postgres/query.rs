//! Answering filters, in pieces: the promises of the embedded store's queries, kept with statements.
//!
//! Filters are answered in the order given; within a filter `created_at` descends, then `id` ascends;
//! an event once, and counted towards the limit of every filter that matches it. The first statement's
//! snapshot gives the watermark; what is above it is left to live delivery.
//!
//! A query is data between its reads: a place in the order, and what it has given. Each read runs on
//! one connection and ends at its bytes, or at [`DB_READ_TIME`].

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashSet;
use tokio_postgres::Row as Record;

use super::error::corrupt;
use super::group::{number, unreadable};
use super::keys::{Half, signed};
use super::plan::{Place, Plan, Runs};
use super::pool::{Lease, Param};
use super::texts::{COUNT, READ, Texts};
use crate::limits::{
    DB_COUNT_ENTRIES_MAX, DB_READ_ENTRIES_FIRST, DB_READ_ENTRIES_MAX, DB_READ_ENTRIES_WIDE,
    DB_READ_TIME, DB_RUN_ENTRIES_MIN, HINT_ENTRIES_MAX, READ_BYTES_MAX,
};
use crate::nostr::event::Event;
use crate::nostr::filter::Filter;
use crate::nostr::hll::Hll;
use crate::nostr::message::EoseHint;
use crate::nostr::sealed::{self, Viewer};
use crate::store::embedded::{Progress, QueryBounds};
use crate::store::{Row, Rows, StoreError, StoreErrorKind};

/// What one read may give.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes of JSON. Passed only by a first event that is larger on its own.
    pub bytes_max: usize,
    /// Seconds since 1970: what has expired by then is not there (NIP-40). Of 0 nothing has.
    pub now: u64,
    /// The snapshot must have everything up to here: what was delivered live when the subscription
    /// was registered. A replica that has not yet is waited for.
    pub seq_min: u64,
}

/// A row as the database gives it, as one of an answer.
pub fn row_of(json: &[u8], expires: Option<i64>) -> Result<Row<'_>, StoreError> {
    Ok(Row {
        json: simdutf8::basic::from_utf8(json).map_err(|_| corrupt("an event"))?,
        expires: expires.map(|expires| expires as u64),
    })
}

/// A query that can be stopped and resumed.
pub struct Query {
    scan: Scan,
    bounds: QueryBounds,
    /// What the filter under way may still give; `None` before its first row.
    remaining: Option<usize>,
    /// Sequences given, if a later filter could give them again.
    given: HashSet<u64, foldhash::fast::RandomState>,
    /// A filter has ended before all that it matches was seen.
    cut: bool,
    /// Sequences that a filter matched beyond its limit, and that have not been given.
    beyond: Vec<u64>,
}

impl Query {
    /// A query that has read nothing yet.
    pub fn new(filters: Arc<[Filter]>, bounds: QueryBounds) -> Query {
        Query {
            scan: Scan {
                looks_wide: true,
                ..Scan::new(filters)
            },
            bounds,
            remaining: None,
            given: HashSet::default(),
            cut: false,
            beyond: Vec::new(),
        }
    }

    /// The same query for a client, who does not get what is sealed for others.
    pub fn seen_by(mut self, viewer: &Viewer) -> Query {
        self.scan.see_by(viewer);
        self
    }

    /// The same query about what was stored up to a sequence, whenever its first read is.
    pub fn up_to(mut self, watermark: u64) -> Query {
        self.scan.watermark = Some(watermark);
        self
    }

    /// The last sequence of the first read's snapshot; `None` before it.
    pub fn watermark(&self) -> Option<u64> {
        self.scan.watermark
    }

    /// What can be said, once everything has been given, of whether that is all there is (NIP-67).
    pub fn hint(&self) -> Option<EoseHint> {
        match (self.cut, self.beyond.is_empty()) {
            (false, _) => Some(EoseHint::Finish),
            (true, false) => Some(EoseHint::More),
            (true, true) => None,
        }
    }

    /// Goes on for one read.
    pub(super) async fn read(
        &mut self,
        lease: &Lease,
        budget: &Budget,
    ) -> Result<(Rows, Progress), StoreError> {
        let (mut rows, started) = (Rows::default(), Instant::now());
        while let Some(filter) = self.scan.filter() {
            let limit = self.bounds.limit(filter);
            let remaining = *self.remaining.get_or_insert(limit);
            if limit == 0 {
                self.cut = true;
                self.end_filter();
                continue;
            }
            let left = budget.bytes_max.saturating_sub(rows.bytes());
            if left == 0 || started.elapsed() >= DB_READ_TIME {
                return Ok((rows, Progress::More));
            }
            let Some(found) = self.scan.read(lease, budget, remaining, left).await? else {
                self.end_filter();
                continue;
            };
            if self.take(found, remaining, budget, &mut rows)? {
                return Ok((rows, Progress::More));
            }
        }
        Ok((rows, Progress::Done))
    }

    /// Takes what a statement has found. True: the bytes are used up.
    fn take(
        &mut self,
        found: Vec<Record>,
        remaining: usize,
        budget: &Budget,
        rows: &mut Rows,
    ) -> Result<bool, StoreError> {
        let edge = place(&found[0], 1)?;
        let mut left = remaining;
        for row in &found {
            let Some(at) = place(row, 4)? else { break };
            let seq = number(row, 3)?;
            if left == 0 {
                // One more than the limit: there is more, if no later filter gives it.
                self.cut = true;
                if !self.given.contains(&seq) {
                    self.beyond.push(seq);
                }
                self.end_filter();
                return Ok(false);
            }
            self.remaining = Some(left);
            let json: Option<&[u8]> = row.try_get(6).map_err(|_| unreadable())?;
            let Some(json) = json else { return Ok(true) };
            if !self.given.contains(&seq) {
                if !rows.is_empty() && rows.bytes() + json.len() > budget.bytes_max {
                    return Ok(true);
                }
                let expires: Option<i64> = row.try_get(7).map_err(|_| unreadable())?;
                rows.push(row_of(json, expires)?);
                self.beyond.retain(|beyond| *beyond != seq);
                if self.scan.is_more_than_last() {
                    self.given.insert(seq);
                }
            }
            self.scan.after = Some(at);
            left -= 1;
        }
        self.remaining = Some(left);
        match edge {
            // A look behind the limit goes no further than one statement.
            Some(_) if remaining == 0 => {
                self.cut = true;
                self.end_filter();
            }
            // All up to the edge was given; behind it there may be more.
            Some(edge) => self.scan.go_on_from(edge),
            None => self.end_filter(),
        }
        Ok(false)
    }

    fn end_filter(&mut self) {
        self.remaining = None;
        self.scan.next_filter();
    }
}

/// How many events match any of some filters; limits are ignored (NIP-45).
pub struct Count {
    scan: Scan,
    total: u64,
    hll: Option<Hll>,
}

impl Count {
    /// A count that has read nothing yet.
    pub fn new(filters: Arc<[Filter]>) -> Count {
        Count {
            hll: Hll::of(&filters),
            scan: Scan::new(filters),
            total: 0,
        }
    }

    /// The same count for a client, who does not get what is sealed for others.
    pub fn seen_by(mut self, viewer: &Viewer) -> Count {
        self.scan.see_by(viewer);
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

    /// Goes on for one read. Of the first filter the database counts; of a later one only what no
    /// earlier filter matches, which is looked at here.
    pub(super) async fn read(
        &mut self,
        lease: &Lease,
        budget: &Budget,
    ) -> Result<Progress, StoreError> {
        let started = Instant::now();
        while self.scan.filter().is_some() {
            if started.elapsed() >= DB_READ_TIME {
                return Ok(Progress::More);
            }
            let edge = match self.scan.at {
                0 => self.count(lease, budget).await?,
                _ => self.count_rows(lease, budget).await?,
            };
            match edge {
                Some(edge) => self.scan.go_on_from(edge),
                None => self.scan.next_filter(),
            }
        }
        Ok(Progress::Done)
    }

    /// Counts the next entries of the first filter. Returns where to go on, if there may be more.
    async fn count(&mut self, lease: &Lease, budget: &Budget) -> Result<Option<Place>, StoreError> {
        let wants_authors = self.hll.is_some();
        let unused = 0i64;
        let found = self
            .scan
            .ask(
                lease,
                &COUNT,
                budget,
                DB_COUNT_ENTRIES_MAX,
                &wants_authors,
                &unused,
            )
            .await?;
        let Some(found) = found else { return Ok(None) };
        let row = &found[0];
        self.total += number(row, 3)?;
        if let Some(hll) = &mut self.hll {
            let authors: Option<Vec<&[u8]>> = row.try_get(4).map_err(|_| unreadable())?;
            for author in authors.unwrap_or_default() {
                hll.add(author.try_into().map_err(|_| unreadable())?);
            }
        }
        place(row, 1)
    }

    async fn count_rows(
        &mut self,
        lease: &Lease,
        budget: &Budget,
    ) -> Result<Option<Place>, StoreError> {
        let most = DB_READ_ENTRIES_MAX;
        let found = self.scan.read(lease, budget, most, READ_BYTES_MAX).await?;
        let Some(found) = found else { return Ok(None) };
        let mut last = None;
        for row in &found {
            let Some(at) = place(row, 4)? else { break };
            let json: Option<&[u8]> = row.try_get(6).map_err(|_| unreadable())?;
            // The bytes are used up, or one row more than asked for: go on behind the last one.
            let Some(json) = json else { return Ok(last) };
            let text = simdutf8::basic::from_utf8(json).ok();
            let event = text.and_then(|text| Event::parse(text).ok());
            let event = event.ok_or(corrupt("an event"))?;
            let earlier = &self.scan.filters[..self.scan.at];
            self.total += u64::from(!earlier.iter().any(|filter| filter.matches(&event)));
            last = Some(at);
        }
        place(&found[0], 1)
    }
}

/// The filters, one after the other.
struct Scan {
    filters: Arc<[Filter]>,
    /// The filter under way.
    at: usize,
    /// Its plan, once it has begun.
    plan: Option<Plan>,
    /// The plan of its first statement, where that is another.
    wide: Option<Plan>,
    looks_wide: bool,
    /// Where its next statement begins, if not at its start.
    after: Option<Place>,
    /// How often its entries a run have grown.
    grown: u32,
    watermark: Option<u64>,
    /// Who asks: tags of which a sealed event must have one. `None` sees everything.
    viewer: Option<Vec<Half>>,
}

impl Scan {
    fn new(filters: Arc<[Filter]>) -> Scan {
        Scan {
            filters,
            at: 0,
            plan: None,
            wide: None,
            looks_wide: false,
            after: None,
            grown: 0,
            watermark: None,
            viewer: None,
        }
    }

    fn see_by(&mut self, viewer: &Viewer) {
        self.viewer = Some(viewer.keys().iter().map(Half::of_addressee).collect());
    }

    fn filter(&self) -> Option<&Filter> {
        self.filters.get(self.at)
    }

    fn next_filter(&mut self) {
        self.at += 1;
        self.plan = None;
        self.wide = None;
        self.after = None;
        self.grown = 0;
    }

    fn go_on_from(&mut self, place: Place) {
        self.after = Some(place);
        match self.wide.take() {
            Some(_) => {}
            None => self.grown += 1,
        }
    }

    fn is_more_than_last(&self) -> bool {
        self.at + 1 < self.filters.len()
    }

    /// Whether the filter under way can give anything to who asks.
    fn is_hopeless(&self) -> bool {
        let sealed = self.filter().and_then(|filter| filter.kinds.as_ref());
        let only_sealed =
            sealed.is_some_and(|kinds| kinds.iter().all(|kind| sealed::is_sealed(*kind)));
        only_sealed && self.viewer.as_ref().is_some_and(Vec::is_empty)
    }

    /// Reads the next rows of the filter under way: as many as asked for, and one more without its
    /// JSON. `None`: it matches nothing.
    async fn read(
        &mut self,
        lease: &Lease,
        budget: &Budget,
        rows: usize,
        bytes: usize,
    ) -> Result<Option<Vec<Record>>, StoreError> {
        // A limit may be as large as a number can be. What is cut off here is the next statement's.
        let most = rows.min(DB_READ_ENTRIES_MAX) + 1;
        let entries = match rows {
            // A look behind the limit must not end at the first entry, which may have expired.
            0 => HINT_ENTRIES_MAX as usize,
            _ => most,
        };
        let (most, bytes) = (signed(most as u64), signed(bytes as u64));
        self.ask(lease, &READ, budget, entries, &most, &bytes).await
    }

    /// Runs a statement for the filter under way. `wanted`: the rows that would be enough.
    async fn ask(
        &mut self,
        lease: &Lease,
        texts: &'static Texts,
        budget: &Budget,
        wanted: usize,
        thirteenth: Param<'_>,
        fourteenth: Param<'_>,
    ) -> Result<Option<Vec<Record>>, StoreError> {
        if self.plan.is_none() && !self.is_hopeless() {
            self.plan = self.filter().and_then(Plan::of);
            let filter = self.filter().filter(|_| self.looks_wide);
            self.wide = self
                .plan
                .as_ref()
                .zip(filter)
                .and_then(|(plan, filter)| plan.wide(filter));
        }
        let sealed = self.must_look();
        let Some(plan) = self.wide.as_ref().or(self.plan.as_ref()) else {
            // The watermark is wanted even where nothing else is.
            self.note_head(lease, budget).await?;
            return Ok(None);
        };
        let place = self.after.unwrap_or(plan.start);
        let entries = match self.wide {
            Some(_) => (DB_READ_ENTRIES_WIDE / plan.len()).max(wanted),
            None => self.entries(plan, wanted, sealed),
        };
        let entries = signed(entries as u64);
        let watermark = self.watermark.map(signed);
        let now = signed(budget.now);
        let nobody = Vec::new();
        let viewer = self.viewer.as_ref().unwrap_or(&nobody);
        let mut params: Vec<Param<'_>> = vec![
            &place.age,
            &place.half,
            &plan.oldest,
            &entries,
            &watermark,
            &now,
            &plan.kinds,
            &plan.authors,
            &plan.tags,
            &plan.groups,
            &sealed,
            viewer,
            thirteenth,
            fourteenth,
        ];
        match &plan.runs {
            Runs::Time => {}
            Runs::Ids(keys) | Runs::Authors(keys) => params.push(keys),
            Runs::Kinds(kinds) => params.push(kinds),
            Runs::Pairs(keys, kinds) => params.extend([keys as Param<'_>, kinds]),
            Runs::Tags(tags) => params.push(tags),
        }
        let rows = lease.ask(texts.for_runs(&plan.runs), &params).await?;
        let head = number(rows.first().ok_or(unreadable())?, 0)?;
        self.see_head(head, budget)?;
        Ok(Some(rows))
    }

    /// Entries that the next statement takes of each run.
    fn entries(&self, plan: &Plan, wanted: usize, sealed: bool) -> usize {
        let runs = plan.len();
        let most = (DB_READ_ENTRIES_MAX.max(wanted) / runs).max(DB_RUN_ENTRIES_MIN);
        let open = sealed || plan.is_sieved();
        let first = match (runs, open) {
            (1, false) => wanted,
            (1, true) => 2 * wanted,
            _ => {
                let enough = DB_READ_ENTRIES_FIRST.max(2 * wanted);
                enough.div_ceil(runs).max(DB_RUN_ENTRIES_MIN)
            }
        };
        let grown = first.saturating_mul(4usize.saturating_pow(self.grown));
        let enough = if open { most } else { wanted };
        grown.min(most).min(enough).max(1)
    }

    /// Whether the filter under way could give what is sealed for somebody else than who asks.
    fn must_look(&self) -> bool {
        self.viewer.is_some() && self.filter().is_some_and(Viewer::must_look)
    }

    async fn note_head(&mut self, lease: &Lease, budget: &Budget) -> Result<(), StoreError> {
        if self.watermark.is_none() {
            let rows = lease.ask("SELECT seq FROM buzz.head", &[]).await?;
            let head = number(rows.first().ok_or(unreadable())?, 0)?;
            self.see_head(head, budget)?;
        }
        Ok(())
    }

    /// Takes the first snapshot's last sequence for the watermark.
    fn see_head(&mut self, head: u64, budget: &Budget) -> Result<(), StoreError> {
        if self.watermark.is_none() {
            if head < budget.seq_min {
                return Err(StoreError::new(StoreErrorKind::Behind, ""));
            }
            self.watermark = Some(head);
        }
        Ok(())
    }
}

fn place(row: &Record, at: usize) -> Result<Option<Place>, StoreError> {
    let age: Option<i64> = row.try_get(at).map_err(|_| unreadable())?;
    let half: Option<Half> = row.try_get(at + 1).map_err(|_| unreadable())?;
    Ok(age.zip(half).map(|(age, half)| Place { age, half }))
}
