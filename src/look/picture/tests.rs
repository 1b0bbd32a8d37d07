use super::*;
use serde_json::json;

/// A relay as it would say so itself.
pub fn status() -> Value {
    json!({
        "version": "1.2.3", "commit": "0123456789ab", "lifecycle": "ready",
        "uptime_seconds": 3_725, "driver": "io_uring",
        "addresses": {"websocket": "0.0.0.0:3000", "health": "0.0.0.0:8080"},
        "connections": 1_500,
        "shards": [
            {"id": 0, "sockets": 800, "heartbeat_age_ms": 40, "connections": 700,
             "subscriptions": 1_400, "queued_bytes": 2_048, "events": 1_000,
             "delivered": 50_000, "queries": 300},
            {"id": 1, "sockets": 810, "heartbeat_age_ms": 5, "connections": 800,
             "subscriptions": 1_600, "queued_bytes": 0, "events": 2_000,
             "delivered": 60_000, "queries": 400},
        ],
        "totals": {
            "connections": 9_000,
            "events": {"stored": 2_500, "ephemeral": 300, "duplicate": 150, "refused": 50},
            "delivered": 110_000, "dropped": 7,
            "queries": {"req": 600, "count": 100, "neg": 0},
            "closes": {"client": 7_000, "lost": 500},
            "logins": {"success": 40, "invalid": 2},
        },
        "gates": {
            "history_reads": {"limit": 10, "ceiling": 40, "in_flight": 12, "waiting": 3,
                              "debt": 2, "source": "launchdarkly",
                              "sheds": {"timeout": 5, "full": 1, "closed": 0}},
            "auth": {"limit": null, "ceiling": null, "in_flight": 0, "waiting": 0, "debt": 0,
                     "source": "launchdarkly", "sheds": {"timeout": 0, "full": 0, "closed": 0}},
        },
        "feature_flags": {"provider": "launchdarkly", "ready": true, "last_refresh": 1},
        "store": {"kind": "embedded", "pending_writes": 4, "commits": 900, "commit_seconds": 1.8,
                  "used_bytes": 5_242_880, "events_bytes_max": 1_073_741_824},
        "transfers": {"imports": 0, "exports": 1},
        "drain": {"state": "none", "requested_by": null, "running_ms": null, "window_ms": 20_000,
                  "connections": 0, "sockets_remaining": 1_610, "acknowledged": 0,
                  "cancelled": 0, "gone": 0, "exit_code": null, "seed": "00"},
    })
}

/// The same, a second later, with some more of everything.
pub fn status_later() -> Value {
    let mut later = status();
    later["uptime_seconds"] = json!(3_726);
    later["shards"][0]["events"] = json!(1_100);
    later["totals"]["events"]["stored"] = json!(2_620);
    later["totals"]["queries"]["req"] = json!(650);
    later["totals"]["delivered"] = json!(112_500);
    later["store"]["commits"] = json!(910);
    later["store"]["commit_seconds"] = json!(1.85);
    later["gates"]["history_reads"]["sheds"]["timeout"] = json!(9);
    later
}

pub fn picture(status: Value) -> Picture {
    Picture::read(status).unwrap()
}

#[test]
fn a_status_is_read_and_what_is_missing_is_at_its_default() {
    let picture = picture(status());
    assert_eq!(picture.shards[1].connections, 800);
    assert_eq!((picture.events(), picture.queries()), (3_000, 700));
    let gate = &picture.gates[&Text::of("history_reads")];
    assert_eq!((gate.limit, gate.shed()), (Some(10), 6));
    assert_eq!(picture.gates[&Text::of("auth")].limit, None);
    assert!(picture.is_ready());

    let bare = Picture::read(json!({"lifecycle": "starting", "new": [1]})).unwrap();
    assert!(!bare.is_ready());
    assert_eq!(bare.shards, []);
}

