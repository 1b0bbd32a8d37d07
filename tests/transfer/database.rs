//! Between the two stores: what one gives the other takes, with a relay and without.

use buzz_uring::secret::Secret;
use buzz_uring::store::postgres::testing::Cluster;

use crate::common::raw::{self, Raw};
use crate::common::{Author, Launch, id_of, now, skip};
use crate::{export, exported, import};

/// A database of the test's own; `None`, with a word, where there is no server.
fn database() -> Option<Secret> {
    match Cluster::shared() {
        Ok(cluster) => Some(cluster.database()),
        Err(reason) => {
            skip("PostgreSQL", reason);
            None
        }
    }
}

/// A relay on a database, with a folder of its own.
fn on(url: &Secret) -> Launch {
    Launch::new()
        .set("BUZZ_STORE", "postgres")
        .set("DATABASE_URL", url.expose())
        .set("BUZZ_DB_POOL_SIZE", 4)
        .set("BUZZ_DB_READ_POOL_SIZE", 4)
}

/// Notes, versions of a profile, and a deletion, an event a line.
fn history() -> (String, usize) {
    let (author, begun) = (Author::new(1), now() - 1_000);
    let mut events: Vec<String> = (0..300)
        .map(|n| author.json::<&str>(begun + n, 1, &[], &n.to_string()))
        .collect();
    events.push(author.json::<&str>(begun, 0, &[], "old"));
    events.push(author.json::<&str>(begun + 1, 0, &[], "new"));
    let gone = id_of(&events[7]).to_owned();
    events.push(author.json(begun + 900, 5, &[&["e", &gone]], ""));
    let lines = events.len();
    (events.join("\n") + "\n", lines)
}

#[test]
fn what_one_store_gives_the_other_takes() {
    let Some(database) = database().map(|url| on(&url)) else {
        return;
    };
    let (text, lines) = history();
    let (folder, other) = (Launch::new(), Launch::new());
    import(&folder, &text)
        .expect(0, &[])
        .counts([lines, 0, 0, 0]);
    let of_folder = exported(&folder, &[]);
    // A version and a deleted note less.
    assert_eq!(of_folder.lines().count(), lines - 2);
    let left = lines - 2;
    import(&database, &of_folder)
        .expect(0, &[])
        .counts([left, 0, 0, 0]);
    let of_database = exported(&database, &[]);
    assert_eq!(of_database, of_folder);
    import(&database, &of_folder)
        .expect(0, &[])
        .counts([0, left, 0, 0]);
    import(&other, &of_database)
        .expect(0, &[])
        .counts([left, 0, 0, 0]);
    assert_eq!(exported(&other, &[]), of_folder);
    // With filters both give the same.
    for filter in [
        r#"{"kinds":[0,5]}"#,
        r#"{"kinds":[1],"limit":7}"#,
        r#"{"limit":3}"#,
    ] {
        let asked = ["--filter", filter];
        assert_eq!(
            exported(&database, &asked),
            exported(&folder, &asked),
            "{filter}"
        );
    }
    // What was taken back stays away, and says so with its line.
    let refused = import(&database, &text).expect(1, &["blocked:"]);
    refused.counts([0, left, 1, 1]);
    assert_eq!(refused.told()[0].0, 8);
}

#[test]
fn nothing_goes_to_a_relay_whose_store_is_not_the_one_that_was_named() {
    let Some(url) = database() else { return };
    let (text, lines) = history();
    let (folder, database) = (Launch::new(), on(&url));
    let relay = folder.start();
    let beside = database.clone().folder(relay.data_dir());
    let words = ["embedded store", "BUZZ_STORE asks for postgres"];
    import(&beside, &text).expect(1, &words);
    assert_eq!(exported(&folder, &[]), "");
    // With a folder of its own it goes where it was sent.
    import(&database, &text)
        .expect(0, &[])
        .counts([lines, 0, 0, 0]);
    // Who names no store means the relay's.
    let shared = database.start();
    let unnamed = Launch::new().folder(shared.data_dir());
    assert_eq!(exported(&unnamed, &[]).lines().count(), lines - 2);
}

#[test]
fn through_a_relay_on_a_database_live_subscriptions_miss_nothing() {
    let Some(url) = database() else { return };
    let database = on(&url);
    let (relay, beside) = (database.start(), on(&url).start());
    let mut listeners = [Raw::upgraded(relay.address), Raw::upgraded(beside.address)];
    for listener in &mut listeners {
        listener.send(raw::text("[\"REQ\",\"live\",{\"kinds\":[1],\"limit\":0}]"));
        assert_eq!(listener.message()[0], "EOSE");
    }
    let (text, lines) = history();
    import(&database, &text)
        .expect(0, &[])
        .counts([lines, 0, 0, 0]);
    for listener in &mut listeners {
        let mut seen = std::collections::HashSet::new();
        while seen.len() < 299 {
            let message = listener.message();
            assert_eq!(message[0], "EVENT", "{message}");
            let id = message[2]["id"].as_str().expect("an id").to_owned();
            assert!(seen.insert(id), "twice: {message}");
        }
    }
    assert_eq!(exported(&database, &[]).lines().count(), lines - 2);
    export(&database, &["--filter", "{\"kind\":1}"]).expect(64, &["filter 1"]);
}

#[test]
fn the_schema_can_be_brought_up_to_date_by_hand() {
    let Some(database) = database().map(|url| on(&url)) else {
        return;
    };
    let migrate = |args: &[&str]| {
        let launch = args
            .iter()
            .fold(database.clone().arg("migrate"), |launch, arg| {
                launch.arg(arg)
            });
        launch.run()
    };
    let missing = migrate(&["--check"]);
    assert_eq!(
        (missing.code(), missing.stdout.trim()),
        (1, "migration 1: missing")
    );
    let applied = migrate(&[]);
    assert_eq!(
        (applied.code(), applied.stdout.trim()),
        (0, "migration 1: applied")
    );
    let clean = migrate(&["--check"]);
    assert_eq!(
        (clean.code(), clean.stdout.trim()),
        (0, "the schema is up to date")
    );
    Launch::new()
        .arg("migrate")
        .run()
        .expect(1, &["BUZZ_STORE is embedded"]);
}
