//! The status page beside a relay that works, drains, ends and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buzz_uring::limits;
use buzz_uring::look::figures;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::common::raw::Raw;
use crate::common::{Author, Client, Launch, Relay, WAIT, get, now, quiet_address};
use crate::launchdarkly::Fake;
use crate::looks::looks_right;
use crate::site::site;

const HISTORY_FLAG: &str = "buzz.relay.concurrency.history-reads";

/// Keeps a list of what the page has shown that no page should.
const WATCH: &str = r"(() => {
    window.faults = [];
    const look = () => {
        const text = document.getElementById('figures').textContent;
        if (/(^|[^\w])-\d|NaN|undefined|Infinity|null|\[object/.test(text)) faults.push(text);
        for (const line of document.querySelectorAll('.chart path')) {
            const drawn = line.getAttribute('d') ?? '';
            const heights = [...drawn.matchAll(/[ML][^ ]+ ([^MLZ]+)/g)].map((one) => Number(one[1]));
            if (heights.some((height) => !(height >= 0 && height <= 40))) faults.push(drawn);
        }
    };
    const parts = { subtree: true, childList: true, characterData: true, attributes: true };
    new MutationObserver(look).observe(document.getElementById('figures'), parts);
})()";

/// The figure of a row, by the name of its card and its own.
fn row(card: &str, name: &str) -> String {
    format!(
        "[...document.querySelectorAll('[aria-label=\"{card}\"] dl > div')]
            .find((row) => row.firstChild.textContent === '{name}')?.lastChild.textContent"
    )
}

/// The figure of a tile.
fn tile(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('.tile')]
            .find((tile) => tile.firstChild.textContent === '{name}').children[1].textContent"
    )
}

fn word() -> &'static str {
    "document.getElementById('word').textContent"
}

