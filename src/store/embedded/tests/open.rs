//! Folders that are ours, and folders that are not: clear errors, nothing changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;

fn data(dir: &Path) -> Vec<u8> {
    fs::read(dir.join("events/data.mdb")).expect("the data file")
}

/// Opening fails and leaves the data file as it was.
fn refuse(dir: &Path) -> OpenError {
    let before = data(dir);
    let error = Embedded::open(&options(dir)).expect_err("must not open");
    assert_eq!(before, data(dir), "nothing is damaged");
    error
}

#[test]
fn what_was_stored_is_there_after_reopening() {
    let dir = folder();
    let running = Running::open(&options(&dir.path().join("a/b")));
    running.put(&[note(1, 1), note(2, 2)]);
    drop(running);
    let running = Running::open(&options(&dir.path().join("a/b")));
    assert_eq!(audit(&running.store).len(), 2);
    assert!(matches!(
        running.put_one(&note(3, 3)),
        Outcome::Stored { seq: 3 }
    ));
    let mode = fs::metadata(dir.path().join("a/b"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn sequences_are_not_given_again_after_the_last_event_is_gone() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put_one(&note(1, 1));
    let tables = &running.store.shared.tables;
    let mut txn = tables.env.write_txn().expect("a transaction");
    tables.events.clear(&mut txn).expect("clears");
    txn.commit().expect("commits");
    drop(running);
    let running = Running::open(&options(dir.path()));
    assert!(matches!(
        running.put_one(&note(2, 2)),
        Outcome::Stored { seq: 2 }
    ));
}

#[test]
fn a_second_opener_is_told_who_has_the_folder() {
    let dir = folder();
    let first = Embedded::open(&options(dir.path())).expect("opens");
    let error = Embedded::open(&options(dir.path())).expect_err("must not open");
    assert!(
        matches!(error, OpenError::Locked { pid: Some(pid) } if pid == std::process::id()),
        "{error:?}"
    );
    assert!(error.to_string().contains(&std::process::id().to_string()));
    let reader = first.reader();
    drop(first);
    assert!(
        Embedded::open(&options(dir.path())).is_err(),
        "a reader still holds it"
    );
    drop(reader);
    Embedded::open(&options(dir.path())).expect("free again");
}

#[test]
fn a_newer_schema_is_refused() {
    let dir = folder();
    let store = Embedded::open(&options(dir.path())).expect("opens");
    let tables = &store.shared.tables;
    let mut txn = tables.env.write_txn().expect("a transaction");
    tables
        .meta
        .put(&mut txn, layout::META_SCHEMA, &9u32.to_be_bytes())
        .expect("writes");
    txn.commit().expect("commits");
    drop(store);
    let error = refuse(dir.path());
    assert!(
        matches!(
            error,
            OpenError::NewerSchema {
                found: 9,
                supported: 4
            }
        ),
        "{error:?}"
    );
}

#[test]
fn what_is_not_a_folder_is_refused() {
    let dir = folder();
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = Embedded::open(&options(&path)).expect_err("must not open");
        assert!(matches!(error, OpenError::NotAFolder), "{error:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"text");
}

#[test]
fn what_is_not_our_file_is_refused() {
    let dir = folder();
    fs::create_dir(dir.path().join("events")).unwrap();
    fs::write(dir.path().join("events/data.mdb"), vec![0x5a; 64 << 10]).unwrap();
    let error = refuse(dir.path());
    assert!(matches!(error, OpenError::Corrupt(_)), "{error:?}");
}

#[test]
fn the_database_of_another_program_is_refused() {
    let dir = folder();
    let store = Embedded::open(&options(dir.path())).expect("opens");
    let tables = &store.shared.tables;
    let mut txn = tables.env.write_txn().expect("a transaction");
    tables
        .meta
        .delete(&mut txn, layout::META_SCHEMA)
        .expect("deletes");
    txn.commit().expect("commits");
    drop(store);
    let error = refuse(dir.path());
    assert!(matches!(error, OpenError::Foreign), "{error:?}");
}

#[test]
fn a_file_cut_short_is_refused() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let large = "x".repeat(100_000);
    let events: Vec<Event> = (0..100)
        .map(|n| event(id(n), [1; 32], n, 1, &[], &large))
        .collect();
    running.put(&events);
    drop(running);
    let path = dir.path().join("events/data.mdb");
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(64 << 10)
        .unwrap();
    let error = refuse(dir.path());
    assert!(matches!(error, OpenError::Corrupt(_)), "{error:?}");
}

#[test]
fn usage_tells_how_full_the_map_is() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let usage = || running.store.usage().expect("reads");
    let before = usage();
    assert_eq!(before.bytes_max, MAP_BYTES as u64);
    running.put(&(0..500).map(|n| note(n, n)).collect::<Vec<_>>());
    assert!(usage().used_bytes > before.used_bytes);
}
