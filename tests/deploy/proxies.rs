//! The examples for what stands in front: each proxy takes its own, and each holds what a WebSocket
//! and the relay's bounds by address need.

use std::fs;
use std::path::Path;
use std::process::Command;

use buzz_uring::limits;

use crate::{file, program, run, wss};

pub const NGINX: &str = "deploy/nginx/buzz-uring.conf";
const CADDY: &str = "deploy/caddy/Caddyfile";
const HAPROXY: &str = "deploy/haproxy/haproxy.cfg";

/// A file of `deploy/` with other words in the place of some of its own, which must be in it.
pub fn adapted(name: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(file(name), |text, (old, new)| {
        assert!(text.contains(old), "{old:?} is not in {name}");
        text.replace(old, new)
    })
}

fn write(folder: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path
}

#[test]
fn nginx_takes_its_example() {
    let Some(nginx) = program("nginx_takes_its_example", "nginx") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let address = "127.0.0.1:3000".parse().expect("an address");
    let conf = wss::nginx_conf(folder.path(), address, [1080, 1443]);
    run(Command::new(nginx)
        .arg("-t")
        .args(wss::nginx_args(folder.path(), &conf)));
}

#[test]
fn haproxy_takes_its_example() {
    let Some(haproxy) = program("haproxy_takes_its_example", "haproxy") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (certificate, key) = wss::certificate();
    let pem = write(folder.path(), "relay.pem", &(certificate.pem() + &key));
    let words = [("/etc/haproxy/certs/relay.pem", pem.to_str().expect("UTF-8"))];
    let conf = write(folder.path(), "haproxy.cfg", &adapted(HAPROXY, &words));
    let said = run(Command::new(haproxy).arg("-c").arg("-f").arg(conf));
    assert!(!said.contains("WARNING"), "{said}");
}

#[test]
fn caddy_takes_its_example() {
    let Some(caddy) = program("caddy_takes_its_example", "caddy") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let conf = write(folder.path(), "Caddyfile", &file(CADDY));
    let said = run(Command::new(caddy)
        .args(["validate", "--adapter", "caddyfile", "--config"])
        .arg(conf)
        .env("HOME", folder.path())
        .env("XDG_DATA_HOME", folder.path())
        .env("XDG_CONFIG_HOME", folder.path()));
    assert!(said.contains("Valid configuration"), "{said}");
    assert!(
        !said.contains("\"warn\"") && !said.contains("not formatted"),
        "{said}"
    );
}

#[test]
fn a_silent_connection_is_ended_by_the_relay_and_not_by_a_proxy() {
    // Longer than the relay waits for the answers to its pings.
    let silence = limits::PING_SECONDS_DEFAULT * u64::from(limits::PINGS_UNANSWERED_MAX);
    let seconds = |text: &str, name: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        let value = line
            .unwrap_or_else(|| panic!("no {name}"))
            .split_whitespace()
            .last();
        let digits = value.expect("a value").trim_end_matches(['s', ';']);
        digits.parse::<u64>().expect("seconds")
    };
    let nginx = file(NGINX);
    assert!(seconds(&nginx, "proxy_read_timeout") > silence);
    assert!(seconds(&nginx, "proxy_send_timeout") > silence);
    assert!(seconds(&file(HAPROXY), "timeout tunnel") > silence);
    // Caddy has none unless one is set.
    let caddy = file(CADDY);
    for name in ["read_timeout", "write_timeout", "stream_timeout"] {
        assert!(!caddy.contains(name), "{name}");
    }
}
