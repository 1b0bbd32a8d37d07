//! Dashboard and alerts ask for series that the relay has, under labels and values that they have.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use buzz_uring::metrics::series::{Dimension, Kind, SERIES, Series};
use serde_json::{Value, json};

use crate::common::Launch;
use crate::{document, file, path, program, run, said};

const ALERTS: &str = "deploy/prometheus/alerts.yml";
const DASHBOARD: &str = "deploy/grafana/buzz-uring.json";

/// Labels that the scrape adds.
const OF_THE_SCRAPE: [&str; 2] = ["instance", "job"];

/// A query, and the texts that show its labels.
struct Query {
    place: String,
    text: String,
    shown: String,
}

fn alerts() -> Vec<Query> {
    let rules = document(ALERTS);
    let groups = rules["groups"].as_array().expect("groups");
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().expect("rules"));
    rules
        .map(|rule| Query {
            place: rule["alert"].as_str().expect("a name").to_owned(),
            text: rule["expr"].as_str().expect("a query").to_owned(),
            shown: rule["annotations"]["summary"]
                .as_str()
                .expect("a text")
                .to_owned(),
        })
        .collect()
}

fn panels() -> Vec<Query> {
    let board: Value = serde_json::from_str(&file(DASHBOARD)).expect("JSON");
    let mut queries = Vec::new();
    for panel in board["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(Query {
                place: panel["title"].as_str().expect("a title").to_owned(),
                text: target["expr"].as_str().expect("a query").to_owned(),
                shown: target["legendFormat"].as_str().expect("a text").to_owned(),
            });
        }
    }
    for note in board["annotations"]["list"]
        .as_array()
        .expect("annotations")
    {
        queries.push(Query {
            place: note["name"].as_str().expect("a name").to_owned(),
            text: note["expr"].as_str().expect("a query").to_owned(),
            shown: note["titleFormat"].as_str().expect("a text").to_owned(),
        });
    }
    queries
}

/// The dashboard's queries with what Grafana puts into them, each with its panel's title.
pub fn dashboard_queries() -> Vec<(String, String)> {
    let queries = panels().into_iter();
    queries
        .map(|query| {
            let text = query.text.replace("$__rate_interval", "1m");
            let text = text.replace("$instance", ".*").replace("$__from", "0");
            (query.place, text)
        })
        .collect()
}

/// The series of a name, with the suffixes of a histogram.
fn series(name: &str) -> Option<(&'static Series, bool)> {
    let exact = SERIES.iter().find(|series| series.name == name);
    if let Some(series) = exact {
        return (series.kind != Kind::Histogram).then_some((series, false));
    }
    let (name, part) = name.rsplit_once('_')?;
    let is_part = matches!(part, "bucket" | "sum" | "count");
    let mut histograms = SERIES
        .iter()
        .filter(|series| series.kind == Kind::Histogram);
    let series = histograms.find(|series| series.name == name && is_part)?;
    Some((series, part == "bucket"))
}

fn labels(series: &Series, is_bucket: bool) -> BTreeSet<&'static str> {
    let own = series.labels.iter().map(|label| match label {
        Dimension::Closed(name, _) | Dimension::AtStart(name) => *name,
    });
    let bucket = is_bucket.then_some("le");
    own.chain(OF_THE_SCRAPE).chain(bucket).collect()
}

/// `name op "value"` pairs between the braces that `rest` starts with, if it does.
fn matchers(rest: &str) -> Vec<(&str, &str)> {
    let Some(inner) = rest
        .strip_prefix('{')
        .and_then(|rest| rest.split('}').next())
    else {
        return Vec::new();
    };
    let parts = inner
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let at = part.find(['=', '!']).unwrap_or_else(|| panic!("{part}"));
            let (name, value) = part.split_at(at);
            (
                name,
                value.trim_start_matches(['=', '!', '~']).trim_matches('"'),
            )
        })
        .collect()
}

