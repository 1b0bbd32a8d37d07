//! Upgrades that go wrong, at every step. Whoever serves goes on.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use buzz_uring::secret::Secret;
use buzz_uring::store::postgres::testing::{Cluster, Proxy};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;

use crate::common::database::{cluster, database, on};
use crate::common::raw::{self, Raw};
use crate::common::relay::Process;
use crate::common::{Launch, Relay, WAIT, quiet_address, until};
use crate::{has_left, serves, taker};

/// A running relay, and a taker whose database is away until its proxy is opened.
struct Scene {
    launch: Launch,
    old: Relay,
    proxy: Proxy,
    late: Launch,
}

impl Scene {
    fn new(cluster: &'static Cluster) -> Scene {
        let url = database(cluster);
        let launch = on(&url);
        let old = launch.start();
        let proxy = Proxy::to(cluster.port());
        proxy.close();
        let by_proxy: Secret = cluster.url_by(proxy.port(), &url);
        let late = taker(&launch).set("DATABASE_URL", by_proxy.expose());
        Scene {
            launch,
            old,
            proxy,
            late,
        }
    }

    /// A taker that has the sockets and waits for its database.
    fn waiting(&self) -> Process {
        let process = self.late.spawn();
        until("it has the sockets", || {
            let output = process.output();
            output.contains("took the listening sockets").then_some(())
        });
        process
    }

