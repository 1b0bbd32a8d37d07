//! `buzz-uring status`: one picture of a relay, as text or as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use super::figures::{UNKNOWN, bytes, count, counted_short, limit, span, took};
use super::picture::{Change, Picture, Shard, Text, sum};
use super::source::Source;
use crate::error::{EXIT_CLEAN, EXIT_FAILED};
use crate::words::counted;

/// What to print, and the exit code: [`EXIT_CLEAN`] only of a relay that wants traffic.
#[derive(Debug, Eq, PartialEq)]
pub struct Report {
    /// For standard output.
    pub text: String,
    /// For the caller.
    pub exit_code: i32,
}

/// Asks once. With `json` the text is what the relay answered, on one line.
///
/// # Errors
///
/// Why there is no picture.
pub fn run(source: &Source, json: bool) -> Result<Report, String> {
    let status = source.ask()?;
    let text = json.then(|| ascii_json(&status) + "\n");
    let picture = Picture::read(status)?;
    Ok(Report {
        text: text.unwrap_or_else(|| render(&source.name(), &picture)),
        exit_code: if picture.is_ready() {
            EXIT_CLEAN
        } else {
            EXIT_FAILED
        },
    })
}

/// JSON in ASCII only: what is no ASCII stands as escapes, so that no terminal obeys it.
fn ascii_json(value: &Value) -> String {
    let mut text = String::new();
    for char in value.to_string().chars() {
        if char.is_ascii() && char != '\u{7f}' {
            text.push(char);
            continue;
        }
        for unit in char.encode_utf16(&mut [0; 2]) {
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

pub(super) fn render(name: &str, picture: &Picture) -> String {
    let mut lines = vec![
        headline(name, picture),
        format!("connections  {}", connections(picture)),
        format!("events       {}", events(picture)),
        format!("queries      {}", by_name(&picture.totals.queries)),
        format!("logins       {}", by_name(&picture.totals.logins)),
        format!("closes       {}", by_name(&picture.totals.closes)),
        format!("store        {}", store(&Change::new(picture, None))),
        format!("drain        {}", drain(picture)),
    ];
    let (imports, exports) = (picture.transfers.imports, picture.transfers.exports);
    if imports > 0 || exports > 0 {
        lines.push(format!(
            "transfers    {}, {}",
            counted(imports, "import"),
            counted(exports, "export")
        ));
    }
    if !picture.gates.is_empty() {
        lines.push(String::new());
        lines.extend(table(&gates(picture)));
    }
    if !picture.shards.is_empty() {
        lines.push(String::new());
        lines.extend(table(&shards(picture)));
    }
    lines
        .iter()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

/// What runs, where, and in which part of its life.
pub(super) fn headline(name: &str, picture: &Picture) -> String {
    let uptime = span(Duration::from_secs(picture.uptime_seconds));
    format!(
        "buzz-uring {} ({}) at {name}: {}, up {uptime}, {}",
        picture.version, picture.commit, picture.lifecycle, picture.driver
    )
}

/// The store on one line.
pub(super) fn store(change: &Change) -> String {
    let store = &change.now().store;
    let mut text = format!("{}, {} waiting", store.kind, count(store.pending_writes));
    if let (Some(used), Some(max)) = (store.used_bytes, store.events_bytes_max) {
        let percent = used as f64 / max.max(1) as f64 * 100.0;
        let _ = write!(text, ", {} of {} ({percent:.0} %)", bytes(used), bytes(max));
    }
    for (name, pool) in [("writers", store.writers), ("readers", store.readers)] {
        if let Some(pool) = pool {
            let _ = match pool.open {
                0 => write!(text, ", {name} not connected"),
                open => write!(text, ", {name} {} of {open} in use", pool.in_use),
            };
        }
    }
    if let Some(behind) = store.behind.filter(|behind| *behind > 0) {
        let _ = write!(text, ", {} behind", count(behind));
    }
    if store.listening == Some(false) {
        text.push_str(", NOT LISTENING");
    }
    let ever = store.commit_seconds / store.commits.max(1) as f64;
    let a_commit = change
        .commit_seconds()
        .or((store.commits > 0).then_some(ever));
    let _ = write!(
        text,
        ", {} of {}",
        counted_short(store.commits, "commit"),
        took(a_commit)
    );
    text
}

/// The drain on one line.
pub(super) fn drain(picture: &Picture) -> String {
    let drain = &picture.drain;
    if drain.state.as_str() == "none" || drain.state == Text::default() {
        let window = Duration::from_millis(drain.window_ms);
        return match drain.window_ms {
            0 => "none; it would close all at once".to_owned(),
            _ => format!("none; it would take {}", span(window)),
        };
    }
    let by = drain.requested_by.as_ref().map_or(UNKNOWN, Text::as_str);
    let since = drain.running_ms.map(Duration::from_millis);
    format!(
        "{}: {} of {} left after {} ({by}), {} acknowledged, {} cancelled, {} gone",
        drain.state,
        count(drain.sockets_remaining),
        count(drain.connections),
        since.map_or_else(|| UNKNOWN.to_owned(), span),
        count(drain.acknowledged),
        count(drain.cancelled),
        count(drain.gone),
    )
}

fn connections(picture: &Picture) -> String {
    let of_shards = |number: fn(&Shard) -> &u64| sum(picture.shards.iter().map(number));
    format!(
        "{} open, {} ever; {}; {} queued",
        count(picture.connections),
        count(picture.totals.connections),
        counted_short(of_shards(|shard| &shard.subscriptions), "subscription"),
        bytes(of_shards(|shard| &shard.queued_bytes)),
    )
}

fn events(picture: &Picture) -> String {
    format!(
        "{}; {} delivered, {} dropped",
        by_name(&picture.totals.events),
        count(picture.totals.delivered),
        count(picture.totals.dropped)
    )
}

/// What is not zero.
fn by_name(numbers: &BTreeMap<Text, u64>) -> String {
    let shown = numbers.iter().filter(|(_, number)| **number > 0);
    let shown: Vec<String> = shown
        .map(|(name, number)| format!("{} {name}", count(*number)))
        .collect();
    if shown.is_empty() {
        return "none".to_owned();
    }
    shown.join(", ")
}

fn gates(picture: &Picture) -> Vec<Vec<String>> {
    let head = [
        "gate",
        "limit",
        "ceiling",
        "in flight",
        "waiting",
        "debt",
        "sheds",
        "source",
    ];
    let rows = picture.gates.iter().map(|(name, gate)| {
        vec![
            name.to_string(),
            limit(gate.limit),
            limit(gate.ceiling),
            count(gate.in_flight),
            count(gate.waiting),
            count(gate.debt),
            count(gate.shed()),
            gate.source.to_string(),
        ]
    });
    std::iter::once(head.map(str::to_owned).to_vec())
        .chain(rows)
        .collect()
}

fn shards(picture: &Picture) -> Vec<Vec<String>> {
    let head = [
        "shard",
        "connections",
        "subs",
        "events",
        "queries",
        "delivered",
        "queued",
        "silent",
    ];
    let rows = picture.shards.iter().map(|shard| {
        vec![
            shard.id.to_string(),
            count(shard.connections),
            count(shard.subscriptions),
            count(shard.events),
            count(shard.queries),
            count(shard.delivered),
            bytes(shard.queued_bytes),
            format!("{} ms", shard.heartbeat_age_ms),
        ]
    });
    std::iter::once(head.map(str::to_owned).to_vec())
        .chain(rows)
        .collect()
}

/// Columns as wide as their widest cell; the first one to the left, the others to the right.
fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::http::tests::server;
    use super::super::picture::tests::{picture, status};
    use super::*;
    use serde_json::json;

    fn answered(status: &Value, as_json: bool) -> Result<Report, String> {
        let address = server(format!("HTTP/1.0 200 OK\r\n\r\n{status}"));
        run(&Source::new(None, address).unwrap(), as_json)
    }

    #[test]
    fn a_person_sees_everything_at_once() {
        let text = render("http://relay.example:8080", &picture(status()));
        let expected = "\
buzz-uring 1.2.3 (0123456789ab) at http://relay.example:8080: ready, up 1 h 2 min, io_uring
connections  1500 open, 9000 ever; 3000 subscriptions; 2.0 KiB queued
events       150 duplicate, 300 ephemeral, 50 refused, 2500 stored; 110k delivered, 7 dropped
queries      100 count, 600 req
logins       2 invalid, 40 success
closes       7000 client, 500 lost
store        embedded, 4 waiting, 5.0 MiB of 1.0 GiB (0 %), 900 commits of 2.0 ms
drain        none; it would take 20 s
transfers    0 imports, 1 export

gate           limit  ceiling  in flight  waiting  debt  sheds        source
auth            none     none          0        0     0      0  launchdarkly
history_reads     10       40         12        3     2      6  launchdarkly

shard  connections  subs  events  queries  delivered   queued  silent
0              700  1400    1000      300      50.0k  2.0 KiB   40 ms
1              800  1600    2000      400      60.0k      0 B    5 ms
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn a_database_and_a_drain_have_their_lines() {
        let mut status = status();
        status["store"] = json!({"kind": "postgres", "pending_writes": 0, "commits": 0,
            "writers": {"in_use": 2, "open": 5}, "readers": {"in_use": 0, "open": 0},
            "listening": false, "behind": 12});
        status["drain"] = json!({"state": "closing", "requested_by": "SIGTERM",
            "running_ms": 61_000, "window_ms": 0, "connections": 1_000,
            "sockets_remaining": 400, "acknowledged": 590, "cancelled": 4, "gone": 6});
        let picture = picture(status);
        assert_eq!(
            store(&Change::new(&picture, None)),
            "postgres, 0 waiting, writers 2 of 5 in use, readers not connected, 12 behind, \
             NOT LISTENING, 0 commits of -"
        );
        assert_eq!(
            drain(&picture),
            "closing: 400 of 1000 left after 1 min 1 s (SIGTERM), 590 acknowledged, \
             4 cancelled, 6 gone"
        );
    }

    #[test]
    fn the_exit_code_says_whether_it_is_ready() {
        let mut status = status();
        assert_eq!(answered(&status, false).unwrap().exit_code, EXIT_CLEAN);
        for other in ["starting", "draining", "closing", "stopped", "\u{1b}"] {
            status["lifecycle"] = json!(other);
            assert_eq!(answered(&status, true).unwrap().exit_code, EXIT_FAILED);
        }
        assert_eq!(
            answered(&json!({}), false).unwrap_err(),
            "this is no relay's status"
        );
    }

    #[test]
    fn json_is_one_line_of_what_was_answered_and_of_ascii() {
        let mut status = status();
        status["name"] = json!("a\u{1b}[31m\u{9b}\u{7f}\u{e9}\u{1f600}\n");
        let report = answered(&status, true).unwrap();
        let line = report.text.strip_suffix('\n').unwrap();
        assert!(
            line.chars()
                .all(|char| char == ' ' || char.is_ascii_graphic()),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Value>(line).unwrap(), status);
    }
}