/// Clients that publish and ask until told to stop, and one that listens.
struct Traffic {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Traffic {
    fn start(relay: &Relay) -> Traffic {
        let (address, stop) = (relay.address, Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let mut listener = Client::connect(address).await;
                listener.req("all", r#"{"limit":0}"#).await;
                let mut client = Client::connect(address).await;
                let author = Author::new(7);
                for turn in 0_u64.. {
                    if told.load(Ordering::Relaxed) {
                        return;
                    }
                    let event = author.json::<&str>(now(), 1, &[], &turn.to_string());
                    client.publish(&event).await;
                    client.fetch(r#"{"kinds":[1],"limit":3}"#).await;
                    listener.text().await;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
        });
        Traffic {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("taken once").join();
        assert!(
            ended.is_ok() || std::thread::panicking(),
            "the traffic failed"
        );
    }
}

/// A relay whose health port is a fixed one, so that it comes back where it was.
fn launch(fake: &Fake) -> Launch {
    let health = quiet_address();
    Launch::new()
        .set("BUZZ_HEALTH_BIND", health.ip())
        .set("BUZZ_HEALTH_PORT", health.port())
        .set("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly")
        .set("BUZZ_LAUNCHDARKLY_SDK_KEY", "sdk-0123")
        .set("BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL", fake.url())
        .set("BUZZ_DRAIN_JITTER_MS", limits::DRAIN_JITTER_MS_MAX)
}

#[test]
fn it_shows_a_relay_at_work_to_its_end_and_again() {
    let Some(browser) = Browser::start("it_shows_a_relay_at_work_to_its_end_and_again") else {
        return;
    };
    let fake = Fake::start(&[]);
    let launch = launch(&fake);
    let mut relay = launch.start();
    let home = format!("http://{}/", relay.health);
    browser.open(&home);
    browser.until(&format!("{} === 'Live'", word()));
    browser.value(WATCH);

    // Figures move, shard by shard and in all.
    let idle: Vec<Raw> = (0..20).map(|_| Raw::upgraded(relay.address)).collect();
    let traffic = Traffic::start(&relay);
    browser.until(&format!("Number({}) === 22", tile("Connections")));
    for name in ["Events/s", "Queries/s", "Delivered/s"] {
        browser.until(&format!("Number({}) > 0", tile(name)));
    }
    browser.until("document.querySelector('.tile .first').getAttribute('d').includes('L')");
    for shard in ["Shard 0", "Shard 1"] {
        browser.until(&format!("Number({}) > 0", row(shard, "Connections")));
    }
    browser.until(&format!("{} === 'none'", row("Auth", "Limit")));
    browser.until(&format!("{} === '40'", row("History reads", "Limit")));
    // Page and command line write one size in one way.
    let room = relay.status()["store"]["events_bytes_max"].as_u64();
    let room = figures::bytes(room.expect("a size"));
    let shown = "[...document.querySelectorAll('#store > div')]
        .find((row) => row.firstChild.textContent === 'Room for events')?.lastChild.textContent";
    browser.until(&format!("{shown} === '{room}'"));
    fake.set(HISTORY_FLAG, json!(3));
    browser.until(&format!("{} === '3'", row("History reads", "Limit")));
    browser.until(&format!("{} === '40'", row("History reads", "Ceiling")));
    let badge = "document.querySelector('[aria-label=\"History reads\"] .badge').textContent";
    browser.until(&format!("{badge} === 'lowered'"));
    looks_right(&browser);
    assert_eq!(browser.console(), Vec::<Value>::new());

    // The drain, as far as it has come.
    drop(traffic);
    browser.until(&format!("Number({}) === 20", tile("Connections")));
    relay.signal(Signal::TERM);
    browser.until("document.getElementById('stage').textContent === 'draining'");
    let closed = "Number(document.getElementById('drain-bar').ariaValueNow)";
    browser.until(&format!("{closed} > 0 && {closed} < 20"));
    let text = browser.text("document.getElementById('drain-text').textContent");
    assert!(text.contains(" of 20 connections closed: "), "{text}");
    assert!(text.contains("Closes are spread over 20 s."), "{text}");
    looks_right(&browser);

    // Its end is told, and so is that it is back; nothing ever ran backwards.
    drop(idle);
    relay.wait_exit(WAIT);
    browser.until(&format!(
        "{} === 'The relay has ended after its drain.'",
        word()
    ));
    browser.until("document.getElementById('when').textContent.includes('next try in')");
    looks_right(&browser);
    let _relay = launch.start();
    browser.until(&format!("{} === 'Live'", word()));
    browser.until(&format!("{} === '0'", tile("Connections")));
    browser.until(&format!("{} === '0'", tile("Events/s")));
    browser.until("document.getElementById('drain').hidden");
    assert_eq!(browser.value("faults"), json!([]));
    // Nobody else was asked for anything.
    let elsewhere: Vec<String> = browser
        .requested()
        .into_iter()
        .filter(|url| *url != home && *url != format!("{home}_status"))
        .collect();
    assert_eq!(elsewhere, Vec::<String>::new());
    let said = browser.console();
    let faults: Vec<&Value> = said
        .iter()
        .filter(|line| line["source"] != "network")
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn it_rests_while_nobody_looks() {
    let Some(browser) = Browser::start("it_rests_while_nobody_looks") else {
        return;
    };
    let mut relay = Launch::new().start();
    browser.open(&format!("http://{}/", relay.health));
    browser.until(&format!("{} === 'Live'", word()));
    let turn = |state: &str| {
        browser.value(&format!(
            "(() => {{ Object.defineProperty(document, 'visibilityState',
                {{ value: '{state}', configurable: true }});
            document.dispatchEvent(new Event('visibilitychange')); }})()"
        ));
    };
    turn("hidden");
    browser.until(&format!("{}.startsWith('Paused')", word()));
    browser.requested();
    relay.kill();
    // Three looks would have been due.
    browser.value("window.hiddenAt = performance.now()");
    browser.until("performance.now() > hiddenAt + 3500");
    assert_eq!(browser.requested(), Vec::<String>::new());
    browser.until(&format!("{}.startsWith('Paused')", word()));
    turn("visible");
    browser.until(&format!("{} === 'The relay does not answer.'", word()));
    // Not each second: the second wait is longer than the first, and said.
    browser.until("/next try in [4-9] s/.test(document.getElementById('when').textContent)");
}

#[test]
fn fields_that_are_missing_or_strange_do_not_break_it() {
    let Some(browser) = Browser::start("fields_that_are_missing_or_strange_do_not_break_it") else {
        return;
    };
    let relay = Launch::new().start();
    let page = get(relay.health, "/", &[]);
    let policy = page.field("Content-Security-Policy").expect("a policy");
    let html = format!("text/html; charset=utf-8\r\nContent-Security-Policy: {policy}");
    let strange = [
        json!({}),
        json!({"shards": 3, "gates": [1], "store": "x", "drain": null, "totals": [], "connections": "2"}),
        json!({
            "shards": [{}, {"id": 7, "sockets": null, "heartbeat_age_ms": 9_000}, null],
            "gates": {"auth": {}, "<b>new</b>": {"limit": 1, "sheds": {"<i>": 2}}, "x": null},
            "drain": {"state": "<b>odd</b>"}, "store": {"kind": 4, "writers": {}},
            "totals": {"closes": {"<img src=x>": 1}, "events": {}}, "lifecycle": 5,
            "feature_flags": 1, "uptime_seconds": -1,
        }),
    ];
    for status in strange {
        let kind = "application/json".to_owned();
        let address = site(vec![
            ("/", html.clone(), page.text()),
            ("/_status", kind, status.to_string()),
        ]);
        browser.open(&format!("http://{address}/"));
        browser.until(&format!("{} === 'Live'", word()));
        assert_eq!(
            browser.value("document.querySelectorAll('b, i, img').length"),
            0
        );
        assert_eq!(browser.console(), Vec::<Value>::new(), "{status}");
    }
    // An answer that is none.
    let kind = "application/json".to_owned();
    let address = site(vec![
        ("/", html, page.text()),
        ("/_status", kind, "[".to_owned()),
    ]);
    browser.open(&format!("http://{address}/"));
    browser.until(&format!(
        "{}.startsWith('The relay answers without a status')",
        word()
    ));
}
