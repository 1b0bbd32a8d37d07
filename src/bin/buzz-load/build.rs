//! From what was given on the command line to workloads that are ready to run.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::accept::Accept;
use crate::drive::{self, Work};
use crate::events::{self, Maker, Signed, Stored};
use crate::fanout::Fanout;
use crate::floor::Floor;
use crate::given::Given;
use crate::idle::Idle;
use crate::limits;
use crate::login::{Login, Logins};
use crate::mixed;
use crate::ping::Ping;
use crate::publish::Publish;
use crate::query::{Check, Query};
use crate::questions::{self, By, Question};
use crate::rush::Rush;
use crate::scan::Scan;
use crate::schedule::{Nanos, Pace, Schedule};

/// A run to be made.
pub struct Plan {
    /// Its workloads; the first is what the relay's usage is divided by.
    pub works: Vec<Box<dyn Work>>,
    /// Connections that it needs at once.
    pub connections: usize,
    /// Whether it opens connections all the time.
    pub churns: bool,
    /// Operations that are not measured.
    pub warmup: u64,
    /// Operations to come, if their number is the bound.
    pub expected: Option<u64>,
    /// When the last operation is due, if time is the bound.
    pub end: Option<Nanos>,
}

/// Builds the run of one workload.
///
/// # Errors
/// An event file that cannot be read, or more than the bounds allow.
pub fn plan(name: &str, given: &Given<'_>, url: &str, pids: &[u32]) -> io::Result<Plan> {
    let warmup = given.number("warmup").unwrap_or(0);
    // What is measured comes on top of the warm-up.
    let count = given
        .number("count")
        .map(|count| count.saturating_add(warmup));
    let end = given.end();
    let pace = given.pace();
    let schedule = |count: Option<u64>| {
        Schedule::new(pace, count.unwrap_or(u64::MAX), end.unwrap_or(Nanos::MAX))
    };
    let connections = given.size("connections");
    let window = given.size("window");
    let mut plan = Plan {
        works: Vec::new(),
        connections,
        churns: false,
        warmup,
        expected: count,
        end: end.or_else(|| open_loop_end(pace, count)),
    };
    let work: Box<dyn Work> = match name {
        "publish" => {
            let events = match given.path("file") {
                Some(path) => events::read_file(path)?
                    .into_iter()
                    .map(|(signed, _)| signed)
                    .collect(),
                None => fresh_events(given, count.unwrap_or(0))?,
            };
            let schedule = schedule(Some(events.len() as u64));
            plan.expected = Some(events.len() as u64);
            Box::new(Publish::asking(
                events,
                schedule,
                connections,
                window,
                false,
            ))
        }
        "seed" => {
            let events = stored_signed(given)?;
            plan.expected = Some(events.len() as u64);
            let schedule = schedule(Some(events.len() as u64));
            Box::new(Publish::asking(events, schedule, connections, window, true))
        }
        "query" => {
            let (questions, check) = questions(given)?;
            let closes = !given.is_set("no-close");
            Box::new(Query::asking(
                questions,
                check,
                closes,
                schedule(count),
                connections,
                window,
            ))
        }
        "fanout" => {
            let burst = given.size("burst").max(1);
            let subscribers = given.size("subscribers");
            // Whole rounds, enough for the warm-up's deliveries.
            let each = (burst * subscribers.max(1)) as u64;
            let rounds = given.number("count").unwrap_or(1) + warmup.div_ceil(each);
            let kind = given.number("kind").unwrap_or(1).min(u64::from(u16::MAX)) as u16;
            let (events, filter) = topic_events(given, kind, rounds * burst as u64)?;
            plan.connections = subscribers + 1;
            plan.expected = Some(rounds * each);
            plan.end = end.or_else(|| open_loop_end(pace, Some(rounds)));
            let end = end.unwrap_or(Nanos::MAX);
            Box::new(Fanout::new(
                events,
                filter,
                subscribers,
                burst,
                pace,
                rounds,
                end,
            ))
        }
        "idle" => {
            let settle = given.number("settle-seconds").unwrap_or(0) * 1_000_000_000;
            Box::new(Idle::new(
                pids.to_vec(),
                connections,
                given.is_set("subscribed"),
                settle,
            ))
        }
        "accept" => {
            plan.churns = true;
            let at_once = connections.min(limits::OPENING_MAX);
            Box::new(Accept::asking(
                schedule(count),
                at_once,
                given.is_set("close-frame"),
            ))
        }
        "login" => {
            let (fresh, until_in) = (given.is_set("fresh"), given.is_set("until-in"));
            plan.churns = fresh || until_in;
            let count = if until_in {
                plan.warmup = 0;
                plan.expected = Some(connections as u64);
                plan.expected
            } else {
                count
            };
            let logins = Logins {
                relay: given.text("relay-url").unwrap_or(url).to_owned(),
                keypairs: (0..given.size("users").max(1))
                    .map(|user| events::keypair(&format!("buzz-load user {user}")))
                    .collect(),
                now: unix_time(),
                count: count.unwrap_or(0).min(limits::EVENTS_MAX as u64) as usize,
                fresh,
            };
            if until_in {
                Box::new(Rush::asking(schedule(count), connections, logins))
            } else {
                Box::new(Login::asking(schedule(count), connections, window, logins))
            }
        }
        "scan" => Box::new(Scan::asking(schedule(count), connections, window)),
        "ping" => Box::new(Ping::asking(schedule(count), connections)),
        _ => {
            plan.works = mixed::works(given, end.unwrap_or(0))?;
            let names = ["publish-connections", "query-connections", "subscribers"];
            plan.connections = names.iter().map(|name| given.size(name)).sum::<usize>() + 2;
            plan.expected = None;
            return Ok(plan);
        }
    };
    plan.works.push(work);
    Ok(plan)
}

