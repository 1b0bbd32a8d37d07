//! A real Prometheus with our configuration and rules, on a real relay: every query of the dashboard
//! is answered, and those that show what is always there are not empty.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Author, Client, Launch, Raw, Relay, now, quiet_address, until};
use crate::{path, program, proxies, run, series};

const CONFIG: &str = "deploy/docker/prometheus/prometheus.yml";

/// It ends when this is dropped.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    fn start(program: &Path, relay: &Relay) -> Prometheus {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("prometheus.yml");
        fs::write(&config, adapted(relay.metrics)).expect("a file");
        let address = quiet_address();
        let log = fs::File::create(folder.path().join("log")).expect("a file");
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("a program that runs");
        Prometheus {
            child,
            address,
            _folder: folder,
        }
    }

    /// What it answers to a query, if it answers at all.
    fn ask(&self, path: &str) -> Option<Value> {
        std::net::TcpStream::connect(self.address).ok()?;
        let mut raw = Raw::connect(self.address);
        // Without pieces, which this reader does not know.
        raw.send(format!("GET {path} HTTP/1.0\r\n\r\n"));
        let answer = raw.answer();
        serde_json::from_slice(&answer.body).ok()
    }

    fn query(&self, text: &str) -> Option<Vec<Value>> {
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.ask(&format!("/api/v1/query?query={encoded}"))?;
        assert_eq!(answer["status"], "success", "{text}: {answer}");
        Some(answer["data"]["result"].as_array()?.clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Our configuration with this relay, our rules where they lie, and a quick look.
fn adapted(relay: SocketAddr) -> String {
    let rules = path("deploy/prometheus/alerts.yml").display().to_string();
    let relay = relay.to_string();
    let words = [
        ("relay:9102", relay.as_str()),
        ("/etc/prometheus/alerts.yml", &rules),
        ("scrape_interval: 5s", "scrape_interval: 500ms"),
    ];
    proxies::adapted(CONFIG, &words)
}

#[tokio::test]
async fn every_panel_is_answered() {
    const TEST: &str = "every_panel_is_answered";
    let (Some(prometheus), Some(promtool)) =
        (program(TEST, "prometheus"), program(TEST, "promtool"))
    else {
        return;
    };
    let relay = Launch::new().start();
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("prometheus.yml");
    fs::write(&config, adapted(relay.metrics)).expect("a file");
    run(Command::new(promtool).args(["check", "config"]).arg(config));

    let prometheus = Prometheus::start(&prometheus, &relay);
    // Something to see, before and between looks.
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let looks = "min(count_over_time(buzz_events_delivered_total[1m]))";
    let mut number = 0;
    loop {
        let note = author.json::<&str>(now(), 1, &[], &format!("note {number}"));
        client.publish_all([&note]).await;
        number += 1;
        let seen = until("Prometheus answers", || prometheus.query(looks));
        let seen = seen.first().map(|one| one["value"][1].to_string());
        if seen.is_some_and(|seen| {
            seen.trim_matches('"')
                .parse::<f64>()
                .is_ok_and(|n| n >= 3.0)
        }) {
            break;
        }
        assert!(number < 2_000, "no look at the relay in sight");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for (place, text) in series::dashboard_queries() {
        let result = prometheus.query(&text).expect("an answer");
        // What is shown only when there is some, or is away unless it applies.
        let may_be_empty =
            text.contains("> 0") || text.contains("remembered") || text.contains("* 1000 >");
        assert!(
            may_be_empty || !result.is_empty(),
            "{place}: nothing for {text}"
        );
    }
    let rules = prometheus
        .ask("/api/v1/rules?type=alert")
        .expect("an answer");
    let groups = rules["data"]["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().expect("rules"))
        .collect();
    assert!(rules.len() > 15, "{}", rules.len());
    for rule in rules {
        let wrong = rule["health"] == "err" || rule["state"] == "firing";
        assert!(!wrong, "on a relay on which nothing is wrong: {rule}");
    }
}
