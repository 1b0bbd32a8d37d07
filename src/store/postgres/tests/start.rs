//! Opening: servers that are not there yet, schemas, pools, certificates.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process_group};

use super::*;
use crate::store::conformance::{WAIT, note, put_one, word};
use crate::store::postgres::testing::Proxy;

fn refused(options: PostgresOptions) -> OpenError {
    wait(Postgres::open(options)).expect_err("must not open")
}

#[test]
fn a_server_that_is_not_there_is_waited_for() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let proxy = Proxy::to(cluster.port());
    proxy.close();
    let by_proxy = options(&cluster.url_by(proxy.port(), &url));
    let hasty = PostgresOptions {
        wait: Duration::ZERO,
        ..by_proxy.clone()
    };
    let error = refused(hasty);
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("DATABASE_URL"), "{error}");
    let opener = thread::spawn(move || wait(Postgres::open(by_proxy)).map(drop));
    thread::sleep(Duration::from_millis(300));
    assert!(!opener.is_finished());
    proxy.open();
    opener.join().expect("no panic").expect("opens");
}

#[test]
fn whoever_stops_waiting_ends_it() {
    let Some(cluster) = cluster() else { return };
    let proxy = Proxy::to(cluster.port());
    proxy.close();
    let url = cluster.url_by(proxy.port(), &cluster.database());
    let opening = Postgres::open(options(&url));
    let opened = wait(async { tokio::time::timeout(Duration::from_millis(100), opening).await });
    assert!(opened.is_err());
}

#[test]
fn many_start_at_once_on_an_empty_database() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    assert_eq!(wait(check(&url)).expect("a look"), [1]);
    let open = |_| {
        let options = options(&url);
        thread::spawn(move || wait(Postgres::open(options)).map(drop))
    };
    let threads: Vec<_> = (0..8).map(open).collect();
    for thread in threads {
        thread.join().expect("no panic").expect("opens");
    }
    assert!(wait(check(&url)).expect("a look").is_empty());
    assert!(wait(migrate(&url)).expect("nothing to do").is_empty());
    let applied = "SELECT count(*) FROM buzz.migrations";
    assert_eq!(
        cluster.number(&name(&url), applied),
        MIGRATIONS.len() as i64
    );
}

#[test]
fn a_schema_that_is_not_ours_is_left_alone() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    assert_eq!(wait(migrate(&url)).expect("applies"), [1]);
    let database = name(&url);
    cluster.run(&database, "UPDATE buzz.migrations SET checksum = 'x'");
    let error = refused(options(&url));
    assert!(
        matches!(error, OpenError::Schema(SchemaError::Differs(1))),
        "{error}"
    );
    let later = "DELETE FROM buzz.migrations; \
                 INSERT INTO buzz.migrations (version, name, checksum) VALUES (99, 'x', 'x')";
    cluster.run(&database, later);
    let error = refused(options(&url));
    let newer = SchemaError::Newer {
        found: 99,
        known: 1,
    };
    assert!(
        matches!(&error, OpenError::Schema(found) if *found == newer),
        "{error}"
    );
}

#[test]
fn a_migration_that_fails_leaves_nothing() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let database = name(&url);
    // Something is in its way.
    cluster.run(
        &database,
        "CREATE SCHEMA buzz; CREATE TABLE buzz.tags (x int)",
    );
    let error = wait(migrate(&url)).expect_err("must fail");
    let failed = matches!(
        &error,
        OpenError::Schema(SchemaError::Failed { version: 1, .. })
    );
    assert!(failed && error.to_string().contains("tags"), "{error}");
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'buzz'";
    assert_eq!(cluster.number(&database, tables), 1);
    cluster.run(&database, "DROP TABLE buzz.tags");
    assert_eq!(wait(migrate(&url)).expect("applies"), [1]);
}

#[test]
fn pools_that_the_server_cannot_fill_are_refused() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let large = PostgresOptions {
        pool: 200,
        read_pool: 300,
        ..options(&url)
    };
    let error = refused(large);
    let text = error.to_string();
    let given = "come to 501 connections, and the server of DATABASE_URL gives 397";
    assert!(text.contains(given), "{text}");
    assert!(
        text.contains("BUZZ_DB_POOL_SIZE, BUZZ_DB_READ_POOL_SIZE"),
        "{text}"
    );
}

#[test]
fn no_error_shows_a_url() {
    let Some(cluster) = cluster() else { return };
    let port = cluster.port();
    for url in [
        "postgres://hush:hush@127.0.0.1:1/hush".to_owned(),
        format!("postgres://hush:hush@127.0.0.1:{port}/hush"),
        format!("postgres://buzz@127.0.0.1:{port}/hush?sslmode=require"),
        "hush".to_owned(),
    ] {
        let error = refused(PostgresOptions {
            wait: Duration::ZERO,
            ..options(&Secret::new(url))
        });
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hush"), "{text}");
    }
}

