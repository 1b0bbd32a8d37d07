//! epoll where io_uring is refused, and what is said about it.

use crate::common::{Author, Client, Confine, Launch, Relay, now, skip};

/// A short session.
async fn serves(relay: &Relay) {
    let author = Author::new(1);
    let (first, second) = (
        author.json::<&str>(now() - 1, 1, &[], "first"),
        author.json::<&str>(now(), 1, &[], "second"),
    );
    let mut reader = Client::connect(relay.address).await;
    let mut writer = Client::connect(relay.address).await;
    writer.publish_all([&first]).await;
    assert_eq!(reader.req("all", "{}").await, [&*first]);
    writer.publish_all([&second]).await;
    assert_eq!(reader.text().await, format!("[\"EVENT\",\"all\",{second}]"));
    assert_eq!(writer.fetch("{}").await, [second, first]);
}

#[tokio::test]
async fn epoll_serves_when_asked_for() {
    let relay = Launch::new().set("BUZZ_IO_DRIVER", "epoll").start();
    assert_eq!(relay.line["driver"], "epoll", "{}", relay.line);
    serves(&relay).await;
    relay.stop().expect(0, &[]);
}

#[tokio::test]
async fn epoll_serves_where_io_uring_is_refused_and_the_line_says_why() {
    // A filter may refuse to set a ring up, or only to enter it.
    for confine in [Confine::IoUring, Confine::EnterRing] {
        let relay = Launch::new().confine(confine).start();
        assert_eq!(relay.line["driver"], "epoll", "{}", relay.line);
        let line = relay.line.to_string();
        for word in ["io_uring", "seccomp", "Operation not permitted"] {
            assert!(line.contains(word), "{word} is not in {line}");
        }
        serves(&relay).await;
        relay.stop().expect(0, &[]);
    }
}

#[test]
fn io_uring_alone_fails_where_it_is_refused_and_says_what_to_do() {
    let launch = Launch::new().set("BUZZ_IO_DRIVER", "io_uring");
    let exit = launch.confine(Confine::IoUring).run();
    assert_ne!(exit.code(), 0);
    for word in ["BUZZ_IO_DRIVER", "Operation not permitted", "seccomp"] {
        assert!(exit.stderr.contains(word), "{word} is not in {exit:#?}");
    }
}

#[tokio::test]
async fn io_uring_serves_where_it_is_allowed() {
    let auto = Launch::new().start();
    if auto.line["driver"] != "io_uring" {
        return skip(
            "io_uring_serves_where_it_is_allowed",
            &auto.line.to_string(),
        );
    }
    serves(&auto).await;
    let relay = Launch::new().set("BUZZ_IO_DRIVER", "io_uring").start();
    assert_eq!(relay.line["driver"], "io_uring", "{}", relay.line);
    serves(&relay).await;
    relay.stop().expect(0, &[]);
}
