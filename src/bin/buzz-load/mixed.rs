//! `mixed`: several workloads on one relay at once, each open loop at its own rate, so that one
//! shows what it does to another. Each reports for itself.

use std::io;

use crate::build;
use crate::drive::Work;
use crate::fanout::Fanout;
use crate::given::Given;
use crate::ping::Ping;
use crate::publish::Publish;
use crate::query::Query;
use crate::schedule::{Nanos, Pace, Schedule};

/// The workloads whose rate is not 0.
///
/// # Errors
/// Those of making their events.
pub fn works(given: &Given<'_>, end: Nanos) -> io::Result<Vec<Box<dyn Work>>> {
    let mut works: Vec<Box<dyn Work>> = Vec::new();
    let seconds = end as f64 / 1e9;
    let rate_of = |name: &str| given.number(name).unwrap_or(0) as f64;
    let count_at = |rate: f64| (rate * seconds).ceil() as u64 + 1;
    let open = |rate: f64| Schedule::new(Pace::Open { rate }, u64::MAX, end);
    let window = given.size("window");

    let rate = rate_of("publish-rate");
    if rate > 0.0 {
        let events = build::fresh_events(given, count_at(rate))?;
        let connections = given.size("publish-connections");
        works.push(Box::new(Publish::asking(
            events,
            open(rate),
            connections,
            window,
            false,
        )));
    }
    let rate = rate_of("query-rate");
    if rate > 0.0 {
        let (questions, check) = build::questions(given)?;
        let connections = given.size("query-connections");
        works.push(Box::new(Query::asking(
            questions,
            check,
            true,
            open(rate),
            connections,
            window,
        )));
    }
    let rate = rate_of("fanout-rate");
    if rate > 0.0 {
        let (events, filter) = build::topic_events(given, 1, count_at(rate))?;
        let subscribers = given.size("subscribers");
        let pace = Pace::Open { rate };
        works.push(Box::new(Fanout::new(
            events,
            filter,
            subscribers,
            1,
            pace,
            u64::MAX,
            end,
        )));
    }
    let rate = rate_of("ping-rate");
    if rate > 0.0 {
        works.push(Box::new(Ping::asking(open(rate), 1)));
    }
    Ok(works)
}
