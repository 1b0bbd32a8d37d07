//! A question to the store: a REQ or a COUNT, at any place between its first row and its last.
//!
//! A *near* question is read on the thread that has it, slice by slice. A *far* one is asked of a
//! store elsewhere, read by read, and awaited.

use std::sync::Arc;

use crate::nostr::filter::Filter;
use crate::nostr::hll::Hll;
use crate::nostr::message::EoseHint;
use crate::nostr::sealed::Viewer;
use crate::shard::hooks;
use crate::store::embedded::{self, Progress, QueryBounds};
use crate::store::{Reader, Row, Rows, StoreError, postgres};

/// See the head of this file.
pub enum Question {
    /// A REQ.
    Events(Box<embedded::Query<Arc<[Filter]>>>),
    /// A COUNT (NIP-45).
    Count(Box<embedded::Count<Arc<[Filter]>>>),
    /// A REQ, and what its first read must see.
    FarEvents(Box<postgres::Query>, u64),
    /// A COUNT (NIP-45).
    FarCount(Box<postgres::Count>),
}

impl Question {
    /// A REQ that has read nothing yet. Its subscription has been registered: from then on live
    /// events reach it.
    pub fn events(
        reader: &Reader,
        filters: Arc<[Filter]>,
        bounds: QueryBounds,
        viewer: Viewer,
    ) -> Question {
        match reader {
            Reader::Embedded(_) => {
                let query = embedded::Query::new(filters, bounds).seen_by(viewer);
                Question::Events(Box::new(query))
            }
            Reader::Postgres(reader) => {
                let query = postgres::Query::new(filters, bounds).seen_by(&viewer);
                Question::FarEvents(Box::new(query), reader.delivered())
            }
        }
    }

    /// A COUNT that has read nothing yet.
    pub fn count(reader: &Reader, filters: Arc<[Filter]>, viewer: Viewer) -> Question {
        match reader {
            Reader::Embedded(_) => {
                let count = embedded::Count::new(filters).seen_by(viewer);
                Question::Count(Box::new(count))
            }
            Reader::Postgres(_) => {
                let count = postgres::Count::new(filters).seen_by(&viewer);
                Question::FarCount(Box::new(count))
            }
        }
    }

    /// Whether it is asked elsewhere.
    pub fn is_far(&self) -> bool {
        matches!(self, Question::FarEvents(..) | Question::FarCount(_))
    }

    /// Goes on with a near one for one slice. Each event is handed to `each`.
    ///
    /// # Errors
    ///
    /// What the store says; the question cannot go on then.
    ///
    /// # Panics
    ///
    /// If it is far.
    pub fn slice(
        &mut self,
        reader: &embedded::Reader,
        budget: &embedded::Budget,
        each: &mut dyn FnMut(Row<'_>),
    ) -> Result<Progress, StoreError> {
        hooks::stall();
        match self {
            Question::Events(query) => query.slice_rows(reader, budget, each),
            Question::Count(count) => count.slice(reader, budget),
            Question::FarEvents(..) | Question::FarCount(_) => unreachable!("a far question"),
        }
    }

    /// Goes on with a far one for one read.
    ///
    /// # Errors
    ///
    /// What the store says; the question cannot go on then.
    ///
    /// # Panics
    ///
    /// If it is near.
    pub async fn ask(
        self,
        reader: &postgres::Reader,
        bytes_max: usize,
        now: u64,
    ) -> Result<Turn, StoreError> {
        let budget = |seq_min| postgres::Budget {
            bytes_max,
            now,
            seq_min,
        };
        match self {
            Question::FarEvents(query, seq_min) => {
                let read = reader.read(*query, budget(seq_min)).await?;
                Ok(Turn {
                    question: Question::FarEvents(Box::new(read.query), seq_min),
                    rows: read.rows,
                    progress: read.progress,
                })
            }
            Question::FarCount(count) => {
                let (count, progress) = reader.count(*count, budget(0)).await?;
                Ok(Turn {
                    question: Question::FarCount(Box::new(count)),
                    rows: Rows::default(),
                    progress,
                })
            }
            Question::Events(_) | Question::Count(_) => unreachable!("a near question"),
        }
    }

    /// The last sequence that its history holds, once a first read has told.
    pub fn watermark(&self) -> Option<u64> {
        match self {
            Question::Events(query) => query.watermark(),
            Question::FarEvents(query, _) => query.watermark(),
            Question::Count(_) | Question::FarCount(_) => None,
        }
    }

    /// What can be said, once everything has been given, of whether that is all there is (NIP-67).
    pub fn hint(&self) -> Option<EoseHint> {
        match self {
            Question::Events(query) => query.hint(),
            Question::FarEvents(query, _) => query.hint(),
            Question::Count(_) | Question::FarCount(_) => None,
        }
    }

    /// How many events a COUNT has counted so far, and their HyperLogLog value (NIP-45).
    pub fn counted(&self) -> Option<(u64, Option<String>)> {
        match self {
            Question::Count(count) => Some((count.total(), count.hll().map(Hll::to_hex))),
            Question::FarCount(count) => Some((count.total(), count.hll().map(Hll::to_hex))),
            Question::Events(_) | Question::FarEvents(..) => None,
        }
    }
}

/// What going on away from the shard has brought.
pub struct Turn {
    /// The question, to go on with.
    pub question: Question,
    /// Its next rows.
    pub rows: Rows,
    /// Whether there is more.
    pub progress: Progress,
}