#[test]
fn what_is_no_status_is_told() {
    for other in [json!({}), json!({"lifecycle": 1})] {
        assert_eq!(
            Picture::read(other).unwrap_err(),
            "this is no relay's status"
        );
    }
    let wrong = json!({"lifecycle": "ready", "connections": "\u{1b}[31mmany"});
    let error = Picture::read(wrong).unwrap_err();
    assert!(error.contains("another version"), "{error}");
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

#[test]
fn no_text_can_move_a_terminal() {
    let hostile = "a\u{1b}[2J\u{7}\u{9b}31m\u{7f}\u{202e}b\n\r\tc \u{e9}";
    assert_eq!(Text::of(hostile).as_str(), "a?[2J??31m??b???c ?");
    let mut status = status();
    status["version"] = json!(hostile);
    status["gates"] = json!({hostile: {"source": hostile, "sheds": {hostile: 1}}});
    status["totals"]["closes"] = json!({hostile: 1});
    status["drain"]["requested_by"] = json!(hostile);
    let shown = format!("{:?}", picture(status));
    assert!(
        shown
            .chars()
            .all(|char| char == ' ' || char.is_ascii_graphic())
    );
    assert!(!shown.contains("\\u{"), "{shown}");
    let long = "x".repeat(10 * STATUS_TEXT_CHARS_MAX);
    assert_eq!(Text::of(&long).as_str().len(), STATUS_TEXT_CHARS_MAX);
}

#[test]
fn rates_are_differences_a_second() {
    let (before, now) = (picture(status()), picture(status_later()));
    let change = Change::new(&now, Some((&before, Duration::from_secs(2))));
    assert_eq!(
        change.a_second(|picture| Some(picture.events())),
        Some(60.0)
    );
    assert_eq!(
        change.a_second(|picture| Some(picture.queries())),
        Some(25.0)
    );
    let of_shard =
        |id: usize| change.a_second(|picture| picture.shards.get(id).map(|shard| shard.events));
    assert_eq!(
        (of_shard(0), of_shard(1), of_shard(2)),
        (Some(50.0), Some(0.0), None)
    );
    let commit = change.commit_seconds().unwrap();
    assert!((commit - 0.005).abs() < 1e-9, "{commit}");
}

#[test]
fn no_rate_is_negative() {
    let (before, mut now) = (picture(status()), picture(status_later()));
    let events = |picture: &Picture| Some(picture.events());
    let none = Change::new(&now, None);
    assert_eq!((none.a_second(events), none.commit_seconds()), (None, None));
    let at_once = Change::new(&now, Some((&before, Duration::ZERO)));
    assert_eq!(at_once.a_second(events), None);
    // It has restarted and counted past the old numbers meanwhile.
    now.uptime_seconds = 3;
    let second = Duration::from_secs(1);
    assert_eq!(
        Change::new(&now, Some((&before, second))).a_second(events),
        None
    );
    // It has restarted within the second of its start.
    now.uptime_seconds = before.uptime_seconds;
    now.totals.events.clear();
    now.store.commits = 0;
    let back = Change::new(&now, Some((&before, second)));
    assert_eq!((back.a_second(events), back.commit_seconds()), (None, None));
}

#[test]
fn numbers_that_nobody_can_have_counted_do_no_harm() {
    let mut hostile = status();
    let most = json!(u64::MAX);
    for pointer in [
        "/uptime_seconds",
        "/connections",
        "/shards/0/subscriptions",
        "/shards/0/queued_bytes",
        "/shards/0/heartbeat_age_ms",
        "/totals/events/stored",
        "/totals/queries/req",
        "/gates/history_reads/sheds/timeout",
        "/gates/history_reads/debt",
        "/store/commits",
        "/store/used_bytes",
        "/drain/running_ms",
        "/drain/window_ms",
        "/drain/connections",
        "/transfers/imports",
    ] {
        *hostile.pointer_mut(pointer).unwrap() = most.clone();
    }
    hostile["drain"]["state"] = json!("closing");
    let hostile = picture(hostile);
    assert_eq!(hostile.events(), u64::MAX);
    assert!(!super::super::status::render("", &hostile).is_empty());
    let mut screen = super::super::screen::Screen::new(String::new());
    let start = std::time::Instant::now();
    screen.saw(picture(status()), start);
    screen.saw(hostile, start + Duration::from_secs(1));
    let backend = ratatui::backend::TestBackend::new(80, 24);
    let mut terminal = ratatui::Terminal::new(backend).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
}