    /// That nothing has changed for the old one.
    async fn goes_on(&self, author: u64) {
        until("no hand-over is under way", || {
            self.old.status()["hand_over"]["to_process"]
                .is_null()
                .then_some(())
        });
        assert_eq!(self.old.status()["lifecycle"], "ready");
        for n in 0..8 {
            serves(self.old.address, author + n).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_one_that_is_killed_before_it_serves_changes_nothing() {
    let Some(cluster) = cluster() else { return };
    let scene = Scene::new(cluster);
    let mut new = scene.waiting();
    until("status tells", || {
        scene.old.status()["hand_over"]["to_process"].as_u64()
    });
    // Clients are the old one's meanwhile.
    serves(scene.old.address, 1).await;
    new.kill();
    scene.goes_on(10).await;
    assert!(
        scene
            .old
            .output()
            .contains("did not become ready, this one goes on")
    );
    let next = taker(&scene.launch).start();
    serves(next.address, 20).await;
    has_left(scene.old);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_old_one_is_killed_its_clients_wait_for_the_new_one() {
    let Some(cluster) = cluster() else { return };
    let mut scene = Scene::new(cluster);
    let mut new = scene.waiting();
    scene.old.kill();
    let mut waiting = Raw::connect(scene.old.address);
    waiting.send(raw::upgrade(&[]));
    scene.proxy.open();
    let line = new.wait_ready().expect("it goes on");
    let new = Relay::new(new, line);
    waiting.expect_upgrade();
    serves(new.address, 1).await;
    // The folder is its own, with what is in it.
    let other = scene.launch.clone().set("BUZZ_HEALTH_PORT", 0).run();
    let holder = format!("process {}", new.process_id());
    other.expect(1, &["is using this data folder", &holder]);
    let last = taker(&scene.launch).start();
    has_left(new);
    serves(last.address, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_one_that_is_stopped_in_the_middle_leaves_its_clients_to_the_new_one() {
    let Some(cluster) = cluster() else { return };
    let mut scene = Scene::new(cluster);
    let mut new = scene.waiting();
    scene.old.signal(Signal::TERM);
    let exit = scene.old.wait_exit(WAIT);
    exit.expect(0, &["\"sockets\":\"handed over\""]);
    let mut waiting = Raw::connect(scene.old.address);
    waiting.send(raw::upgrade(&[]));
    scene.proxy.open();
    let line = new.wait_ready().expect("it goes on");
    waiting.expect_upgrade();
    serves(Relay::new(new, line).address, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_one_that_cannot_start_changes_nothing() {
    let Some(cluster) = cluster() else { return };
    let scene = Scene::new(cluster);
    let elsewhere = quiet_address();
    let moved = taker(&scene.launch).set("BUZZ_BIND_ADDR", elsewhere);
    moved
        .run()
        .expect(1, &["BUZZ_BIND_ADDR", "a hand-over moves no address"]);
    scene.goes_on(10).await;
    let unreachable = scene.late.clone().set("BUZZ_DB_WAIT_MS", 300);
    unreachable.run().expect(1, &["could not be reached"]);
    scene.goes_on(20).await;
    let junk = taker(&scene.launch).set("BUZZ_SHARDS", "many");
    junk.run().expect(64, &["BUZZ_SHARDS"]);
    let embedded = taker(&scene.launch).set("BUZZ_STORE", "embedded");
    embedded
        .run()
        .expect(64, &["BUZZ_TAKE_OVER", "one process"]);
    let early = scene.waiting();
    early.signal(Signal::TERM);
    let mut early = early;
    let exit = early.wait_exit(WAIT).expect("its end");
    exit.expect(0, &["stopped while starting"]);
    scene.goes_on(30).await;
    scene.old.stop().expect(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_at_once_one_is_refused() {
    let Some(cluster) = cluster() else { return };
    let scene = Scene::new(cluster);
    let mut first = scene.waiting();
    let second = taker(&scene.launch).run();
    second.expect(1, &["does not hand over", "is taking over already"]);
    scene.proxy.open();
    let line = first.wait_ready().expect("it goes on");
    serves(Relay::new(first, line).address, 1).await;
    has_left(scene.old);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_drains_hands_nothing_over() {
    let Some(cluster) = cluster() else { return };
    let launch = on(&database(cluster)).set("BUZZ_DRAIN_GRACE_MS", 60_000);
    let old = launch.start();
    old.signal(Signal::TERM);
    until("it drains", || {
        (old.status()["lifecycle"] == "draining").then_some(())
    });
    taker(&launch).run().expect(1, &["it is being stopped"]);
    old.signal(Signal::KILL);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_store_has_nothing_to_take_over() {
    let Some(cluster) = cluster() else { return };
    let embedded = Launch::new();
    let old = embedded.start();
    assert!(!old.data_dir().join("hand-over.sock").exists());
    let other = taker(&on(&database(cluster)).folder(old.data_dir()));
    other.run().expect(1, &["is using this data folder"]);
    serves(old.address, 1).await;
}

fn seqpacket() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// Says one word on the socket and gives the answer.
fn say(old: &Relay, word: &str) -> String {
    let socket = seqpacket();
    let path = old.data_dir().join("hand-over.sock");
    let address = SocketAddrUnix::new(&path).expect("an address");
    rustix::net::connect(&socket, &address).expect("a connection");
    let word = [IoSlice::new(word.as_bytes())];
    rustix::io::writev(&socket, &word).expect("a word");
    let mut answer = vec![0; 4_096];
    let length =
        rustix::io::readv(&socket, &mut [IoSliceMut::new(&mut answer)]).expect("an answer");
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_protocol_and_no_protocol_are_refused() {
    let Some(cluster) = cluster() else { return };
    let scene = Scene::new(cluster);
    let hello = r#"{"hello":{"protocol":99,"version":"9.0.0","process":1}}"#;
    let answer = say(&scene.old, hello);
    assert!(answer.contains("speaks hand-over protocol 1"), "{answer}");
    assert!(answer.contains("version 9.0.0 speaks 99"), "{answer}");
    assert!(say(&scene.old, "\"ready\"").contains("refused"));
    assert_eq!(say(&scene.old, "GET / HTTP/1.1"), "");
    scene.goes_on(10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_one_waits_for_an_answer_whatever_interrupts_it() {
    let Some(cluster) = cluster() else { return };
    let launch = on(&database(cluster));
    std::fs::create_dir_all(launch.data_dir()).expect("a folder");
    // In place of an old one that takes its time.
    let listener = seqpacket();
    let path = launch.data_dir().join("hand-over.sock");
    let address = SocketAddrUnix::new(&path).expect("an address");
    rustix::net::bind(&listener, &address).expect("a socket of our own");
    rustix::net::listen(&listener, 1).expect("a socket of our own");
    let mut new = taker(&launch).spawn();
    let stream = rustix::net::accept(&listener).expect("the new one");
    let mut hello = [0; 4_096];
    rustix::net::recv(&stream, &mut hello, RecvFlags::empty()).expect("its first word");
    let mut told = 0;
    until("it was told often", || {
        new.signal(Signal::HUP);
        told += 1;
        (told == 50).then_some(())
    });
    let word = br#"{"refused":{"why":"not today"}}"#;
    rustix::net::send(&stream, word, SendFlags::empty()).expect("it waits");
    let exit = new.wait_exit(WAIT).expect("its end");
    exit.expect(1, &["the running relay does not hand over: not today"]);
}
