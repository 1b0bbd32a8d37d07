//! A database that is there and in trouble: read-only, slow, locked, hung, out of connections. Whoever
//! asks is told so with a reason to come again, and all goes on without a restart.

use std::time::Instant;

use tokio::time::timeout;
use tokio_postgres::NoTls;

use buzz_uring::secret::Secret;
use buzz_uring::store::postgres::testing::{Cluster, Proxy};

use crate::common::{Author, Client, Relay, WAIT, get, id_of, now, until};
use crate::lists::log_in;
use crate::trouble::publish_until_accepted;
use crate::{apart, cluster, database, on};

/// The name of the database of a URL.
fn name(url: &Secret) -> String {
    let path = url.expose().rsplit('/').next().unwrap_or_default();
    path.split('?').next().unwrap_or_default().to_owned()
}

/// Runs statements beside the relay.
fn run(cluster: &'static Cluster, database: &str, statements: impl Into<String>) {
    let (database, statements) = (database.to_owned(), statements.into());
    apart(move || cluster.run(&database, &statements));
}

/// Ends a database's connections, so that new ones meet what was changed.
fn end_connections(cluster: &'static Cluster, database: &str) {
    run(
        cluster,
        "postgres",
        format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
        ),
    );
}

/// A connection that holds a lock until it is dropped.
async fn locked(url: &Secret, lock: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url.expose(), NoTls)
        .await
        .expect("a connection");
    tokio::spawn(connection);
    let begin = format!("BEGIN; {lock}");
    client.batch_execute(&begin).await.expect("a lock");
    client
}

/// Publishes and is refused, with a reason to come again.
async fn refused(client: &mut Client, author: &Author) {
    let event = author.json::<&str>(now(), 1, &[], "refused");
    let (accepted, reason) = client.publish(&event).await;
    assert!(!accepted && reason.starts_with("error:"), "{reason}");
}

/// Publishes and is refused, until the relay's log says why: the first tries may meet connections that
/// were ended.
async fn refused_until(relay: &Relay, client: &mut Client, author: &Author, why: &str) {
    let end = Instant::now() + WAIT;
    while !relay.output().contains(why) {
        assert!(Instant::now() < end, "it does not say {why:?}");
        refused(client, author).await;
    }
}

/// Waits until the relay's log says something.
fn says(relay: &Relay, why: &str) {
    until(why, || relay.output().contains(why).then_some(()));
}

/// Asks for history and is closed, with a reason to come again.
async fn closed(relay: &Relay) {
    let mut client = Client::connect(relay.address).await;
    client.send("[\"REQ\",\"r\",{\"kinds\":[1]}]").await;
    let reason = timeout(WAIT, client.closed("r")).await.expect("an answer");
    assert!(reason.starts_with("error:"), "{reason}");
}

/// Logs in and is refused for the database's sake.
async fn not_checked(relay: &Relay) {
    let address = relay.address;
    let (_, accepted, reason) = apart_login(address).await;
    assert!(!accepted && reason.starts_with("error:"), "{reason}");
}

async fn logged_in(relay: &Relay) {
    let (_, accepted, reason) = apart_login(relay.address).await;
    assert!(accepted, "{reason}");
}

/// Logs in on a thread of its own: the others go on meanwhile.
async fn apart_login(address: std::net::SocketAddr) -> (crate::common::Raw, bool, String) {
    let login = tokio::task::spawn_blocking(move || log_in(address, &Author::new(9)));
    login.await.expect("a login")
}

#[tokio::test]
async fn a_read_only_database_is_read_and_refuses_events() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let database = name(&url);
    let relay = on(&url).start();
    let (author, mut client) = (Author::new(1), Client::connect(relay.address).await);
    let event = author.json::<&str>(now(), 1, &[], "before");
    assert_eq!(client.publish(&event).await, (true, String::new()));
    let read_only = |on: &str| {
        let alter = format!("ALTER DATABASE {database} SET default_transaction_read_only = {on}");
        run(cluster, "postgres", alter);
    };
    read_only("on");
    end_connections(cluster, &database);
    refused_until(&relay, &mut client, &author, "takes no writes").await;
    assert_eq!(client.fetch("{\"kinds\":[1]}").await, [event]);
    logged_in(&relay).await;
    assert_eq!(get(relay.health, "/_readiness", &[]).status, 200);
    // Connections that have learnt of it are of no use any more.
    read_only("off");
    publish_until_accepted(&mut client, &author).await;
}

