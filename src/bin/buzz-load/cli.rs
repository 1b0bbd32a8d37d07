//! The command line: one table of options, and which workload takes which.

use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command, value_parser};

use crate::limits;

/// The whole command.
pub fn command() -> Command {
    Command::new("buzz-load")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Loads any Nostr relay over ws://, checks every answer, and reports as JSON on standard output")
        .after_help(
            "Exit codes: 0 every answer was right; 1 some were not, or the run could not be made; \
             64 the command line is wrong.\n\
             Durations in the JSON are microseconds, sizes bytes, unless a name says otherwise.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(workloads())
        .subcommand(floor())
        .subcommand(events())
        .subcommand(crowd())
}

fn workloads() -> Vec<Command> {
    let publish = relay(Command::new("publish").about("Events in, an OK for each"))
        .args([
            connections("50"),
            window("8"),
            rate(),
            count("20000"),
            seconds("none"),
            warmup("500"),
        ])
        .args([
            nonce(),
            file("JSON lines of signed events to publish instead of generated ones"),
        ])
        .args([floor_flag(
            "one signature check; with one event in flight, the rate of bare commits",
        )]);
    let seed = relay(Command::new("seed").about("Fills a relay with the stored events of a seed"))
        .args([
            connections("10"),
            window("32"),
            stored("100000"),
            stored_time(),
            seed_arg(),
        ])
        .args([file(
            "JSON lines of signed events to store instead of generated ones",
        )]);
    let query = relay(
        Command::new("query")
            .about("A REQ, its events, its EOSE; answers are checked event by event"),
    )
    .args([
        connections("10"),
        window("1"),
        rate(),
        count("none"),
        seconds("5"),
        warmup("200"),
    ])
    .args([
        Arg::new("by")
            .long("by")
            .value_name("WHAT")
            .value_parser(["id", "author-kind", "feed", "tag-e", "tag-p", "tag-t"])
            .default_value("author-kind")
            .help("What the filters name"),
        number("limit", "100", "Events that a filter asks for"),
        number(
            "values",
            "auto",
            "Ids (1) or authors of a feed (50) in a filter",
        ),
        number("distinct", "256", "Different filters, asked in turn"),
        stored("100000"),
        stored_time(),
        seed_arg(),
        file("JSON lines of the events that the relay holds, instead of a seed's"),
        switch(
            "unchecked",
            "Check only the order of an answer: the relay holds other events too",
        ),
        switch("no-close", "Send no CLOSE after an EOSE"),
    ])
    .args([floor_flag("sending as many bytes back")]);
    let fanout = relay(
        Command::new("fanout").about("One publisher, many subscribers; an operation is a delivery"),
    )
    .args([
        number(
            "subscribers",
            "1000",
            "Connections with one subscription each",
        ),
        number("burst", "1", "Events published at once, in one write"),
        number(
            "kind",
            "1",
            "Kind of the events; 20000 to 29999 are not stored (NIP-01)",
        ),
        rate().help("Rounds a second, whether or not the last one is over [default: closed loop]"),
        number("count", "200", "Rounds"),
        seconds("none"),
        warmup("10000"),
        nonce(),
    ])
    .args([floor_flag("a bare vectored send to as many sockets")]);
    let idle = relay(Command::new("idle").about(
        "Connections that do nothing; anonymous memory each (needs --pid of a fresh process)",
    ))
    .args([
        connections("5000"),
        switch("subscribed", "One subscription each"),
        number(
            "settle-seconds",
            "3",
            "Time to hold them, and to wait after their end",
        ),
    ]);
    let accept = relay(Command::new("accept").about("Connect, upgrade, close, over and over"))
        .args([
            number("connections", "32", "Connections on their way at once"),
            rate(),
            count("none"),
            seconds("5"),
            warmup("200"),
            switch("close-frame", "Send a Close frame before the end"),
        ])
        .args([floor_flag("accept, reply, close")]);
    let login = relay(Command::new("login").about("NIP-42: AUTH, OK"))
        .args([
            connections("50"),
            window("4"),
            rate(),
            count("10000"),
            seconds("none"),
            warmup("200"),
        ])
        .args([
            Arg::new("relay-url")
                .long("relay-url")
                .value_name("URL")
                .help("The relay's own name for itself, in the AUTH [default: --url]"),
            number(
                "users",
                "1000",
                "Keys that log in: one a connection, in turn",
            ),
            switch(
                "fresh",
                "A connection for each login: connect, challenge, login, close",
            ),
            switch(
                "until-in",
                "All connections log in at once, once each; who is closed comes back after 1 s ± 25 %, then ever longer",
            )
            .conflicts_with_all(["fresh", "rate", "count", "warmup"]),
        ])
        .args([floor_flag("one signature check")]);
    let scan = relay(
        Command::new("scan")
            .about("COUNTs that must look at every event, to see what else goes on meanwhile"),
    )
    .args([
        connections("1"),
        window("1"),
        rate(),
        count("none"),
        seconds("5"),
        warmup("0"),
    ]);
    let ping = relay(
        Command::new("ping")
            .about("WebSocket pings, to see how long a shard is busy with other things"),
    )
    .args([
        connections("1"),
        rate().default_value("100"),
        count("none"),
        seconds("5"),
        warmup("0"),
    ]);
    let mixed = relay(
        Command::new("mixed")
            .about("Publishing, queries, subscribers and pings at once, each at its own rate"),
    )
    .args([
        seconds("10"),
        number("publish-rate", "500", "Events a second; 0 for none"),
        number("publish-connections", "20", "Connections that publish"),
        number("query-rate", "200", "Requests a second; 0 for none"),
        number("query-connections", "20", "Connections that ask"),
        number(
            "fanout-rate",
            "10",
            "Events a second to the subscribers; 0 for none",
        ),
        number("subscribers", "200", "Connections that subscribe"),
        number("ping-rate", "50", "Pings a second; 0 for none"),
        number("limit", "100", "Events that a filter asks for"),
        window("64"),
        stored("100000"),
        stored_time(),
        seed_arg(),
        nonce(),
        switch(
            "unchecked",
            "Check only the order of an answer: the relay holds other events too",
        ),
    ]);
    vec![
        publish, seed, query, fanout, idle, accept, login, scan, ping, mixed,
    ]
}

fn crowd() -> Command {
    let url = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("URL").help(help)
    };
    Command::new("crowd")
        .about("Clients that log in, stay until they are closed, and come back elsewhere")
        .args([
            url("url", "The relay to log in to: ws://host:port/path").required(true),
            url(
                "then",
                "The relay to come back to, after 1 s ± 25 % and then ever longer",
            ),
            url("relay-url", "The relays' own URL, which logins name")
                .default_value("ws://localhost:3000"),
            connections("1000"),
            number(
                "limit-seconds",
                "120",
                "Time from the last login to the report, at most",
            ),
        ])
}