/// The floor that a workload is compared with. `section` is what it reported.
pub fn floor_of(name: &str, given: &Given<'_>, section: &serde_json::Value) -> Option<Floor> {
    Some(match name {
        "publish" | "login" => Floor::Signature,
        "accept" => Floor::Accept,
        "fanout" => Floor::Sends {
            sockets: given.size("subscribers"),
            burst: given.size("burst").max(1),
        },
        "query" => {
            let bytes = section["bytes_per_request"].as_f64()?;
            Floor::Reply {
                bytes: (bytes as usize).clamp(1, limits::MESSAGE_BYTES_MAX),
            }
        }
        _ => return None,
    })
}

/// Signs `count` fresh events.
pub fn fresh_events(given: &Given<'_>, count: u64) -> io::Result<Vec<Signed>> {
    let maker = Maker::fresh(nonce(given));
    let now = unix_time();
    sign(count, |index| maker.sign_fresh(index, now))
}

/// Signs `count` events with a topic of this run's own, and the filter that they match.
pub fn topic_events(given: &Given<'_>, kind: u16, count: u64) -> io::Result<(Vec<Signed>, String)> {
    let nonce = nonce(given);
    // Apart from the fresh events of the same run.
    let maker = Maker::fresh(nonce ^ 0x66_616e_6f75_7400);
    let (now, topic) = (unix_time(), format!("fanout-{nonce:x}"));
    let events = sign(count, |index| maker.sign_topic(index, now, kind, &topic))?;
    Ok((
        events,
        format!(r##"{{"kinds":[{kind}],"#t":["{topic}"],"limit":1}}"##),
    ))
}

/// The events of the seed, or of a file, signed.
pub fn stored_signed(given: &Given<'_>) -> io::Result<Vec<Signed>> {
    if let Some(path) = given.path("file") {
        return Ok(events::read_file(path)?
            .into_iter()
            .map(|(signed, _)| signed)
            .collect());
    }
    let maker = stored_maker(given)?;
    sign(given.number("stored").unwrap_or(0), |index| {
        maker.sign_stored(index)
    })
}

/// The questions of a query workload and how far their answers can be checked.
pub fn questions(given: &Given<'_>) -> io::Result<(Vec<Question>, Check)> {
    let by = match given.text("by") {
        Some("id") => By::Id,
        Some("feed") => By::Feed,
        Some("tag-e") => By::Tag(b'e'),
        Some("tag-p") => By::Tag(b'p'),
        Some("tag-t") => By::Tag(b't'),
        _ => By::AuthorKind,
    };
    let values = match given.number("values") {
        Some(values) => usize::try_from(values).unwrap_or(usize::MAX),
        None if by == By::Feed => 50,
        None => 1,
    };
    let stored: Vec<Stored> = match given.path("file") {
        Some(path) => events::read_file(path)?
            .into_iter()
            .map(|(_, stored)| stored)
            .collect(),
        None => {
            let maker = stored_maker(given)?;
            (0..given.number("stored").unwrap_or(0))
                .map(|index| maker.stored_event(index))
                .collect()
        }
    };
    let distinct = given
        .number("distinct")
        .map_or(256, |distinct| distinct.clamp(1, 100_000) as usize);
    let seed = given.number("seed").unwrap_or(1);
    let questions = questions::make(
        &stored,
        by,
        values.max(1),
        given.size("limit").max(1),
        distinct,
        seed,
    );
    if questions.is_empty() {
        return Err(io::Error::other("no stored event fits the question"));
    }
    let check = if given.is_set("unchecked") {
        Check::Order
    } else {
        Check::Exact
    };
    Ok((questions, check))
}

fn stored_maker(given: &Given<'_>) -> io::Result<Maker> {
    let newest = given
        .number("stored-time")
        .unwrap_or(events::STORED_TIME_DEFAULT);
    let stored = given.number("stored").unwrap_or(0);
    if stored.saturating_mul(events::STORED_SECONDS_STEP) > newest {
        return Err(io::Error::other(
            "--stored-time is too early for so many events",
        ));
    }
    Ok(Maker::stored(given.number("seed").unwrap_or(1), newest))
}

/// Makes and signs events, a progress bar beside it: 20 µs each.
fn sign(count: u64, one: impl Fn(u64) -> Signed) -> io::Result<Vec<Signed>> {
    if count > limits::EVENTS_MAX as u64 {
        return Err(io::Error::other(format!(
            "more than {} events to sign",
            limits::EVENTS_MAX
        )));
    }
    let bar = drive::progress_bar(Some(count));
    bar.set_message("signing");
    let events = (0..count)
        .map(|index| {
            if index % 1_000 == 0 {
                bar.set_position(index);
            }
            one(index)
        })
        .collect();
    bar.finish_and_clear();
    Ok(events)
}

/// An open loop that ends by count ends in time as well.
fn open_loop_end(pace: Pace, count: Option<u64>) -> Option<Nanos> {
    match (pace, count) {
        (Pace::Open { rate }, Some(count)) => Some((count as f64 * 1e9 / rate) as Nanos),
        _ => None,
    }
}

fn nonce(given: &Given<'_>) -> u64 {
    given.number("nonce").unwrap_or_else(|| fastrand::u64(..))
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
