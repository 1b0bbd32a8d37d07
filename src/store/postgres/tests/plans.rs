//! How PostgreSQL answers each shape of filter: the plans of the very statements that the store sends,
//! as the server logs them. Nothing that names ids, authors, kinds or a tag may read a table from end
//! to end.
//!
//! `BUZZ_PLANS_EVENTS=1000000 BUZZ_PLANS_FILE=docs/postgres-plans.md cargo test --release --lib
//! plans::` writes the page that shows them on a million events.

use std::fmt::Write;
use std::fs;

use sha2::{Digest, Sha256};

use super::*;
use crate::store::conformance::{BOUNDS, answer, note, put, put_one};

/// Events by default.
const EVENTS: u64 = 30_000;

/// Fills a database with made-up events: authors and hashtags of very different sizes, as in life.
const FILL: &str = "
INSERT INTO buzz.events
SELECT g, id, encode(substr(id, 1, 16), 'hex')::uuid, author, -(1700000000 + g / 3), kind,
       CASE WHEN kind IN (0, 3, 10002, 30023)
            THEN encode(substr(sha256(convert_to('a' || g, 'UTF8')), 1, 16), 'hex')::uuid END,
       CASE WHEN g % 50 = 0 THEN 4000000000 + g END, tags,
       convert_to('{\"id\":\"' || encode(id, 'hex') || '\",\"pubkey\":\"' || encode(author, 'hex')
           || '\",\"created_at\":' || (1700000000 + g / 3) || ',\"kind\":' || kind
           || ',\"tags\":[],\"content\":\"' || repeat('lorem ipsum ', 32) || '\",\"sig\":\"'
           || repeat('5a', 64) || '\"}', 'UTF8')
FROM (
    SELECT g, sha256(convert_to('event' || g, 'UTF8')) AS id,
           sha256(convert_to('author' || floor(20000 * power(random(), 3))::int, 'UTF8')) AS author,
           (ARRAY[1, 1, 1, 1, 1, 7, 7, 7, 6, 0, 3, 10002, 30023, 1984, 9735, 1059])
               [1 + floor(random() * 16)::int] AS kind,
           ARRAY[
               encode(substr(sha256(convert_to('e' || (g - g % 40), 'UTF8')), 1, 16), 'hex')::uuid,
               encode(substr(sha256(convert_to('p' ||
                   encode(sha256(convert_to('author' || floor(20000 * power(random(), 3))::int,
                       'UTF8')), 'hex'), 'UTF8')), 1, 16), 'hex')::uuid,
               encode(substr(sha256(convert_to('ttopic' || floor(2000 * power(random(), 4))::int,
                   'UTF8')), 1, 16), 'hex')::uuid
           ] AS tags
    FROM generate_series(FROM_HERE, TO_HERE) AS g
) AS made;
INSERT INTO buzz.tags
SELECT DISTINCT tag, age, half, seq, kind FROM buzz.events, unnest(tags) AS tag
WHERE seq BETWEEN FROM_HERE AND TO_HERE;
UPDATE buzz.head SET seq = TO_HERE;";

fn hex(text: &str) -> String {
    const_hex::encode(Sha256::digest(text))
}

