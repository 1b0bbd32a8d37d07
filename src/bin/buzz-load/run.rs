//! One command, from its arguments to its report.

use std::fs::OpenOptions;
use std::io::{self, Write};

use clap::ArgMatches;
use serde_json::{Map, Value, json};

use crate::build::{self, Plan};
use crate::crowd;
use crate::drive::{self, Used};
use crate::floor::{self, Floor};
use crate::given::Given;
use crate::limits;
use crate::net::{Net, Target};
use crate::report::{self, Section};
use crate::usage;

/// Carries out the command; true when every answer was right.
///
/// # Errors
/// What made the run impossible.
pub fn run(matches: &ArgMatches) -> io::Result<bool> {
    let Some((name, matches)) = matches.subcommand() else {
        return Ok(true);
    };
    let given = Given(matches);
    match name {
        "floor" => floors(&given),
        "events" => events(&given),
        "crowd" => crowd::run(&given),
        _ => workload(name, &given),
    }
}

fn workload(name: &str, given: &Given<'_>) -> io::Result<bool> {
    let url = given.text("url").unwrap_or_default();
    let target = Target::parse(url).map_err(io::Error::other)?;
    let pids: Vec<u32> = given.all("pid");
    let plan = build::plan(name, given, url, &pids)?;
    // Whatever else is open (epoll, output, the library's own) stays well below 32.
    let descriptors = usage::raise_descriptors();
    if plan.connections as u64 + 32 > descriptors {
        let wanted = plan.connections;
        return Err(io::Error::other(format!(
            "{wanted} connections do not fit {descriptors} descriptors: raise the hard limit (ulimit -Hn)"
        )));
    }
    // Sleeps end when they are due, not up to 50 µs later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let started = build::unix_time();
    let Plan { mut works, .. } = plan;
    let options = drive::Options {
        pids: pids.clone(),
        warmup: plan.warmup,
        expected: plan.expected,
        end: plan.end,
        drain_seconds: given
            .number("drain-seconds")
            .unwrap_or(limits::DRAIN_SECONDS_DEFAULT),
    };
    let mut net = Net::new(target, sources(given, plan.connections, plan.churns))?;
    let used = drive::run(&mut net, &mut works, &options)?;
    let sections: Vec<Section> = works.iter().map(|work| work.section()).collect();
    drop(net);

    let mut found = json!({
        "version": 1,
        "command": name,
        "label": given.text("label"),
        "url": url,
        "started_unix": started,
        "generator_version": env!("CARGO_PKG_VERSION"),
        "machine": report::machine_json(),
        "options": options_json(given),
        "sections": sections.iter().map(Section::json).collect::<Vec<_>>(),
        "generator": own_json(&sections, &used),
    });
    if let Some(cpu) = used.relay_cpu {
        // Several workloads at once have no operation in common.
        let operations = match &sections[..] {
            [only] => Some(only.operations),
            _ => None,
        };
        found["relay"] = report::relay_json(cpu, used.seconds, operations, used.anonymous);
    }
    if given.is_set("floor") {
        add_floor(name, given, &pids, &mut found)?;
    }
    write_line(given, &found.to_string())?;
    if !given.is_set("quiet") {
        summary(&sections, &found);
    }
    Ok(sections.iter().all(|section| section.faults.total() == 0))
}

/// Loopback addresses to connect from: enough that ports do not run out, those in TIME-WAIT included.
fn sources(given: &Given<'_>, connections: usize, churns: bool) -> u32 {
    match given.number("sources") {
        Some(sources) => sources.min(u64::from(limits::SOURCES_MAX)) as u32,
        None if churns => limits::SOURCES_MAX,
        None => u32::try_from(connections / 10_000).unwrap_or(limits::SOURCES_MAX),
    }
}

fn own_json(sections: &[Section], used: &Used) -> Value {
    // Lateness means something in the open loop alone; the closed loop has none.
    let late = sections
        .iter()
        .flat_map(|section| &section.latencies)
        .filter(|(name, latency)| *name == "late" && latency.count() > 0)
        .map(|(_, latency)| latency.micros_at(0.99))
        .reduce(f64::max);
    report::generator_json(used.own_cpu, used.seconds, late)
}

fn add_floor(name: &str, given: &Given<'_>, pids: &[u32], found: &mut Value) -> io::Result<()> {
    let Some(floor) = build::floor_of(name, given, &found["sections"][0]) else {
        return Ok(());
    };
    let cost = floor.measure(&floor_options(given, pids, 1.0))?;
    if floor.is_wall_time() {
        let per_second = 1e6 / cost.micros.max(1e-9);
        let relay = found["sections"][0]["per_second"].as_f64().unwrap_or(0.0);
        found["floor"] = json!({
            "name": floor.name(),
            "wall_us": report::thousandths(cost.micros),
            "per_second": per_second.round(),
            "rate_ratio": report::thousandths(relay / per_second),
        });
        return Ok(());
    }
    found["floor"] = json!({ "name": floor.name(), "cpu_us": report::thousandths(cost.micros) });
    if let Some(relay) = found["relay"]["cpu_us_per_operation"].as_f64() {
        found["floor"]["ratio"] = report::thousandths(relay / cost.micros.max(1e-9)).into();
    }
    Ok(())
}

