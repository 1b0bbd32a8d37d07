use super::*;
use crate::control::logs::capture;
use crate::flags::fake::{Fake, Mode};
use crate::flags::{Environment, LaunchDarkly, Periods, variable_of};
use crate::secret::Secret;
use serde_json::json;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::UNIX_EPOCH;
use tracing::level_filters::LevelFilter;

const HISTORY: &str = key_of(GateName::HistoryReads);
const AUTH: &str = key_of(GateName::Auth);

/// Gates with the rules of the real ones: history has a ceiling of 40, auth none.
#[derive(Default)]
struct Gates {
    limits: [AtomicU32; GateName::ALL.len()],
    calls: AtomicUsize,
    /// Calls for the history gate that panic, from now on.
    panics: AtomicUsize,
    pause: Mutex<Duration>,
    at: Mutex<Vec<Instant>>,
}

impl Gates {
    fn new() -> Arc<Gates> {
        let gates = Gates::default();
        gates.limits[GateName::HistoryReads.index()].store(40, Ordering::SeqCst);
        Arc::new(gates)
    }

    fn limit(&self, gate: GateName) -> u32 {
        self.limits[gate.index()].load(Ordering::SeqCst)
    }
}

impl Caps for Gates {
    fn apply(&self, gate: GateName, value: Option<i64>, _source: Source) -> Applied {
        if gate == GateName::HistoryReads {
            self.calls.fetch_add(1, Ordering::SeqCst);
            self.at.lock().unwrap().push(Instant::now());
            std::thread::sleep(std::mem::take(&mut *self.pause.lock().unwrap()));
            let less = |left: usize| left.checked_sub(1);
            if self
                .panics
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok()
            {
                panic!("as the test asked");
            }
        }
        let ceiling = if gate == GateName::HistoryReads {
            40
        } else {
            0
        };
        let wanted = value.filter(|value| *value > 0).map(|value| value as u32);
        let new = match wanted {
            Some(wanted) if ceiling == 0 => wanted,
            Some(wanted) => wanted.min(ceiling),
            None => ceiling,
        };
        let old = self.limits[gate.index()].swap(new, Ordering::SeqCst);
        Applied { old, new, ceiling }
    }
}

fn environment(pairs: &[(&str, &str)]) -> Flags {
    let pairs = pairs
        .iter()
        .map(|(key, text)| (variable_of(key), Secret::new(*text)));
    Flags::Environment(Environment::new(&pairs.collect()))
}

/// LaunchDarkly as the fake plays it. When it plays dead, the start does not wait.
async fn launchdarkly(fake: &Fake, is_there: bool) -> Flags {
    let start = if is_there {
        Duration::from_secs(10)
    } else {
        Duration::from_millis(10)
    };
    let ms = Duration::from_millis;
    let periods = Periods {
        start,
        rebuild: ms(50),
        reconnect: ms(10),
        ..Periods::default()
    };
    let url = Secret::new(fake.url());
    let provider = LaunchDarkly::start(&Secret::new("sdk-hush"), Some(&url), periods).await;
    Flags::LaunchDarkly(Box::new(provider))
}

async fn until(refresh: &mut Refresh, mut condition: impl FnMut(&Refresh) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition(refresh) {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(2)).await;
        refresh.refresh();
    }
}

/// The lines of one refresh.
fn refreshed(refresh: &mut Refresh) -> String {
    let (captured, _guard) = capture::logs(LevelFilter::INFO);
    refresh.refresh();
    captured.text()
}

#[test]
fn a_changed_limit_is_one_line_and_an_unchanged_one_none() {
    let gates = Gates::new();
    let flags = environment(&[(AUTH, "7"), (HISTORY, "99")]);
    let mut refresh = Refresh::new(flags, gates.clone(), None);
    let lines = refreshed(&mut refresh);
    // 99 is clamped to the ceiling, which held before: no change there.
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let line: Value = serde_json::from_str(&lines).unwrap();
    let expected = [
        ("gate", "auth"),
        ("old", "none"),
        ("new", "7"),
        ("ceiling", "none"),
        ("source", "environment"),
        ("message", "concurrency limit changed"),
    ];
    for (key, value) in expected {
        assert_eq!(line[key], value, "{lines}");
    }
    assert_eq!(refreshed(&mut refresh), "");
    assert_eq!(
        (
            gates.limit(GateName::Auth),
            gates.limit(GateName::HistoryReads)
        ),
        (7, 40)
    );
    assert_eq!(refresh.shown().source(GateName::Auth), Source::Environment);
}