fn floor() -> Command {
    Command::new("floor")
        .about("What nothing can beat on this machine")
        .args([
            Arg::new("which")
                .value_name("WHICH")
                .num_args(1..)
                .value_parser(["all", "signature", "sends", "accept", "reply", "commit"])
                .default_value("all")
                .help("Floors to measure"),
            Arg::new("seconds")
                .long("seconds")
                .value_parser(value_parser!(f64))
                .default_value("2")
                .help("Time each, in seconds"),
            number("subscribers", "1000", "Sockets of the sends floor"),
            Arg::new("bytes")
                .long("bytes")
                .value_parser(value_parser!(usize))
                .action(ArgAction::Append)
                .help(
                    "Bytes of a reply [default: 700 76000 380000: an event, a page of 100, of 500]",
                ),
            cores(),
            dir(),
            out(),
        ])
}

fn events() -> Command {
    Command::new("events")
        .about("Writes the stored events of a seed as JSON lines, for a relay's own import command")
        .args([stored("100000"), stored_time(), seed_arg(), out()])
}

/// Adds what every workload takes.
fn relay(command: Command) -> Command {
    command.args([
        Arg::new("url").long("url").value_name("URL").required(true).help("The relay: ws://host:port/path"),
        Arg::new("pid")
            .long("pid")
            .value_parser(value_parser!(u32).range(1..))
            .action(ArgAction::Append)
            .help("A process of the relay: its CPU time and anonymous memory are reported (repeatable)"),
        Arg::new("label").long("label").value_name("TEXT").help("A name for the run, copied into the report"),
        out(),
        number("sources", "auto", "Loopback addresses to connect from; 0 leaves it to the kernel"),
        number("drain-seconds", "15", "How long the last answers may take, and how long nothing may happen"),
        cores(),
        dir(),
        switch("quiet", "No summary on standard error"),
    ])
}

