use super::*;
use crate::control::logs::capture;
use serde_json::{Value, json};
use tracing::level_filters::LevelFilter;

use crate::flags::fake::{Fake, Mode};

const KEY: &str = "sdk-hush-0123456789";
const HISTORY: &str = key_of(GateName::HistoryReads);
const AUTH: &str = key_of(GateName::Auth);

fn periods() -> Periods {
    let ms = Duration::from_millis;
    Periods {
        start: ms(3_000),
        rebuild: ms(100),
        reconnect: ms(20),
        connect: ms(2_000),
        answer: ms(2_000),
        silence: ms(30_000),
        stall: ms(60_000),
        close: ms(2_000),
    }
}

async fn start(fake: &Fake, periods: Periods) -> LaunchDarkly {
    let url = Secret::new(fake.url());
    LaunchDarkly::start(&Secret::new(KEY), Some(&url), periods).await
}

/// Refreshes, as the control thread does, until the flag reads so.
async fn until(provider: &mut LaunchDarkly, gate: GateName, reading: Reading) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while provider.read(gate) != reading {
        assert!(
            Instant::now() < deadline,
            "{gate:?} never was {reading:?}: {provider:?}"
        );
        provider.tend();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn auth(value: Value) -> Fake {
    Fake::start(&[(AUTH, value)])
}

#[tokio::test]
async fn values_are_there_at_start_and_patches_follow() {
    let fake = Fake::start(&[(AUTH, json!(7)), (HISTORY, json!(12))]);
    let mut provider = start(&fake, periods()).await;
    assert!(provider.is_ready());
    assert_eq!(provider.read(GateName::Auth), Reading::Value(7));
    assert_eq!(provider.read(GateName::HistoryReads), Reading::Value(12));
    fake.set(AUTH, json!(3));
    until(&mut provider, GateName::Auth, Reading::Value(3)).await;
    let all = fake.requests();
    assert_eq!(all[0].path, "/all");
    assert_eq!(all[0].authorization, KEY);
    provider.close().await;
    fake.wait_for("/bulk", 1);
}

#[tokio::test]
async fn only_integers_are_values() {
    let fake = auth(json!(1));
    let mut provider = start(&fake, periods()).await;
    let rows = [
        (json!(2.5), Reading::Mistyped),
        (json!(4), Reading::Value(4)),
        (json!("5"), Reading::Mistyped),
        (json!(6.0), Reading::Value(6)),
        (json!(true), Reading::Mistyped),
        (json!(-7), Reading::Value(-7)),
        (json!(1e300), Reading::Mistyped),
        (json!(0), Reading::Value(0)),
        (json!({"cap": 9}), Reading::Mistyped),
        (json!(9_007_199_254_740_992_i64), Reading::Value(1 << 53)),
        (json!(9_007_199_254_740_994_i64), Reading::Mistyped),
    ];
    for (value, reading) in rows {
        fake.set(AUTH, value);
        until(&mut provider, GateName::Auth, reading).await;
    }
    // A flag that LaunchDarkly does not know.
    assert_eq!(provider.read(GateName::HistoryReads), Reading::Absent);
}

#[tokio::test]
async fn a_rejected_key_is_tried_again_and_a_later_success_counts() {
    for status in [401, 403] {
        let fake = auth(json!(5));
        fake.mode(Mode::Status(status));
        let begin = Instant::now();
        let mut provider = start(&fake, periods()).await;
        assert!(
            begin.elapsed() < Duration::from_secs(2),
            "a rejection is not waited for"
        );
        assert!(!provider.is_ready());
        assert_eq!(provider.read(GateName::Auth), Reading::NotDelivered);
        // The SDK has given up; each further request is a new client's.
        until_true("three clients", || {
            provider.tend();
            fake.requests()
                .iter()
                .filter(|request| request.path == "/all")
                .count()
                >= 3
        })
        .await;
        fake.mode(Mode::Ok);
        until(&mut provider, GateName::Auth, Reading::Value(5)).await;
    }
}

#[tokio::test]
async fn a_key_rejected_later_keeps_the_last_values_and_is_tried_again() {
    let fake = auth(json!(5));
    let mut provider = start(&fake, periods()).await;
    assert_eq!(provider.read(GateName::Auth), Reading::Value(5));
    fake.mode(Mode::Status(401));
    fake.lose_streams();
    until_true("three clients", || {
        provider.tend();
        assert_eq!(provider.read(GateName::Auth), Reading::Value(5));
        assert!(provider.is_ready());
        fake.requests()
            .iter()
            .filter(|request| request.path == "/all")
            .count()
            >= 4
    })
    .await;
    fake.set(AUTH, json!(2));
    assert_eq!(provider.read(GateName::Auth), Reading::Value(5));
    fake.mode(Mode::Ok);
    until(&mut provider, GateName::Auth, Reading::Value(2)).await;
    // The new client's stream lives.
    fake.set(AUTH, json!(4));
    until(&mut provider, GateName::Auth, Reading::Value(4)).await;
}

#[tokio::test]
async fn an_unreachable_service_does_not_fail_the_start_and_is_found_later() {
    let mut fake = auth(json!(5));
    fake.refuse();
    let mut short = periods();
    short.start = Duration::from_millis(50);
    let mut provider = start(&fake, short).await;
    assert!(!provider.is_ready());
    assert_eq!(provider.read(GateName::Auth), Reading::NotDelivered);
    fake.listen();
    until(&mut provider, GateName::Auth, Reading::Value(5)).await;
}

#[tokio::test]
async fn a_hung_service_holds_the_start_for_its_time_only_and_is_asked_again() {
    let fake = auth(json!(5));
    fake.mode(Mode::Hung);
    let mut short = periods();
    (short.start, short.answer) = (Duration::from_millis(100), Duration::from_millis(150));
    let begin = Instant::now();
    let mut provider = start(&fake, short).await;
    assert!(begin.elapsed() >= short.start && begin.elapsed() < Duration::from_secs(2));
    assert!(!provider.is_ready());
    // Our own time limit ends the request; the SDK alone would wait for ever.
    fake.wait_for_async("/all", 2).await;
    fake.mode(Mode::Ok);
    until(&mut provider, GateName::Auth, Reading::Value(5)).await;
}

#[tokio::test]
async fn a_slow_service_delivers_after_the_start() {
    let fake = auth(json!(5));
    fake.mode(Mode::Slow(Duration::from_millis(200)));
    let mut short = periods();
    short.start = Duration::from_millis(20);
    let mut provider = start(&fake, short).await;
    assert!(!provider.is_ready());
    until(&mut provider, GateName::Auth, Reading::Value(5)).await;
    assert!(provider.is_ready());
}

#[tokio::test]
async fn a_lost_stream_keeps_the_values_and_is_found_again() {
    let mut fake = auth(json!(5));
    let mut provider = start(&fake, periods()).await;
    fake.refuse();
    fake.set(AUTH, json!(6));
    for _ in 0..20 {
        provider.tend();
        assert_eq!(provider.read(GateName::Auth), Reading::Value(5));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    fake.listen();
    until(&mut provider, GateName::Auth, Reading::Value(6)).await;
}

#[tokio::test]
async fn a_silent_stream_is_given_up_and_opened_again() {
    let fake = auth(json!(5));
    let mut short = periods();
    short.silence = Duration::from_millis(150);
    let mut provider = start(&fake, short).await;
    fake.fall_silent();
    fake.set(AUTH, json!(6));
    assert_eq!(provider.read(GateName::Auth), Reading::Value(5));
    // The silence ends the stream, and the next one begins with what holds now.
    until(&mut provider, GateName::Auth, Reading::Value(6)).await;
}

#[tokio::test]
async fn a_garbled_first_delivery_is_asked_for_again() {
    let fake = auth(json!(5));
    fake.mode(Mode::Garbled);
    let mut provider = start(&fake, periods()).await;
    assert!(!provider.is_ready());
    fake.mode(Mode::Ok);
    until(&mut provider, GateName::Auth, Reading::Value(5)).await;
}

#[tokio::test]
async fn a_stream_task_without_a_sign_of_life_is_replaced() {
    let fake = auth(json!(5));
    let mut short = periods();
    short.stall = Duration::from_millis(100);
    let mut provider = start(&fake, short).await;
    fake.fall_silent();
    fake.set(AUTH, json!(6));
    until(&mut provider, GateName::Auth, Reading::Value(6)).await;
    assert!(
        fake.requests()
            .iter()
            .filter(|request| request.path == "/all")
            .count()
            >= 2
    );
}

#[tokio::test]
async fn the_last_flush_is_waited_for_only_so_long() {
    let fake = auth(json!(5));
    fake.hang_bulk();
    let mut short = periods();
    short.close = Duration::from_millis(100);
    let mut provider = start(&fake, short).await;
    provider.read(GateName::Auth); // something to flush
    let begin = Instant::now();
    provider.close().await;
    assert!(begin.elapsed() >= short.close && begin.elapsed() < Duration::from_secs(1));
    fake.wait_for("/bulk", 1);
}

#[tokio::test]
async fn a_client_over_tls_can_be_made() {
    // Nothing listens there; what is tested is that certificates and cryptography are found.
    let url = Secret::new("https://127.0.0.1:9");
    let mut short = periods();
    short.start = Duration::from_millis(100);
    let provider = LaunchDarkly::start(&Secret::new(KEY), Some(&url), short).await;
    assert!(provider.client.is_some() && !provider.is_ready());
}

#[tokio::test]
async fn neither_key_nor_url_is_ever_shown() {
    let (captured, _guard) = capture::logs(LevelFilter::TRACE);
    let mut fake = auth(json!(5));
    let address = fake.url();
    let mut provider = start(&fake, periods()).await;
    let mut shown = format!("{provider:?}{:?}", provider.stream);
    fake.set(AUTH, json!("text"));
    until(&mut provider, GateName::Auth, Reading::Mistyped).await;
    fake.mode(Mode::Status(503));
    fake.lose_streams();
    fake.wait_for_async("/all", 3).await;
    fake.mode(Mode::Status(401));
    until_true("rejected", || captured.text().contains("rejects the key")).await;
    let asked = || {
        fake.requests()
            .iter()
            .filter(|request| request.path == "/all")
            .count()
    };
    let before = asked();
    until_true("rejected twice more", || {
        provider.tend();
        asked() >= before + 2
    })
    .await;
    fake.refuse();
    until_true("unreachable", || {
        provider.tend();
        captured.text().contains("cannot be reached")
    })
    .await;
    fake.listen();
    fake.mode(Mode::Ok);
    fake.set(AUTH, json!(8));
    until(&mut provider, GateName::Auth, Reading::Value(8)).await;
    fake.hang_bulk();
    shown.push_str(&format!("{provider:?}"));
    provider.close().await;

    shown.push_str(&captured.text());
    for link in [
        "is connected",
        "stream is lost",
        "answers with an error",
        "connected again",
    ] {
        assert!(shown.contains(link), "{link}: {shown}");
    }
    let port = address.rsplit_once(':').unwrap().1;
    for secret in ["hush", "127.0.0.1", port] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
    // An unchanged link is one line, however often it was tried.
    assert_eq!(shown.matches("rejects the key").count(), 1, "{shown}");
}

impl Fake {
    /// [`Fake::wait_for`] beside the SDK, whose tasks run on the same thread.
    async fn wait_for_async(&self, path: &str, count: usize) {
        let asked = || {
            self.requests()
                .iter()
                .filter(|request| request.path == path)
                .count()
        };
        until_true(path, || asked() >= count).await;
    }
}
