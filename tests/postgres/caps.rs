//! The history gate on the real pool: what is full is shed, and logins find a connection.

use crate::common::{Author, Client, id_of, now};
use crate::lists::log_in;
use crate::{cluster, database, on};

#[tokio::test]
async fn reads_that_hold_the_pool_shed_the_others_and_leave_logins_alone() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    // A pool of five: four for history.
    let relay = on(&url).set("BUZZ_DB_READ_POOL_SIZE", 5).start();
    assert_eq!(
        relay.metric("buzz_concurrency_limit", &["history_reads"]),
        Some(4.0)
    );
    let author = Author::new(1);
    let mut client = Client::connect(relay.address).await;
    let event = author.json::<&str>(now(), 1, &[], "before");
    assert_eq!(client.publish(&event).await, (true, String::new()));

    // Readers wait for this lock inside the database, as they would for a slow disk.
    let (client_db, connection) = tokio_postgres::connect(url.expose(), tokio_postgres::NoTls)
        .await
        .expect("a connection");
    let connection = tokio::spawn(connection);
    client_db
        .batch_execute("BEGIN; LOCK TABLE buzz.events IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("a lock");
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut reader = Client::connect(relay.address).await;
        reader.send("[\"REQ\",\"slow\",{\"kinds\":[1]}]").await;
        readers.push(reader);
    }
    relay.await_metric("buzz_concurrency_in_flight", &["history_reads"], |n| {
        n == 4.0
    });
    let mut late = Client::connect(relay.address).await;
    late.send("[\"REQ\",\"late\",{\"kinds\":[1]}]").await;
    let shed = "error: history reads are at their limit, retry shortly";
    assert_eq!(late.closed("late").await, shed);
    // A login asks another pool.
    let (_, accepted, reason) = log_in(relay.address, &author);
    assert!(accepted, "{reason}");

    client_db.batch_execute("COMMIT").await.expect("a commit");
    for reader in &mut readers {
        let found = reader.text().await;
        assert!(found.contains(id_of(&event)), "{found}");
    }
    relay.await_metric("buzz_concurrency_in_flight", &["history_reads"], |n| {
        n == 0.0
    });
    connection.abort();
}