fn number(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name)
        .long(name)
        .value_name("N")
        .value_parser(value_parser!(u64))
        .help(help);
    // "none" and "auto" stand for "absent" in the tables above.
    match default {
        "none" => arg,
        "auto" => arg.help(format!("{help} [default: chosen]")),
        _ => arg.default_value(default),
    }
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

fn connections(default: &'static str) -> Arg {
    number("connections", default, "Connections")
}

fn window(default: &'static str) -> Arg {
    number("window", default, "Requests in flight on each connection")
        .value_parser(value_parser!(u64).range(1..=limits::WINDOW_MAX as u64))
}

fn rate() -> Arg {
    let positive: ValueParser = ValueParser::from(|text: &str| match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("a rate is a number above 0"),
    });
    Arg::new("rate")
        .long("rate")
        .value_name("PER-SECOND")
        .value_parser(positive)
        .help("Open loop at this rate; latency counts from when a request was due [default: closed loop]")
}

fn count(default: &'static str) -> Arg {
    number("count", default, "Operations to measure")
        .value_parser(value_parser!(u64).range(1..=limits::OPERATIONS_MAX))
}

fn seconds(default: &'static str) -> Arg {
    let arg = Arg::new("seconds")
        .long("seconds")
        .value_parser(value_parser!(f64))
        .help("Time after which no further operation is begun, in seconds");
    if default == "none" {
        arg
    } else {
        arg.default_value(default)
    }
}

fn warmup(default: &'static str) -> Arg {
    number(
        "warmup",
        default,
        "Operations carried out beforehand and not measured",
    )
}

fn stored(default: &'static str) -> Arg {
    number("stored", default, "Stored events of the seed")
        .value_parser(value_parser!(u64).range(1..=limits::EVENTS_MAX as u64))
}

fn stored_time() -> Arg {
    number(
        "stored-time",
        "1750000000",
        "Time of the newest stored event, in seconds since 1970",
    )
}

fn seed_arg() -> Arg {
    number(
        "seed",
        "1",
        "Seed of the stored events: seeding and asking must agree on it",
    )
}

fn nonce() -> Arg {
    number(
        "nonce",
        "auto",
        "Sets this run's fresh events apart; repeat one to publish duplicates",
    )
}

fn file(help: &'static str) -> Arg {
    Arg::new("file")
        .long("file")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help(help)
}

fn out() -> Arg {
    Arg::new("out")
        .long("out")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Append to this file instead of writing to standard output")
}

fn cores() -> Arg {
    Arg::new("cores")
        .long("cores")
        .value_name("RELAY,PEER")
        .value_parser(value_parser!(usize))
        .value_delimiter(',')
        .num_args(1)
        .help("Cores of the two sides of a floor [default: the relay's and another]")
}

fn dir() -> Arg {
    Arg::new("dir")
        .long("dir")
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .default_value(".")
        .help("Where the commit floor writes; use the relay's disk")
}

fn floor_flag(what: &'static str) -> Arg {
    switch("floor", "").help(format!(
        "Measure the floor as well and give the ratio: {what}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::given::Given;

    #[test]
    fn the_table_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_workload_parses_with_its_defaults() {
        for workload in workloads() {
            let name = workload.get_name();
            let matches = command()
                .try_get_matches_from(["buzz-load", name, "--url", "ws://h:1"])
                .unwrap();
            let (found, matches) = matches.subcommand().unwrap();
            assert_eq!(found, name);
            let given = Given(matches);
            assert_eq!(given.text("url"), Some("ws://h:1"));
            assert_eq!(
                given.number("drain-seconds"),
                Some(limits::DRAIN_SECONDS_DEFAULT)
            );
        }
    }

    #[test]
    fn what_is_junk_is_refused() {
        for words in [
            &["publish"][..],
            &["publish", "--url", "ws://h", "--rate", "0"],
            &["publish", "--url", "ws://h", "--window", "0"],
            &["query", "--url", "ws://h", "--by", "luck"],
            &["floor", "luck"],
        ] {
            let words = ["buzz-load"].iter().chain(words);
            assert!(command().try_get_matches_from(words).is_err());
        }
    }
}