#[test]
fn static_is_the_ceilings_by_choice() {
    let gates = Gates::new();
    let mut refresh = Refresh::new(Flags::Static, gates.clone(), None);
    assert_eq!(refreshed(&mut refresh), "");
    assert_eq!(gates.limit(GateName::HistoryReads), 40);
    assert_eq!(
        refresh.shown().source(GateName::HistoryReads),
        Source::Static
    );
    let mut status = Map::new();
    refresh.shown().describe(&mut status);
    assert_eq!(status["feature_flags"]["provider"], "static");
    assert_eq!(status["feature_flags"]["ready"], true);
    assert!(status["feature_flags"]["last_refresh"].is_u64());
}

#[test]
fn the_provider_s_series() {
    let text = crate::metrics::recorded(|| {
        let flags = environment(&[(AUTH, "many")]);
        let mut refresh = Refresh::new(flags, Gates::new(), None);
        refresh.clock = || UNIX_EPOCH + Duration::from_secs(1_700_000_123);
        refresh.refresh();
        refresh.refresh();
    });
    for line in [
        "buzz_feature_flags_ready{provider=\"environment\"} 1",
        "buzz_feature_flags_last_refresh_timestamp_seconds 1700000123",
        "buzz_feature_flag_mistyped_total{flag=\"buzz.relay.concurrency.auth\"} 2",
        "buzz_feature_flag_mistyped_total{flag=\"buzz.relay.concurrency.history-reads\"} 0",
        "buzz_concurrency_limit_refresh_panics_total 0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("remembered_age"), "{text}");
}

#[test]
fn the_ready_gauge_is_true_before_the_first_refresh() {
    let text = crate::metrics::recorded(|| drop(Refresh::new(Flags::Static, Gates::new(), None)));
    assert!(
        text.contains("buzz_feature_flags_ready{provider=\"static\"} 1"),
        "{text}"
    );
    assert!(
        text.contains("buzz_feature_flags_last_refresh_timestamp_seconds 0"),
        "{text}"
    );
}

#[test]
fn a_panic_is_caught_and_counted_and_the_next_refresh_works() {
    let gates = Gates::new();
    let mut lines = String::new();
    let text = crate::metrics::recorded(|| {
        let flags = environment(&[(AUTH, "7"), (HISTORY, "9")]);
        let mut refresh = Refresh::new(flags, gates.clone(), None);
        gates.panics.store(2, Ordering::SeqCst);
        lines = refreshed(&mut refresh);
        assert_eq!(gates.limit(GateName::HistoryReads), 40);
        // The other gate's limit moves all the same.
        assert_eq!(gates.limit(GateName::Auth), 7);
        refresh.refresh();
        assert!(
            refresh.shown.lock().refreshed_at.is_none(),
            "none has finished"
        );
        refresh.refresh();
        assert_eq!(gates.limit(GateName::HistoryReads), 9);
        assert!(refresh.shown.lock().refreshed_at.is_some());
    });
    assert!(
        lines.contains("the refresh of the limits panicked"),
        "{lines}"
    );
    assert!(
        text.contains("buzz_concurrency_limit_refresh_panics_total 2"),
        "{text}"
    );
}

#[tokio::test]
async fn the_loop_survives_panics_and_skips_missed_ticks() {
    let gates = Gates::new();
    let refresh = Refresh::new(environment(&[(HISTORY, "9")]), gates.clone(), None);
    let period = Duration::from_millis(20);
    gates.panics.store(1, Ordering::SeqCst);
    // The first refresh overruns the next five ticks.
    *gates.pause.lock().unwrap() = period * 5 + period / 2;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(refresh.run(period, async { drop(stopped.await) }));
    let deadline = Instant::now() + Duration::from_secs(20);
    while gates.calls.load(Ordering::SeqCst) < 5 {
        assert!(Instant::now() < deadline, "the loop has ended");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(stop);
    assert!(matches!(running.await.unwrap(), Flags::Environment(_)));
    assert_eq!(gates.limit(GateName::HistoryReads), 9);
    // After the overrun the rest come one period apart, not in a burst: the second tick is at once,
    // the third at most a period later, so from the second to the fifth at least two periods pass.
    let at = gates.at.lock().unwrap();
    assert!(at[4] - at[1] >= period * 2, "{:?}", at[4] - at[1]);
}

#[tokio::test]
async fn launchdarkly_s_caps_follow_stay_and_come_back() {
    let mut fake = Fake::start(&[(AUTH, json!(7)), (HISTORY, json!(12))]);
    let gates = Gates::new();
    let mut refresh = Refresh::new(launchdarkly(&fake, true).await, gates.clone(), None);
    refresh.refresh();
    assert_eq!(
        (
            gates.limit(GateName::Auth),
            gates.limit(GateName::HistoryReads)
        ),
        (7, 12)
    );
    assert_eq!(refresh.shown().source(GateName::Auth), Source::LaunchDarkly);

    fake.set(AUTH, json!(3));
    until(&mut refresh, |_| gates.limit(GateName::Auth) == 3).await;
    fake.refuse();
    for _ in 0..20 {
        refresh.refresh();
        assert_eq!(
            (
                gates.limit(GateName::Auth),
                gates.limit(GateName::HistoryReads)
            ),
            (3, 12)
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    fake.listen();
    fake.set(AUTH, json!("text"));
    until(&mut refresh, |_| gates.limit(GateName::Auth) == 0).await;
    assert_eq!(refresh.shown().source(GateName::Auth), Source::Default);
    // Zero is a value like others: the ceiling, from LaunchDarkly.
    fake.set(HISTORY, json!(0));
    until(&mut refresh, |_| gates.limit(GateName::HistoryReads) == 40).await;
    assert_eq!(
        refresh.shown().source(GateName::HistoryReads),
        Source::LaunchDarkly
    );
}

#[tokio::test]
async fn a_start_during_an_outage_serves_the_ceilings_until_there_are_values() {
    let fake = Fake::start(&[(HISTORY, json!(5))]);
    fake.mode(Mode::Status(401));
    let gates = Gates::new();
    let mut refresh = Refresh::new(launchdarkly(&fake, false).await, gates.clone(), None);
    refresh.refresh();
    assert_eq!(gates.limit(GateName::HistoryReads), 40);
    assert_eq!(
        refresh.shown().source(GateName::HistoryReads),
        Source::Default
    );
    assert!(!refresh.shown.lock().is_ready);
    fake.mode(Mode::Ok);
    until(&mut refresh, |_| gates.limit(GateName::HistoryReads) == 5).await;
    assert!(refresh.shown.lock().is_ready);
}

const SAVED_AT_SECONDS: u64 = 1_700_000_000;

fn seconds_after_saving(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(SAVED_AT_SECONDS + seconds)
}

#[tokio::test]
async fn remembered_caps_bridge_a_start_during_an_outage() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::start(&[(AUTH, json!(7)), (HISTORY, json!(12))]);
    let flags = launchdarkly(&fake, true).await;
    let mut first = Refresh::new(flags, Gates::new(), Some(Remembered::open(folder.path())));
    first.clock = || seconds_after_saving(0);
    let saved = || {
        !std::fs::read_dir(folder.path()).unwrap().any(|file| {
            file.unwrap()
                .file_name()
                .to_string_lossy()
                .ends_with(".next")
        })
    };
    until(&mut first, |_| {
        saved() && std::fs::read_dir(folder.path()).unwrap().count() == 1
    })
    .await;
    drop(first);

    // The next process starts while LaunchDarkly is away.
    fake.mode(Mode::Status(503));
    let gates = Gates::new();
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let flags = launchdarkly(&fake, false).await;
    let mut second = metrics::with_local_recorder(&recorder, || {
        Refresh::new(flags, gates.clone(), Some(Remembered::open(folder.path())))
    });
    let age = |gate| format!("buzz_concurrency_remembered_age_seconds{{gate=\"{gate}\"}}");
    second.clock = || seconds_after_saving(60);
    let lines = refreshed(&mut second);
    assert!(lines.contains("\"source\":\"remembered\""), "{lines}");
    assert_eq!(
        (
            gates.limit(GateName::Auth),
            gates.limit(GateName::HistoryReads)
        ),
        (7, 12)
    );
    assert_eq!(second.shown().source(GateName::Auth), Source::Remembered);
    assert_eq!(
        second.shown().remembered_age(GateName::Auth),
        Some(Duration::from_secs(60))
    );
    let text = recorder.handle().render();
    assert!(text.contains(&format!("{} 60", age("auth"))), "{text}");
    assert!(
        text.contains("buzz_feature_flags_ready{provider=\"launchdarkly\"} 0"),
        "{text}"
    );

    // A day later they no longer apply, without a restart.
    second.clock = || seconds_after_saving(limits::REMEMBERED_AGE_SECONDS_MAX + 1);
    second.refresh();
    assert_eq!(
        (
            gates.limit(GateName::Auth),
            gates.limit(GateName::HistoryReads)
        ),
        (0, 40)
    );
    assert_eq!(second.shown().source(GateName::Auth), Source::Default);
    second.clock = || seconds_after_saving(120);
    second.refresh();
    assert_eq!(gates.limit(GateName::Auth), 7);

    // Any delivered value replaces them, 0 and none included.
    fake.set(AUTH, json!(0));
    fake.mode(Mode::Ok);
    until(&mut second, |refresh| {
        refresh.shown().source(GateName::Auth) == Source::LaunchDarkly
    })
    .await;
    assert_eq!(
        (
            gates.limit(GateName::Auth),
            gates.limit(GateName::HistoryReads)
        ),
        (0, 12)
    );
    assert_eq!(second.shown().remembered_age(GateName::Auth), None);
    let text = recorder.handle().render();
    assert!(text.contains(&format!("{} 0", age("auth"))), "{text}");
    assert!(
        text.contains("buzz_feature_flags_ready{provider=\"launchdarkly\"} 1"),
        "{text}"
    );
}