fn floor_options(given: &Given<'_>, pids: &[u32], seconds: f64) -> floor::Options {
    let chosen: Vec<usize> = given.all("cores");
    let (relay, peer) = floor::Options::cores(pids);
    floor::Options {
        seconds,
        relay_core: chosen.first().copied().or(relay),
        peer_core: chosen.get(1).copied().or(peer),
        dir: given.path("dir").cloned().unwrap_or_else(|| ".".into()),
    }
}

fn floors(given: &Given<'_>) -> io::Result<bool> {
    usage::raise_descriptors();
    let which: Vec<String> = given.all("which");
    let wanted = |name: &str| which.iter().any(|one| one == name || one == "all");
    let subscribers = given.size("subscribers").max(1);
    let mut bytes: Vec<usize> = given.all("bytes");
    if bytes.is_empty() {
        bytes = vec![700, 76_000, 380_000];
    }
    let mut floors = Vec::new();
    if wanted("signature") {
        floors.extend([Floor::Signature, Floor::SignatureCached]);
    }
    if wanted("sends") {
        floors.extend([1, 16].map(|burst| Floor::Sends {
            sockets: subscribers,
            burst,
        }));
    }
    if wanted("accept") {
        floors.push(Floor::Accept);
    }
    if wanted("reply") {
        let most = limits::MESSAGE_BYTES_MAX;
        floors.extend(bytes.iter().map(|bytes| Floor::Reply {
            bytes: (*bytes).clamp(1, most),
        }));
    }
    if wanted("commit") {
        floors.extend([Floor::CommitLmdb, Floor::CommitAppend]);
    }
    let seconds = given.0.get_one::<f64>("seconds").copied().unwrap_or(2.0);
    let found = floor::measure_all(&floors, &floor_options(given, &[], seconds))?;
    let report = json!({
        "version": 1,
        "command": "floor",
        "started_unix": build::unix_time(),
        "machine": report::machine_json(),
        "floors": found,
    });
    write_line(given, &report.to_string())?;
    Ok(true)
}

fn events(given: &Given<'_>) -> io::Result<bool> {
    let events = build::stored_signed(given)?;
    let mut out: Box<dyn Write> = match given.path("out") {
        Some(path) => Box::new(io::BufWriter::new(append_to(path)?)),
        None => Box::new(io::BufWriter::new(io::stdout().lock())),
    };
    for event in &events {
        // Out of `["EVENT",` and `]`: the bare event.
        let bare = event
            .message
            .get(9..event.message.len() - 1)
            .unwrap_or_default();
        out.write_all(bare)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(true)
}

/// What was asked for, so that a report says what it is a report of.
fn options_json(given: &Given<'_>) -> Value {
    let mut options = Map::new();
    for id in given.0.ids().map(clap::Id::as_str) {
        if ["url", "label", "out", "pid", "quiet", "dir"].contains(&id) {
            continue;
        }
        let value = given.0.get_raw(id).map(|values| {
            let words: Vec<String> = values
                .map(|value| value.to_string_lossy().into_owned())
                .collect();
            words.join(",")
        });
        options.insert(id.to_owned(), value.into());
    }
    options.into()
}

fn write_line(given: &Given<'_>, line: &str) -> io::Result<()> {
    match given.path("out") {
        Some(path) => writeln!(append_to(path)?, "{line}"),
        None => writeln!(io::stdout().lock(), "{line}"),
    }
}

fn append_to(path: &std::path::Path) -> io::Result<std::fs::File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn summary(sections: &[Section], found: &Value) {
    for section in sections {
        eprintln!("{}", section.line());
    }
    if let Some(share) = found["relay"]["cpu_share"].as_f64() {
        eprint!("relay: {:.0} % of a core", share * 100.0);
        if let Some(each) = found["relay"]["cpu_us_per_operation"].as_f64() {
            eprint!(", {each:.2} µs of CPU each");
        }
        if let Some(ratio) = found["floor"]["ratio"].as_f64() {
            eprint!(", {ratio:.2} × the floor {}", found["floor"]["name"]);
        }
        if let Some(ratio) = found["floor"]["rate_ratio"].as_f64() {
            eprint!(", {ratio:.2} of the rate of {}", found["floor"]["name"]);
        }
        let bytes = &found["sections"][0]["anonymous_bytes_per_connection"];
        if let Some(bytes) = bytes.as_f64() {
            eprint!(", {bytes:.0} bytes of anonymous memory a connection");
        }
        eprintln!();
    }
    let share = found["generator"]["cpu_share"].as_f64().unwrap_or(0.0) * 100.0;
    let limit = found["generator"]["may_be_the_limit"] == true;
    let warning = if limit {
        ": IT MAY HAVE BEEN THE LIMIT, trust only the relay's CPU time"
    } else {
        ""
    };
    eprintln!("generator: {share:.0} % of a core{warning}");
}
