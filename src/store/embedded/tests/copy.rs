//! Backups and compaction: whole or not at all.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::lock::FolderLock;
use super::*;

fn ids(store: &Embedded) -> BTreeSet<[u8; 32]> {
    audit(store).values().map(|event| *event.id()).collect()
}

fn large(number: u64) -> Event {
    let content = "x".repeat(number as usize % 9_000);
    event(id(number), [1; 32], number, 1, &[&["t", "copy"]], &content)
}

/// Names of everything in a folder.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("a name")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn a_backup_is_a_store_of_one_moment_while_writes_go_on() {
    let dir = folder();
    let running = Running::open(&options(&dir.path().join("data")));
    running.put(&(0..500).map(large).collect::<Vec<_>>());
    running
        .store
        .edit_access(&[[3; 32]], List::Banned, true)
        .expect("edits");
    let before = ids(&running.store);
    let stop = AtomicBool::new(false);
    let to = dir.path().join("backup");
    let mut seen = Vec::new();
    let made = std::thread::scope(|scope| {
        let store = running.store.clone();
        let (stop, to, seen) = (&stop, &to, &mut seen);
        let copying = scope.spawn(move || {
            let made = store.backup(to, &mut |written, total| seen.push((written, total)));
            stop.store(true, Ordering::Release);
            made
        });
        let mut next = 1_000;
        while !stop.load(Ordering::Acquire) {
            running.put(&[large(next), large(next + 1)]);
            next += 2;
        }
        copying.join().expect("no panic")
    });
    let made = made.expect("a backup");
    let file = to.join("events/data.mdb");
    assert_eq!(made.bytes, fs::metadata(&file).expect("a file").len());
    assert_eq!(seen.last(), Some(&(made.bytes, made.bytes)));
    assert_eq!(names(dir.path()), ["backup", "data"]);

    let restored = Running::open(&options(&to));
    let found = ids(&restored.store);
    assert_eq!(found.len() as u64, made.events);
    assert!(before.is_subset(&found) && found.is_subset(&ids(&running.store)));
    assert!(
        restored
            .store
            .reader()
            .access(&[3; 32])
            .expect("reads")
            .banned
    );
    // It goes on where it was.
    assert!(matches!(
        restored.put_one(&large(1 << 40)),
        Outcome::Stored { .. }
    ));
}

#[test]
fn a_backup_overwrites_nothing_and_leaves_nothing_when_it_cannot_be_made() {
    let dir = folder();
    let store = Embedded::open(&options(&dir.path().join("data"))).expect("opens");
    let backup = |name: &str| store.backup(&dir.path().join(name), &mut |_, _| ());
    fs::write(dir.path().join("file"), "text").expect("writes");
    fs::create_dir(dir.path().join("empty")).expect("a folder");
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).expect("a link");
    for name in [
        "file",
        "empty",
        "link",
        "data",
        "empty/",
        "data/events/data.mdb",
    ] {
        let error = backup(name).expect_err("must not be made");
        assert!(matches!(error, CopyError::Exists), "{name}: {error:?}");
    }
    let error = backup("no/folder").expect_err("must not be made");
    assert!(matches!(error, CopyError::NoParent(_)), "{error:?}");

    // Something of somebody else.
    fs::create_dir(dir.path().join("b.partial")).expect("a folder");
    fs::write(dir.path().join("b.partial/mine"), "text").expect("writes");
    let error = backup("b").expect_err("must not be made");
    assert!(matches!(error, CopyError::InTheWay(_)), "{error:?}");
    assert_eq!(names(&dir.path().join("b.partial")), ["mine"]);
    fs::remove_file(dir.path().join("b.partial/mine")).expect("removes");

    // Another backup that is being written, and what is left when it is killed.
    let lock = FolderLock::take(&dir.path().join("b.partial")).expect("a lock");
    let error = backup("b").expect_err("must not be made");
    assert!(matches!(error, CopyError::Busy), "{error:?}");
    drop(lock);
    fs::create_dir(dir.path().join("b.partial/events")).expect("a folder");
    fs::write(dir.path().join("b.partial/events/data.mdb"), "half").expect("writes");
    backup("b").expect("a backup");
    assert_eq!(names(dir.path()), ["b", "data", "empty", "file", "link"]);
    assert_eq!(names(&dir.path().join("b")), ["events", "lock"]);
    assert!(
        fs::read_dir(dir.path().join("empty"))
            .expect("a folder")
            .next()
            .is_none()
    );
    open_again(&options(&dir.path().join("b"))).expect("opens");
}

#[test]
fn compaction_gives_free_pages_back_and_keeps_everything() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put(&(0..800).map(large).collect::<Vec<_>>());
    running
        .store
        .edit_access(&[[3; 32]], List::Members, true)
        .expect("edits");
    let targets: Vec<String> = (0..700).map(|n| const_hex::encode(id(n))).collect();
    let tags: Vec<[&str; 2]> = targets.iter().map(|id| ["e", id.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    running.put_one(&event([9; 32], [1; 32], 9_000, 5, &tags, ""));
    let (kept, last) = (
        ids(&running.store),
        running.store.reader().last_seq().expect("reads"),
    );
    let held = Embedded::compact(&options(dir.path()), &mut |_, _| ());
    assert!(
        matches!(held, Err(CompactError::Open(OpenError::Locked { .. }))),
        "{held:?}"
    );
    let used = running.store.usage().expect("reads").used_bytes;
    drop(running);

    let done = compact(&options(dir.path())).expect("compacts");
    assert!(
        done.before > 2 * done.after && done.after <= used,
        "{done:?}, {used} in use"
    );
    assert_eq!(done.events, kept.len() as u64);
    let left = ["data.mdb", "journal", "lock.mdb"];
    assert_eq!(names(&dir.path().join("events")), left);
    assert_eq!(
        fs::metadata(dir.path().join("events/data.mdb"))
            .expect("a file")
            .len(),
        done.after
    );
    let running = Running::open(&options(dir.path()));
    assert_eq!(ids(&running.store), kept);
    assert!(
        running
            .store
            .reader()
            .access(&[3; 32])
            .expect("reads")
            .member
    );
    let outcome = running.put_one(&large(1 << 40));
    assert!(
        matches!(outcome, Outcome::Stored { seq } if seq == last + 1),
        "{outcome:?}"
    );
    // What was taken back stays gone.
    assert!(matches!(running.put_one(&large(5)), Outcome::Refused(_)));
    drop(running);
    // A second time there is nothing to give back.
    let again = compact(&options(dir.path())).expect("compacts");
    assert!(again.before - again.after < 200_000, "{again:?}");
}

#[test]
fn there_must_be_a_store_to_compact() {
    let dir = folder();
    let none = Embedded::compact(&options(&dir.path().join("none")), &mut |_, _| ());
    assert!(matches!(none, Err(CompactError::NoStore)), "{none:?}");
    assert!(names(dir.path()).is_empty());
}