#[test]
fn reads_go_where_they_should() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let proxy = Proxy::to(cluster.port());
    let running = Running::with(PostgresOptions {
        read_url: Some(cluster.url_by(proxy.port(), &url)),
        ..options(&url)
    });
    assert_eq!(word(&put_one(&running, &note(1, 1))), "stored");
    assert_eq!(running.last_seq(), 1);
    // The readers' server is down: reads fail and do not go to the writers'.
    proxy.close();
    let error = wait(running.store.reader().last_seq()).expect_err("no reader");
    assert!(error.retryable(), "{error}");
    assert_eq!(word(&put_one(&running, &note(2, 2))), "stored");
    assert_eq!(running.access(&[1; 32]), Access::default());
    proxy.open();
    assert_eq!(running.last_seq(), 2);
}

/// Told to this program, it is only to hold a server until it is ended.
const HOLD: &str = "BUZZ_TEST_HOLD_SERVER";

#[test]
fn no_server_outlives_its_test() {
    if std::env::var_os(HOLD).is_some() {
        let own = Cluster::start(&[]).expect("a server");
        println!("\nheld: {} {}", own.port(), own.dir().display());
        loop {
            thread::park();
        }
    }
    if cluster().is_none() {
        return;
    }
    let (_, module) = module_path!().split_once("::").expect("a crate");
    let own_name = format!("{module}::no_server_outlives_its_test");
    for signal in [Signal::INT, Signal::KILL] {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", &own_name, "--nocapture"])
            .env(HOLD, "1")
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("a test");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let held = output.lines().map_while(Result::ok).find_map(|line| {
            let (port, dir) = line.strip_prefix("held: ")?.split_once(' ')?;
            Some((port.parse::<u16>().ok()?, PathBuf::from(dir)))
        });
        let (port, dir) = held.expect("it holds a server");
        // As a terminal does, and a test runner that has waited too long.
        kill_process_group(Pid::from_child(&child), signal).expect("it is ended");
        child.wait().expect("our own child");
        let end = Instant::now() + WAIT;
        while dir.exists() || TcpStream::connect(("127.0.0.1", port)).is_ok() {
            assert!(Instant::now() < end, "{signal:?} leaves a server behind");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A root, and a certificate for `localhost` signed by it, as PEM files. False: no openssl here.
fn certificates(dir: &std::path::Path) -> bool {
    let script = r#"
        set -e
        openssl req -x509 -newkey rsa:2048 -nodes -keyout root.key -out root.pem -days 2 \
            -subj /CN=root -addext basicConstraints=critical,CA:TRUE
        openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost
        printf 'subjectAltName=DNS:localhost' > extensions
        openssl x509 -req -in server.csr -CA root.pem -CAkey root.key -CAcreateserial \
            -out server.pem -days 2 -extfile extensions
        openssl req -x509 -newkey rsa:2048 -nodes -keyout other.key -out other.pem -days 2 -subj /CN=other
        chmod 600 server.key
        if [ "$(id -u)" = 0 ]; then chown postgres . server.key server.pem; fi
    "#;
    let run = Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .output();
    run.is_ok_and(|output| output.status.success())
}

#[test]
fn certificates_are_checked_as_sslmode_says() {
    if cluster().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    if !certificates(dir.path()) {
        println!("skipped: no certificates can be made here");
        return;
    }
    let path = |file: &str| dir.path().join(file).display().to_string();
    let options_of_server = [
        "-c",
        "ssl=on",
        "-c",
        &format!("ssl_cert_file={}", path("server.pem")),
        "-c",
        &format!("ssl_key_file={}", path("server.key")),
    ];
    let own = Cluster::start(&options_of_server).expect("a server");
    let port = own.port();
    let open = |host: &str, query: &str| {
        let url = format!("postgres://buzz@{host}:{port}/postgres?{query}");
        let options = PostgresOptions {
            wait: Duration::ZERO,
            ..options(&Secret::new(url))
        };
        wait(Postgres::open(options)).map(drop)
    };
    let (root, other) = (path("root.pem"), path("other.pem"));
    let is_encrypted = "SELECT count(*)::bigint FROM pg_stat_ssl WHERE ssl";
    let store = Postgres::open(options(&Secret::new(format!(
        "postgres://buzz@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={root}"
    ))));
    let store = wait(store).expect("the right host and root");
    wait(store.reader().last_seq()).expect("reads");
    assert!(own.number("postgres", is_encrypted) > 0);
    drop(store);
    open("127.0.0.1", "sslmode=require").expect("no check");
    open("127.0.0.1", "sslmode=prefer").expect("no check");
    open(
        "127.0.0.1",
        &format!("sslmode=verify-ca&sslrootcert={root}"),
    )
    .expect("the right root");
    for (host, query) in [
        (
            "127.0.0.1",
            format!("sslmode=verify-full&sslrootcert={root}"),
        ),
        (
            "localhost",
            format!("sslmode=verify-full&sslrootcert={other}"),
        ),
        (
            "localhost",
            format!("sslmode=verify-ca&sslrootcert={other}"),
        ),
        ("localhost", format!("sslmode=require&sslrootcert={other}")),
    ] {
        let error = open(host, &query).expect_err("must be refused");
        assert!(
            matches!(error, OpenError::Unreachable { .. }),
            "{query}: {error}"
        );
    }
}
