//! Everything, or everything that some filters want, in bounded slices.
//!
//! Without filters: all events in the order of commits, by one walk over `events`. The walk ends when
//! it has caught up. An event that is stored then was met, or is met now: sequences only grow, and a
//! new version of an address gets one that is still ahead.
//!
//! With filters: first the answer of each, as REQ gives it (newest first, by its index), from what
//! was stored at the beginning; then, from a walk over what was stored since, what filters without a
//! limit want of it. So here, too, nothing that is stored at the end is missing. A filter with a
//! limit speaks of the beginning: what is replaced after that is missing.
//!
//! An event is given once, without a memory of what was given: filters without a limit go first, so
//! an event is given by the first of them that wants it; one with a limit has given what it wants
//! down to the last event it gave.

use std::sync::Arc;

use super::layout;
use super::query::{Budget, Progress, Query, QueryBounds};
use super::reader::Reader;
use crate::nostr::event::Event;
use crate::nostr::filter::Filter;
use crate::store::StoreError;

/// An export that can be stopped and resumed.
pub struct Export {
    filters: Vec<Wanted>,
    stage: Stage,
    /// The last sequence when it began.
    began: u64,
}

/// A filter, and how far its answer came.
struct Wanted {
    filter: Filter,
    /// Of a filter with a limit: time and id of the last event that it gave.
    last: Option<(u64, [u8; 32])>,
    given: u64,
}

enum Stage {
    Start,
    /// The answer of the filter at this place.
    Answer(usize, Box<Query<Arc<[Filter]>>>),
    /// The walk behind this sequence.
    Walk(u64),
    Done,
}

/// An export gives as many events as there are.
const UNBOUNDED: QueryBounds = QueryBounds {
    limit_max: usize::MAX,
    limit_default: usize::MAX,
};

impl Export {
    /// An export that has read nothing yet. No filters: everything.
    pub fn new(mut filters: Vec<Filter>) -> Export {
        filters.sort_by_key(|filter| filter.limit.is_some());
        let wanted = |filter| Wanted {
            filter,
            last: None,
            given: 0,
        };
        Export {
            filters: filters.into_iter().map(wanted).collect(),
            stage: Stage::Start,
            began: 0,
        }
    }

    /// Goes on for one slice. Each event's JSON is handed to `each`.
    ///
    /// # Errors
    /// What the store says; the export cannot go on then.
    pub fn slice(
        &mut self,
        reader: &Reader,
        budget: &Budget,
        each: &mut dyn FnMut(&str),
    ) -> Result<Progress, StoreError> {
        if matches!(self.stage, Stage::Start) {
            self.stage = match self.filters.is_empty() {
                true => Stage::Walk(0),
                false => {
                    self.began = reader.last_seq()?;
                    self.answer(0)
                }
            };
        }
        match &mut self.stage {
            Stage::Answer(at, query) => {
                let at = *at;
                let (before, rest) = self.filters.split_at_mut(at);
                let wanted = &mut rest[0];
                let mut damage = None;
                let progress = query.slice(reader, budget, &mut |json| match wanted
                    .is_first_to_give(before, json)
                {
                    Ok(true) => each(json),
                    Ok(false) => {}
                    Err(error) => damage = Some(error),
                })?;
                if let Some(error) = damage {
                    return Err(error);
                }
                if progress == Progress::Done {
                    self.stage = self.answer(at + 1);
                }
            }
            Stage::Walk(after) => {
                let filters = &self.filters;
                let mut damage = None;
                let next =
                    reader.events_after(*after, budget, &mut |_, json| match is_wanted_by_one(
                        filters, json,
                    ) {
                        Ok(true) => each(json),
                        Ok(false) => {}
                        Err(error) => damage = Some(error),
                    })?;
                if let Some(error) = damage {
                    return Err(error);
                }
                self.stage = next.map_or(Stage::Done, Stage::Walk);
            }
            Stage::Start | Stage::Done => {}
        }
        Ok(match self.stage {
            Stage::Done => Progress::Done,
            _ => Progress::More,
        })
    }

    /// The answer of the filter at this place; behind the last, the walk, if a filter wants it.
    fn answer(&self, at: usize) -> Stage {
        match self.filters.get(at) {
            Some(wanted) => {
                let filters: Arc<[Filter]> = Arc::new([wanted.filter.clone()]);
                let query = Query::new(filters, UNBOUNDED).up_to(self.began);
                Stage::Answer(at, Box::new(query))
            }
            None if self.filters.iter().any(Wanted::is_unlimited) => Stage::Walk(self.began),
            None => Stage::Done,
        }
    }
}

impl Wanted {
    fn is_unlimited(&self) -> bool {
        self.filter.limit.is_none()
    }

    /// Takes an event of this filter's answer. False: one before it has given it.
    fn is_first_to_give(&mut self, before: &[Wanted], json: &str) -> Result<bool, StoreError> {
        if before.is_empty() && self.is_unlimited() {
            return Ok(true);
        }
        let event = read(json)?;
        self.given += 1;
        self.last = Some((event.created_at(), *event.id()));
        Ok(!before.iter().any(|wanted| wanted.has_given(&event)))
    }

    fn has_given(&self, event: &Event) -> bool {
        let is_cut = self.filter.limit.is_some_and(|limit| limit <= self.given);
        let is_in = match self.last {
            _ if !is_cut => true,
            None => false,
            // History goes back in time and, within a second, up with the ids.
            Some((time, id)) => {
                let made = event.created_at();
                made > time || made == time && *event.id() <= id
            }
        };
        is_in && self.filter.matches(event)
    }
}

fn is_wanted_by_one(filters: &[Wanted], json: &str) -> Result<bool, StoreError> {
    if filters.is_empty() {
        return Ok(true);
    }
    let event = read(json)?;
    let mut unlimited = filters.iter().filter(|wanted| wanted.is_unlimited());
    Ok(unlimited.any(|wanted| wanted.filter.matches(&event)))
}

fn read(json: &str) -> Result<Event, StoreError> {
    Event::parse(json).map_err(|_| layout::corrupt("an event"))
}