#[track_caller]
fn check(query: &Query) {
    let Query { place, text, shown } = query;
    let mut known = BTreeSet::from(OF_THE_SCRAPE);
    let mut named = 0;
    let mut from = 0;
    while let Some(at) = text[from..].find("buzz_") {
        let start = from + at;
        let length = text[start..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let end = length.map_or(text.len(), |length| start + length);
        let name = &text[start..end];
        let (series, is_bucket) =
            series(name).unwrap_or_else(|| panic!("{place}: there is no series {name}"));
        let before = &text[..start];
        if ["rate(", "increase("]
            .iter()
            .any(|function| before.ends_with(function))
        {
            assert_ne!(series.kind, Kind::Gauge, "{place}: {name} goes both ways");
        }
        let labels = labels(series, is_bucket);
        for (label, value) in matchers(&text[end..]) {
            assert!(
                labels.contains(label),
                "{place}: {name} has no label {label}"
            );
            let closed = series.labels.iter().find_map(|one| match one {
                Dimension::Closed(name, values) if *name == label => Some(values),
                _ => None,
            });
            for value in value.split('|') {
                let exists = closed.is_none_or(|values| values.contains(&value));
                assert!(exists, "{place}: {name} has no {label}={value}");
            }
        }
        known.extend(labels);
        named += 1;
        from = end;
    }
    assert!(named > 0 || text.starts_with("up{"), "{place}: {text}");
    for clause in text.split(" by (").skip(1) {
        let names = clause.split(')').next().expect("one part at least");
        for label in names.split(',').map(str::trim) {
            assert!(known.contains(label), "{place}: by {label}");
        }
    }
    // `{{name}}` of Grafana, `{{ $labels.name }}` of Prometheus.
    for part in shown.split("{{").skip(1) {
        let label = part.split("}}").next().expect("one part at least").trim();
        let label = match label.strip_prefix('$') {
            Some(given) => given.strip_prefix("labels.").unwrap_or("instance"),
            None => label,
        };
        assert!(known.contains(label), "{place}: shows {label}");
    }
}

#[test]
fn alerts_ask_for_what_there_is() {
    let alerts = alerts();
    assert!(alerts.len() >= 15);
    alerts.iter().for_each(check);
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let panels = panels();
    assert!(panels.len() >= 40);
    panels.iter().for_each(check);
    let board: Value = serde_json::from_str(&file(DASHBOARD)).expect("JSON");
    for variable in board["templating"]["list"].as_array().expect("variables") {
        if let Some(definition) = variable["definition"].as_str() {
            let name = definition.trim_start_matches("label_values(");
            let (name, label) = name.split_once(", ").expect("a series and a label");
            assert!(series(name).is_some(), "{definition}");
            assert_eq!(label, "instance)");
        }
    }
    // Panels that lie on each other, and ids that are taken twice, are shown wrong in silence.
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in board["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64()), "{}", panel["title"]);
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "{}", panel["title"]);
            for y in place("y")..place("y") + place("h") {
                assert!(cells.insert((x, y)), "{}", panel["title"]);
            }
        }
    }
}

#[test]
fn prometheus_takes_alerts_and_queries() {
    let Some(promtool) = program("prometheus_takes_alerts_and_queries", "promtool") else {
        return;
    };
    run(Command::new(&promtool)
        .args(["check", "rules"])
        .arg(path(ALERTS)));
    // The dashboard's queries as rules.
    let rules: Vec<Value> = dashboard_queries()
        .iter()
        .enumerate()
        .map(|(number, (_, text))| json!({"record": format!("query:{number}"), "expr": text}))
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let queries = folder.path().join("queries.json");
    let text = json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string();
    fs::write(&queries, text).expect("a file");
    run(Command::new(&promtool)
        .args(["check", "rules"])
        .arg(queries));
}

#[test]
fn every_alert_fires_and_keeps_silent_as_its_cases_say() {
    let test = "every_alert_fires_and_keeps_silent_as_its_cases_say";
    let Some(promtool) = program(test, "promtool") else {
        return;
    };
    let cases = path("deploy/prometheus/alerts.test.yml");
    run(Command::new(&promtool).args(["test", "rules"]).arg(cases));
    let cases = file("deploy/prometheus/alerts.test.yml");
    for alert in alerts() {
        let fires = format!("alertname=\"{}\"", alert.place);
        assert!(cases.contains(&fires), "no case makes {} fire", alert.place);
    }
}

#[test]
fn prometheus_takes_what_a_relay_serves() {
    let Some(promtool) = program("prometheus_takes_what_a_relay_serves", "promtool") else {
        return;
    };
    let relay = Launch::new().start();
    let text = relay.metrics_text();
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a program that runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("our own child");
    assert!(output.status.success(), "{}", said(&output));
    // The table is what is served, so a query that fits the one fits the other.
    for series in SERIES {
        let absent_at_start = series.name == "buzz_concurrency_remembered_age_seconds"
            || series.name == "buzz_feature_flag_mistyped_total";
        let is_there = text.contains(&format!("# TYPE {} ", series.name));
        assert!(is_there || absent_at_start, "{}", series.name);
    }
}
