//! The relay behind nginx with our example and a certificate of its own: what a client over TLS
//! meets is what it would meet without the proxy, and the relay knows who it is.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};
use rcgen::{Certificate, CertificateParams, KeyPair};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::common::{Author, Client, Launch, Relay, WAIT, now, quiet_address, until};
use crate::program;
use crate::proxies::{NGINX, adapted};

/// The name in the example, which is the relay's.
const NAME: &str = "relay.example.com";

/// A certificate for the relay's name, and its key in PEM.
pub fn certificate() -> (Certificate, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new([NAME.to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    (certificate, key.serialize_pem())
}

/// Writes our example with these ports and this relay, and what nginx needs around it.
pub fn nginx_conf(folder: &Path, relay: SocketAddr, ports: [u16; 2]) -> PathBuf {
    nginx_on(
        folder,
        relay,
        SocketAddr::from(([127, 0, 0, 1], ports[0])),
        ports[1],
    )
    .0
}

fn nginx_on(
    folder: &Path,
    relay: SocketAddr,
    plain: SocketAddr,
    tls_port: u16,
) -> (PathBuf, CertificateDer<'static>) {
    let (certificate, key) = certificate();
    let at = |name: &str| folder.join(name).display().to_string();
    fs::write(at("cert.pem"), certificate.pem()).expect("a file");
    fs::write(at("key.pem"), key).expect("a file");
    let live = "/etc/letsencrypt/live/relay.example.com";
    let tls = SocketAddr::new(plain.ip(), tls_port);
    let site = adapted(
        NGINX,
        &[
            ("listen 80;", &format!("listen {plain};")),
            ("listen 443 ssl;", &format!("listen {tls} ssl;")),
            ("listen [::]:80;", ""),
            ("listen [::]:443 ssl;", ""),
            (&format!("{live}/fullchain.pem"), &at("cert.pem")),
            (&format!("{live}/privkey.pem"), &at("key.pem")),
            ("server 127.0.0.1:3000;", &format!("server {relay};")),
        ],
    );
    fs::write(at("site.conf"), site).expect("a file");
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path {};\n", at(name)))
        .concat();
    let conf = format!(
        "daemon off;\nmaster_process off;\npid {};\nerror_log stderr warn;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n    access_log off;\n{temporary}    include {};\n}}\n",
        at("pid"),
        at("site.conf"),
    );
    let path = folder.join("nginx.conf");
    fs::write(&path, conf).expect("a file");
    (path, certificate.der().clone())
}

/// The options that keep nginx within a folder.
pub fn nginx_args(folder: &Path, conf: &Path) -> [std::ffi::OsString; 6] {
    let word = |word: &str| word.into();
    [
        word("-e"),
        word("stderr"),
        word("-p"),
        folder.into(),
        word("-c"),
        conf.into(),
    ]
}

/// nginx in front of a relay. It ends when this is dropped.
struct Proxy {
    child: Child,
    plain: SocketAddr,
    tls: SocketAddr,
    connector: TlsConnector,
    _folder: TempDir,
}

impl Proxy {
    fn start(nginx: &Path, relay: &Relay) -> Proxy {
        let folder = tempfile::tempdir().expect("a folder");
        let (plain, tls) = (quiet_address(), quiet_address());
        let (conf, root) = nginx_on(folder.path(), relay.address, plain, tls.port());
        let child = Command::new(nginx)
            .args(nginx_args(folder.path(), &conf))
            .stdin(Stdio::null())
            .spawn()
            .expect("a program that runs");
        let mut roots = RootCertStore::empty();
        roots.add(root).expect("a certificate");
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        until("nginx listens", || std::net::TcpStream::connect(tls).ok());
        Proxy {
            child,
            plain,
            tls,
            connector: TlsConnector::from(Arc::new(config)),
            _folder: folder,
        }
    }

    /// A TLS connection from this address of ours.
    async fn connect(&self, from: IpAddr) -> TlsStream<TcpStream> {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind(SocketAddr::new(from, 0))
            .expect("an address of this machine");
        let stream = socket.connect(self.tls).await.expect("nginx accepts");
        let name = ServerName::try_from(NAME).expect("a name");
        self.connector.connect(name, stream).await.expect("TLS")
    }

    /// A WebSocket from this address.
    async fn upgrade(&self, from: IpAddr) -> Result<WebSocketStream<TlsStream<TcpStream>>, Error> {
        let stream = self.connect(from).await;
        let upgraded = client_async(format!("wss://{NAME}/"), stream);
        timeout(WAIT, upgraded)
            .await
            .expect("an answer in time")
            .map(|(socket, _)| socket)
    }

    /// The head and the body of an answer to a GET.
    async fn get(&self, more: &str) -> String {
        let mut stream = self.connect(loopback(2)).await;
        let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n{more}\r\n");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        let mut answer = Vec::new();
        // An end without a word of TLS is as good.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).expect("UTF-8")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn loopback(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

/// A relay as the examples tell it to be, with quick pings.
fn launch() -> Launch {
    Launch::new()
        .set("BUZZ_RELAY_URL", format!("wss://{NAME}"))
        .set("BUZZ_TRUSTED_PROXIES", "127.0.0.1")
        .set("BUZZ_PING_SECONDS", "1")
}

async fn next_text(socket: &mut WebSocketStream<TlsStream<TcpStream>>) -> Value {
    loop {
        let message = timeout(WAIT, socket.next())
            .await
            .expect("a message in time");
        if let Message::Text(text) = message.expect("a message").expect("a message") {
            return serde_json::from_str(&text).expect("JSON");
        }
    }
}

#[tokio::test]
async fn a_client_over_tls_logs_in_publishes_and_hears() {
    let Some(nginx) = program("a_client_over_tls_logs_in_publishes_and_hears", "nginx") else {
        return;
    };
    let relay = launch().set("BUZZ_REQUIRE_AUTH", "true").start();
    let proxy = Proxy::start(&nginx, &relay);

    let mut socket = proxy.upgrade(loopback(2)).await.expect("a WebSocket");
    // A login names the address of the proxy, which is what the client knows.
    let challenge = next_text(&mut socket).await;
    assert_eq!(challenge[0], "AUTH", "{challenge}");
    let (author, url) = (Author::new(1), format!("wss://{NAME}"));
    let tags = [
        ["relay", &url],
        ["challenge", challenge[1].as_str().expect("a text")],
    ];
    let login = author.json(now(), 22_242, &[&tags[0], &tags[1]], "");
    socket
        .send(Message::text(format!("[\"AUTH\",{login}]")))
        .await
        .expect("it is sent");
    let answer = next_text(&mut socket).await;
    assert_eq!(
        (&answer[0], &answer[2]),
        (&json!("OK"), &json!(true)),
        "{answer}"
    );

    let mut client = Client::over(socket);
    assert_eq!(client.req("live", "{\"kinds\":[1]}").await, [""; 0]);
    // Larger than a proxy's buffers.
    let note = author.json::<&str>(now(), 1, &[], &"tls ".repeat(25_000));
    client.send(format!("[\"EVENT\",{note}]")).await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(
            client.message().await[0]
                .as_str()
                .expect("a label")
                .to_owned(),
        );
    }
    seen.sort();
    assert_eq!(seen, ["EVENT", "OK"]);
    // The relay's pings come through, and our answers: three unanswered would end it. This client
    // answers when it reads.
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        client.expect_silence().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    let info = proxy.get("Accept: application/nostr+json\r\n").await;
    assert!(
        info.starts_with("HTTP/1.1 200") && info.contains("supported_nips"),
        "{info}"
    );
    let mut plain = crate::common::Raw::connect(proxy.plain);
    plain.send(format!(
        "GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n"
    ));
    let answer = plain.answer_head();
    assert_eq!(answer.status, 301);
    assert!(
        answer.head.contains(&format!("https://{NAME}/")),
        "{answer:?}"
    );
}

#[tokio::test]
async fn the_relay_knows_who_stands_behind_the_proxy() {
    let Some(nginx) = program("the_relay_knows_who_stands_behind_the_proxy", "nginx") else {
        return;
    };
    let launch = launch().set("BUZZ_MAX_CONNECTIONS_PER_ADDRESS", "1");
    let relay = launch.start();
    let proxy = Proxy::start(&nginx, &relay);
    let first = proxy.upgrade(loopback(2)).await.expect("a WebSocket");
    let Err(Error::Http(refusal)) = proxy.upgrade(loopback(2)).await else {
        panic!("two of one address");
    };
    assert_eq!(refusal.status(), 429);
    assert!(refusal.headers().contains_key("retry-after"), "{refusal:?}");
    proxy.upgrade(loopback(3)).await.expect("another address");
    drop(first);
}

#[tokio::test]
async fn a_restart_is_told_through_the_proxy() {
    let Some(nginx) = program("a_restart_is_told_through_the_proxy", "nginx") else {
        return;
    };
    let mut relay = launch().set("BUZZ_DRAIN_GRACE_MS", "3000").start();
    let proxy = Proxy::start(&nginx, &relay);
    let mut socket = proxy.upgrade(loopback(2)).await.expect("a WebSocket");
    relay.signal(Signal::TERM);
    until("it drains", || {
        (relay.status()["lifecycle"] == "draining").then_some(())
    });
    let Err(Error::Http(refusal)) = proxy.upgrade(loopback(2)).await else {
        panic!("a WebSocket of a relay that drains");
    };
    assert_eq!(refusal.status(), 503);
    assert!(refusal.headers().contains_key("retry-after"), "{refusal:?}");

    let close = timeout(WAIT, async {
        loop {
            match socket.next().await.expect("a close").expect("a close") {
                Message::Close(close) => return close,
                _ => continue,
            }
        }
    });
    let close = close.await.expect("a close in time").expect("a code");
    assert_eq!(
        (u16::from(close.code), close.reason.as_str()),
        (1012, "relay restarting")
    );
    // Our answer to it goes with the next look.
    let _ = timeout(WAIT, socket.next()).await;
    relay
        .wait_exit(WAIT)
        .expect(0, &["every connection has ended"]);
}
