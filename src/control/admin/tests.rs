use super::*;
use serde_json::json;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Default)]
struct Fake {
    fault: Mutex<Option<String>>,
}

impl Status for Fake {
    fn alive(&self) -> Result<(), String> {
        self.fault.lock().unwrap().clone().map_or(Ok(()), Err)
    }
    fn describe(&self, status: &mut Map<String, Value>) {
        status.insert("shards".to_owned(), json!(2));
    }
    fn before_scrape(&self) {
        crate::metrics::series::FLAGS_LAST_REFRESH
            .gauge(&[])
            .set(7.0);
    }
}

struct Served {
    health: SocketAddr,
    metrics: SocketAddr,
    lifecycle: Arc<Lifecycle>,
    status: Arc<Fake>,
    _running: Running,
}

fn serve() -> Served {
    serve_for(Duration::from_secs(60))
}

fn serve_for(life: Duration) -> Served {
    let any = "127.0.0.1:0".parse().unwrap();
    let admin = Admin::bind(any, any).unwrap();
    let (health, metrics) = (admin.health_address(), admin.metrics_address());
    let (lifecycle, status) = (Lifecycle::new(), Arc::new(Fake::default()));
    let sources = Sources {
        lifecycle: Arc::clone(&lifecycle),
        metrics: Metrics::detached(),
        status: Arc::clone(&status) as Arc<dyn Status>,
        started: Instant::now(),
    };
    let _running = admin.serve_for(life, sources, changes()).unwrap();
    Served {
        health,
        metrics,
        lifecycle,
        status,
        _running,
    }
}

fn changes() -> Router {
    Router::new().route("/change", axum::routing::post(|| async { "changed" }))
}

#[tokio::test]
async fn changes_are_for_scripts_of_this_machine() {
    let served = serve();
    let post = |headers: &str| {
        let request = format!("POST /change HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        say(served.health, request)
    };
    let answer = post("").await;
    assert!(is(&answer, 200, "changed"), "{answer}");
    for header in [
        "Origin: http://somewhere.example\r\n",
        "X-Forwarded-For: 192.0.2.1\r\n",
        "Forwarded: for=192.0.2.1\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        let answer = post(header).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    let answer = ask(served.health, "/change").await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    let answer = say(
        served.metrics,
        "POST /change HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
    );
    assert!(answer.await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn changes_are_not_for_other_machines() {
    // The machine's own address stands for another's: it is not the loopback address.
    let Some(own) = own_address() else { return };
    let any = "127.0.0.1:0".parse().unwrap();
    let admin = Admin::bind(SocketAddr::new(own, 0), any).unwrap();
    let health = admin.health_address();
    let sources = Sources {
        lifecycle: Lifecycle::new(),
        metrics: Metrics::detached(),
        status: Arc::new(Fake::default()),
        started: Instant::now(),
    };
    let _running = admin.serve(sources, changes()).unwrap();
    let answer = say(
        health,
        "POST /change HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

/// The address that this machine would speak to others from, if it has one.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Connecting a datagram socket sends nothing.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// The whole answer, read until the server closes.
async fn ask(address: SocketAddr, path: &str) -> String {
    say(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
}

async fn say(address: SocketAddr, request: String) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn is(answer: &str, code: u16, body: &str) -> bool {
    answer.starts_with(&format!("HTTP/1.1 {code} ")) && answer.ends_with(&format!("\r\n\r\n{body}"))
}

#[tokio::test]
async fn readiness_follows_the_life_of_the_process() {
    let served = serve();
    let answer = ask(served.health, "/_readiness").await;
    assert!(is(&answer, 503, r#"{"status":"starting"}"#), "{answer}");
    served.lifecycle.advance(Stage::Ready);
    let answer = ask(served.health, "/_readiness").await;
    assert!(is(&answer, 200, r#"{"status":"ready"}"#), "{answer}");
    for stage in [Stage::Draining, Stage::Closing, Stage::Stopped] {
        served.lifecycle.advance(stage);
        let answer = ask(served.health, "/_readiness").await;
        assert!(
            is(&answer, 503, r#"{"status":"shutting_down"}"#),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn liveness_follows_the_shards() {
    let served = serve();
    for path in ["/_liveness", "/health"] {
        assert!(is(&ask(served.health, path).await, 200, "ok"));
    }
    *served.status.fault.lock().unwrap() = Some("shard 1 stands still".to_owned());
    let answer = ask(served.health, "/_liveness").await;
    assert!(is(&answer, 503, "shard 1 stands still"), "{answer}");
}

#[tokio::test]
async fn status_is_one_object() {
    let served = serve();
    let answer = ask(served.health, "/_status").await;
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let status: Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["commit"], COMMIT);
    assert_eq!(status["lifecycle"], "starting");
    assert_eq!(status["shards"], 2);
    assert!(status["uptime_seconds"].is_u64());
}

#[tokio::test]
async fn metrics_are_on_their_own_port_only() {
    let served = serve();
    let answer = ask(served.metrics, "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(
        answer.contains("content-type: text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(
        answer.contains("buzz_auth_attempts_total{method=\"nip42\"} 0"),
        "{answer}"
    );
    assert!(
        ask(served.health, "/metrics")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
    assert!(
        ask(served.metrics, "/_status")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
    let page = ask(served.health, "/").await;
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    assert!(page.contains("content-type: text/html"), "{page}");
    assert!(ask(served.metrics, "/").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn a_silent_client_is_cut_and_makes_room() {
    let life = Duration::from_millis(100);
    let served = serve_for(life);
    let begin = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..limits::ADMIN_CONNECTIONS_MAX {
        silent.push(TcpStream::connect(served.health).await.unwrap());
    }
    // Its connection is accepted once the time of one of those is over, and not before.
    assert!(is(&ask(served.health, "/_liveness").await, 200, "ok"));
    assert!(begin.elapsed() >= life, "{:?}", begin.elapsed());
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_taken_port_names_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let error = Admin::bind(any, taken.local_addr().unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("BUZZ_METRICS_PORT: cannot listen on 127.0.0.1:"),
        "{error}"
    );
}