#[tokio::test]
async fn a_server_without_connections_is_waited_out() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let database = name(&url);
    let role =
        format!("CREATE ROLE {database} LOGIN; ALTER DATABASE {database} OWNER TO {database}");
    for statement in role.split(';') {
        run(cluster, "postgres", statement);
    }
    let own = Secret::new(url.expose().replace("//buzz@", &format!("//{database}@")));
    let relay = on(&own).start();
    let (author, mut client) = (Author::new(1), Client::connect(relay.address).await);
    publish_until_accepted(&mut client, &author).await;
    let limit = |number: i32| {
        run(
            cluster,
            "postgres",
            format!("ALTER ROLE {database} CONNECTION LIMIT {number}"),
        );
        end_connections(cluster, &database);
    };
    limit(0);
    refused_until(
        &relay,
        &mut client,
        &author,
        "no connection to the database",
    )
    .await;
    closed(&relay).await;
    not_checked(&relay).await;
    limit(-1);
    publish_until_accepted(&mut client, &author).await;
    logged_in(&relay).await;
    assert!(client.fetch("{\"kinds\":[1]}").await.len() >= 2);
}

#[tokio::test]
async fn a_lock_is_waited_for_and_not_for_ever() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let relay = on(&url).start();
    let (author, mut client) = (Author::new(1), Client::connect(relay.address).await);
    publish_until_accepted(&mut client, &author).await;
    let lock = "LOCK TABLE buzz.events IN ACCESS EXCLUSIVE MODE";
    let holder = locked(&url, lock).await;
    tokio::join!(
        refused(&mut client, &author),
        closed(&relay),
        logged_in(&relay),
    );
    says(&relay, "a lock was not to be had in time");
    drop(holder);
    let event = publish_until_accepted(&mut client, &author).await;
    let found = client.fetch("{\"kinds\":[1]}").await;
    assert!(found.iter().any(|other| id_of(other) == id_of(&event)));
}

#[tokio::test]
async fn a_slow_statement_is_given_up() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let database = name(&url);
    let relay = on(&url).start();
    let (author, mut client) = (Author::new(1), Client::connect(relay.address).await);
    let first = publish_until_accepted(&mut client, &author).await;
    run(
        cluster,
        &database,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON buzz.events FOR EACH STATEMENT
             EXECUTE FUNCTION slow()",
    );
    let mut reader = Client::connect(relay.address).await;
    let ((), found, ()) = tokio::join!(
        refused(&mut client, &author),
        reader.fetch("{\"kinds\":[1]}"),
        logged_in(&relay),
    );
    says(&relay, "a statement ran into its time limit");
    assert_eq!(found, [first]);
    run(cluster, &database, "DROP TRIGGER slow ON buzz.events");
    publish_until_accepted(&mut client, &author).await;
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let proxy = Proxy::to(cluster.port());
    let relay = on(&cluster.url_by(proxy.port(), &url)).start();
    let (author, mut client) = (Author::new(1), Client::connect(relay.address).await);
    publish_until_accepted(&mut client, &author).await;
    proxy.hold();
    tokio::join!(
        refused(&mut client, &author),
        closed(&relay),
        not_checked(&relay),
    );
    assert_eq!(get(relay.health, "/_readiness", &[]).status, 200);
    assert_eq!(get(relay.health, "/_liveness", &[]).status, 200);
    proxy.open();
    publish_until_accepted(&mut client, &author).await;
    logged_in(&relay).await;
    assert!(client.fetch("{\"kinds\":[1]}").await.len() >= 2);
}