/// What is asked, and in a few words what it is.
fn shapes(events: u64) -> Vec<(&'static str, String)> {
    let list = |name: &str, from: u64, count: u64| {
        let each = (from..from + count).map(|n| format!("\"{}\"", hex(&format!("{name}{n}"))));
        each.collect::<Vec<_>>().join(",")
    };
    let middle = 1_700_000_000 + events / 6;
    let reply = format!("{}", events / 80 * 40);
    vec![
        ("20 ids", format!(r#"{{"ids":[{}]}}"#, list("event", 1, 20))),
        (
            "one author, newest 100",
            format!(r#"{{"authors":[{}],"limit":100}}"#, list("author", 3, 1)),
        ),
        (
            "one author's notes",
            format!(
                r#"{{"authors":[{}],"kinds":[1],"limit":100}}"#,
                list("author", 3, 1)
            ),
        ),
        (
            "a feed: 50 authors, newest 100",
            format!(
                r#"{{"authors":[{}],"kinds":[1,6],"limit":100}}"#,
                list("author", 0, 50)
            ),
        ),
        (
            "500 authors, newest 500",
            format!(
                r#"{{"authors":[{}],"kinds":[1,6],"limit":500}}"#,
                list("author", 0, 500)
            ),
        ),
        (
            "profiles of 200 authors",
            format!(r#"{{"authors":[{}],"kinds":[0]}}"#, list("author", 0, 200)),
        ),
        (
            "2000 authors, newest 100",
            format!(
                r#"{{"authors":[{}],"limit":100}}"#,
                list("author", 0, 2_000)
            ),
        ),
        ("one kind", r#"{"kinds":[1984],"limit":100}"#.to_owned()),
        (
            "three kinds, older than a time",
            format!(r#"{{"kinds":[1,6,7],"until":{middle},"limit":100}}"#),
        ),
        (
            "replies to a note",
            format!(r##"{{"#e":["{}"],"kinds":[1]}}"##, hex("event1")),
        ),
        (
            "mentions of a popular key",
            format!(r##"{{"#p":["{}"],"limit":100}}"##, hex("author0")),
        ),
        (
            "rare kind among its mentions",
            format!(
                r##"{{"#p":["{}"],"kinds":[1984],"limit":100}}"##,
                hex("author0")
            ),
        ),
        (
            "a busy hashtag",
            r##"{"#t":["topic0"],"kinds":[1],"limit":100}"##.to_owned(),
        ),
        (
            "twenty hashtags",
            format!(
                r##"{{"#t":[{}],"limit":100}}"##,
                (0..20)
                    .map(|n| format!("\"topic{n}\""))
                    .collect::<Vec<_>>()
                    .join(",")
            ),
        ),
        (
            "two tags at once",
            format!(
                r##"{{"#t":["topic0"],"#p":["{}"],"limit":100}}"##,
                hex("author0")
            ),
        ),
        (
            "a hashtag of some authors",
            format!(
                r##"{{"#t":["topic1"],"authors":[{}],"limit":100}}"##,
                list("author", 0, 5)
            ),
        ),
        ("everything new", r#"{"limit":500}"#.to_owned()),
        (
            "everything of a day",
            format!(
                r#"{{"since":{middle},"until":{},"limit":500}}"#,
                middle + 86_400
            ),
        ),
        ("nothing", format!(r##"{{"#r":["{reply}"],"kinds":[9]}}"##)),
    ]
}

/// The plans in a log, from a place on.
fn plans(log: &str) -> Vec<String> {
    let mut plans: Vec<String> = Vec::new();
    let mut open = false;
    for line in log.lines() {
        if line.contains("duration: ") && line.contains("plan:") {
            plans.push(String::new());
            open = true;
        } else if open && line.starts_with('\t') {
            let plan = plans.last_mut().expect("one was begun");
            let _ = writeln!(plan, "{}", line.trim_start_matches('\t'));
        } else {
            open = false;
        }
    }
    // The listener and the upkeep look around now and then.
    plans.retain(|plan| !plan.contains("buzz.access_version)") && !plan.contains("make_interval"));
    // Without the statement, which comes first.
    let body = |plan: &String| {
        let start = plan
            .find("(actual")
            .map_or(0, |at| plan[..at].rfind('\n').map_or(0, |n| n + 1));
        plan[start..].to_owned()
    };
    plans.iter().map(body).collect()
}

#[test]
fn no_filter_that_names_something_reads_a_table_from_end_to_end() {
    if cluster().is_none() {
        return;
    }
    let own = Cluster::start(&[
        "-c",
        "fsync=off",
        "-c",
        "session_preload_libraries=auto_explain",
        "-c",
        "auto_explain.log_min_duration=0",
        "-c",
        "auto_explain.log_analyze=on",
        "-c",
        "auto_explain.log_buffers=on",
        "-c",
        "auto_explain.log_timing=off",
    ]);
    let own = match own {
        Ok(own) => own,
        // A server without its extensions.
        Err(reason) => return println!("skipped: {}", reason.lines().next().unwrap_or_default()),
    };
    let url = own.database();
    let database = name(&url);
    let events = std::env::var("BUZZ_PLANS_EVENTS").ok();
    let events = events.map_or(EVENTS, |text| text.parse().expect("a number of events"));
    // Few connections: each has made its plans when there was nothing.
    let running = Running::with(PostgresOptions {
        pool: 2,
        read_pool: 1,
        ..options(&url)
    });
    for (_, text) in shapes(events) {
        let filters = [Filter::parse(&text, 20_000).expect("a filter")];
        running.count(&filters, &Ask::piece(1));
        answer(&running, &filters, BOUNDS, &Ask::piece(1));
    }
    put(&running, &[note(1, 1)]);
    own.run(&database, "TRUNCATE buzz.events, buzz.tags");
    let fill = FILL
        .replace("FROM_HERE", "1")
        .replace("TO_HERE", &events.to_string());
    own.run(
        &database,
        &format!("SET auto_explain.log_min_duration = -1; {fill}"),
    );
    *queue::lock(&running.store.shared.core.ledger) = ledger::Ledger::new(events);

    let mut page = String::new();
    let mut seen = own.log().len();
    let mut asked = |what: &str, text: &str, page: &mut String, ask: &mut dyn FnMut() -> String| {
        // Once more than is shown: the first run reads from disk and prepares.
        ask();
        seen = own.log().len();
        let started = Instant::now();
        let answer = ask();
        let took = started.elapsed();
        let log = own.log();
        let found = plans(&log[seen..]);
        assert!(!found.is_empty(), "{what}: no plan in the log");
        let _ = writeln!(page, "### {what}\n\n`{}`\n", shortened(text));
        let _ = writeln!(
            page,
            "{answer}; {} statements, {:.1} ms\n",
            found.len(),
            took.as_secs_f64() * 1e3
        );
        let plan = found.last().expect("one");
        let _ = writeln!(page, "```text\n{}```\n", candidates(plan));
        for plan in &found {
            for table in ["events", "tags", "deleted", "vanished", "access"] {
                let scan = format!("Seq Scan on {table} ");
                assert!(!plan.contains(&scan), "{what}:\n{plan}");
            }
        }
    };
    for (what, text) in shapes(events) {
        let filters = [Filter::parse(&text, 20_000).expect("a filter")];
        let read = &mut || {
            answer(&running, &filters, BOUNDS, &Ask::piece(u32::MAX))
                .len()
                .to_string()
        };
        asked(what, &text, &mut String::new(), read);
    }
    own.run(&database, "VACUUM ANALYZE");
    for (what, text) in shapes(events) {
        let filter = Filter::parse(&text, 20_000).expect("a filter");
        let filters = [filter];
        let mut read = || {
            let given = crate::store::conformance::answer(
                &running,
                &filters,
                BOUNDS,
                &Ask::piece(u32::MAX),
            );
            format!("{} events", given.len())
        };
        asked(what, &text, &mut page, &mut read);
    }
    for (what, text) in shapes(events) {
        if [
            "one author, newest 100",
            "one kind",
            "mentions of a popular key",
        ]
        .contains(&what)
        {
            let filters = [Filter::parse(&text, 20_000).expect("a filter")];
            let mut count = || format!("{} counted", running.count(&filters, &Ask::piece(1)).0);
            asked(&format!("COUNT: {what}"), &text, &mut page, &mut count);
        }
    }
    let mut number = 0;
    let mut write = || {
        number += 1;
        let outcome = put_one(&running, &note(1_000_000_000 + number, 1_800_000_000));
        format!("{outcome:?}")
    };
    asked("A lone event is stored", "", &mut page, &mut write);
    let mut login = || format!("{:?}", running.access(&[7; 32]));
    asked("A login is checked", "", &mut page, &mut login);
    if let Ok(file) = std::env::var("BUZZ_PLANS_FILE") {
        let sizes = own.rows(&database, "
            SELECT c.relname, pg_size_pretty(pg_relation_size(c.oid)),
                   coalesce(substr(i.indexdef, position('(' in i.indexdef)), '')
            FROM pg_class c LEFT JOIN pg_indexes i ON i.schemaname = 'buzz' AND i.indexname = c.relname
            WHERE c.relnamespace = 'buzz'::regnamespace AND c.relkind IN ('r', 'i')
              AND pg_relation_size(c.oid) > 100000
            ORDER BY pg_relation_size(c.oid) DESC");
        let mut sized = String::new();
        for row in sizes {
            let column = |at: usize| row[at].clone().unwrap_or_default();
            let _ = writeln!(
                sized,
                "| `{}` | {} | `{}` |",
                column(0),
                column(1),
                column(2)
            );
        }
        let head = format!(
            "# Plans\n\nMade by `src/store/postgres/tests/plans.rs`, which says how; do not edit.\n\
             {events} events of about 700 bytes with three tags each, all in memory. Each is the last \
             statement of the second run.\n\n## Sizes\n\n| table or index | size | columns |\n|---|---|---|\n{sized}\n## Statements\n\n"
        );
        fs::write(file, head + &page).expect("the page is written");
    }
}

/// The part of a plan that differs from shape to shape: how the candidates are found. Without what the
/// planner had expected.
fn candidates(plan: &str) -> String {
    let part = plan.split_once("  CTE c\n").map_or(plan, |(_, rest)| rest);
    let part = part
        .split_once("  CTE edge\n")
        .map_or(part, |(part, _)| part);
    let mut shown = String::new();
    for line in part.lines() {
        let line = match (line.find("(cost="), line.find("(actual")) {
            (Some(from), Some(to)) => format!("{}{}", &line[..from], &line[to..]),
            _ => line.to_owned(),
        };
        let _ = writeln!(shown, "{line}");
    }
    shown
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
