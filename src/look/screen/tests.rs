use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use super::super::picture::tests::{picture, status, status_later};
use super::*;

const NAME: &str = "http://127.0.0.1:8080";

/// What is drawn, line by line, without the spaces at their ends.
fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

/// A screen that has seen two pictures, a second apart.
fn seen() -> (Screen, Instant) {
    let start = Instant::now();
    let mut screen = Screen::new(NAME.to_owned());
    screen.saw(picture(status()), start);
    let later = start + Duration::from_secs(1);
    screen.saw(picture(status_later()), later);
    (screen, later)
}

#[test]
fn a_terminal_of_the_usual_size() {
    let (screen, _) = seen();
    let lines = drawn(&screen, 80, 24);
    let expected = "\
ready  http://127.0.0.1:8080  1.2.3 (0123456789ab)  up 1 h 2 min  io_uring
1500 connections           120 events/s                50 queries/s
                       ██                           █                          █
                       ██                           █                          █
                       ██                           █                          █
                       ██                           █                          █
shard connections events/s queries/s   subs delivered/s    queued  silent
0             700      100         0   1400           0   2.0 KiB   40 ms
1             800        0         0   1600           0       0 B    5 ms









gate          limit in flight waiting debt sheds sheds/s  ceiling        source
auth           none         0       0    0     0       0     none  launchdarkly
history_reads    10        12       3    2    10     4.0       40  launchdarkly
store embedded, 4 waiting, 5.0 MiB of 1.0 GiB (0 %), 910 commits of 5.0 ms
drain none; it would take 20 s
q quits";
    assert_eq!(lines.join("\n"), expected, "\n{}", lines.join("\n"));
}

#[test]
fn a_small_terminal_has_all_but_charts_and_some_columns() {
    let (screen, _) = seen();
    let lines = drawn(&screen, 40, 12);
    let expected = "\
ready  http://127.0.0.1:8080  1.2.3 (012
1500 connect  120 events/s  50 queries/s
shard connections events/s queries/s
0             700      100         0
1             800        0         0


gate          limit in flight waiting
auth           none         0       0
history_reads    10        12       3
store embedded, 4 waiting, 5.0 MiB of 1.
drain none; it would take 20 s";
    assert_eq!(lines.join("\n"), expected, "\n{}", lines.join("\n"));
}

#[test]
fn many_shards_stand_side_by_side_on_a_large_terminal() {
    let (mut screen, later) = seen();
    let mut many = status_later();
    let shards: Vec<_> = (0..100)
        .map(|id| json!({"id": id, "connections": id * 2}))
        .collect();
    many["shards"] = json!(shards);
    screen.saw(picture(many), later + Duration::from_secs(1));
    let lines = drawn(&screen, 200, 50);
    for id in 0..100 {
        let cells = format!("{id:<5}{:>12}", id * 2);
        assert!(
            lines.iter().any(|line| line.contains(&cells)),
            "{id}\n{}",
            lines.join("\n")
        );
    }
    let heads = lines
        .iter()
        .map(|line| line.matches("shard connections").count());
    assert_eq!(heads.max(), Some(4), "{}", lines.join("\n"));
    assert!(lines.iter().any(|line| line.starts_with("history_reads")));
    // On a small one as many as there is room for, and the number of the others.
    let lines = drawn(&screen, 40, 12);
    assert!(
        lines.contains(&"and 97 more".to_owned()),
        "{}",
        lines.join("\n")
    );
}

#[test]
fn no_size_is_too_small() {
    let (mut screen, later) = seen();
    screen.missed("no answer".to_owned(), later);
    for (width, height) in [
        (1, 1),
        (2, 50),
        (200, 1),
        (5, 5),
        (39, 8),
        (80, 9),
        (300, 90),
    ] {
        drawn(&screen, width, height);
        drawn(&Screen::new(NAME.to_owned()), width, height);
    }
}

#[test]
fn before_the_first_answer_it_says_what_it_waits_for() {
    let mut screen = Screen::new(NAME.to_owned());
    assert_eq!(
        drawn(&screen, 80, 2),
        ["waiting for http://127.0.0.1:8080", ""]
    );
    let at = Instant::now();
    screen.missed("refused".to_owned(), at);
    screen.missed("refused".to_owned(), at + Duration::from_secs(3));
    let lines = drawn(&screen, 80, 2);
    assert_eq!(lines[1], "refused; trying again, for 3 s now");
    screen.saw(picture(status()), at + Duration::from_secs(4));
    let lines = drawn(&screen, 80, 24);
    assert!(lines[0].starts_with("ready"), "{lines:?}");
    // One look tells no rate.
    assert!(lines[1].contains("- events/s"), "{lines:?}");
}

#[test]
fn a_relay_that_goes_and_comes_back_is_told_and_gives_no_wrong_rate() {
    let (mut screen, later) = seen();
    screen.missed("no answer".to_owned(), later + Duration::from_secs(1));
    let lines = drawn(&screen, 80, 24);
    assert!(lines[0].starts_with("GONE  http://"), "{lines:?}");
    assert!(lines[1].starts_with("no answer; trying again"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("history_reads")),
        "what it said stays"
    );
    let mut again = status();
    again["uptime_seconds"] = json!(1);
    again["totals"]["events"] = json!({"stored": 3});
    screen.saw(picture(again), later + Duration::from_secs(3));
    let lines = drawn(&screen, 80, 24);
    assert!(lines[0].starts_with("ready"), "{lines:?}");
    assert!(lines[1].contains("- events/s"), "{lines:?}");
    assert!(!lines.join("\n").contains("-1"), "{lines:?}");
}

#[test]
fn a_drain_has_a_bar() {
    let (mut screen, later) = seen();
    let mut draining = status_later();
    draining["lifecycle"] = json!("draining");
    draining["drain"] = json!({"state": "closing", "requested_by": "SIGTERM",
        "running_ms": 2_000, "window_ms": 20_000, "connections": 1_000,
        "sockets_remaining": 400, "acknowledged": 590, "cancelled": 4, "gone": 6});
    screen.saw(picture(draining), later + Duration::from_secs(1));
    let lines = drawn(&screen, 100, 24);
    assert!(lines[0].starts_with("draining"), "{lines:?}");
    let drain = "drain ######.... closing: 400 of 1000 left after 2 s (SIGTERM), 590 acknowledged";
    assert!(
        lines.iter().any(|line| line.starts_with(drain)),
        "{}",
        lines.join("\n")
    );
}

#[test]
fn the_charts_are_bounded() {
    let (mut screen, mut at) = seen();
    for _ in 0..3 * TOP_POINTS_MAX {
        at += Duration::from_secs(1);
        screen.saw(picture(status_later()), at);
        screen.missed(String::new(), at);
    }
    for points in [&screen.connections, &screen.events, &screen.queries] {
        assert_eq!(points.len(), TOP_POINTS_MAX);
    }
}

#[test]
fn a_grid_gives_up_columns_before_shards() {
    let grid = |shards, width, rows| {
        let Grid {
            columns,
            blocks,
            shown,
        } = Grid::of(shards, width, rows);
        (columns, blocks, shown)
    };
    assert_eq!(grid(2, 80, 11), (8, 1, 2));
    assert_eq!(grid(20, 80, 11), (4, 2, 20));
    assert_eq!(grid(30, 80, 11), (4, 2, 21));
    assert_eq!(grid(2, 20, 11), (4, 1, 2), "cut, but there");
    assert_eq!(grid(0, 80, 11), (8, 1, 0));
}
