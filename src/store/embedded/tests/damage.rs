//! Data files that are not whole: refused before they are mapped, where a read would end the process.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use super::*;

fn data(dir: &Path) -> PathBuf {
    dir.join("events/data.mdb")
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).expect("a file").len()
}

fn cut(path: &Path, len: u64) {
    let file = OpenOptions::new().write(true).open(path).expect("a file");
    file.set_len(len).expect("a length");
}

/// Cuts the file, opens the store, and puts the file back. It is refused, and left as it is.
fn refused_at(dir: &Path, sound: &[u8], len: u64) -> String {
    let path = data(dir);
    cut(&path, len);
    let before = fs::read(&path).expect("a file");
    let error = open_again(&options(dir)).expect_err("must not open");
    assert!(matches!(error, OpenError::Corrupt(_)), "{len}: {error:?}");
    assert!(before == fs::read(&path).expect("a file"), "it was changed");
    fs::write(&path, sound).expect("writes");
    error.to_string()
}

#[test]
fn a_file_that_lacks_its_end_is_refused() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let large = "x".repeat(100_000);
    let events: Vec<Event> = (0..20)
        .map(|n| event(id(n), [1; 32], n, 1, &[], &large))
        .collect();
    running.put(&events);
    drop(running);
    let sound = fs::read(data(dir.path())).expect("a file");
    let whole = sound.len() as u64;
    for lost in [1, 4_096, 100_000, whole / 3, whole / 2, whole - 12_288] {
        let told = refused_at(dir.path(), &sound, whole - lost);
        assert!(told.contains("shorter"), "{told}");
    }
    // Without its two first pages it says nothing of itself.
    for left in [1, 100, 4_095, 4_096, 4_196] {
        refused_at(dir.path(), &sound, left);
    }
    let running = Running::open(&options(dir.path()));
    assert_eq!(audit(&running.store).len(), 20);
}

#[test]
fn an_empty_file_is_no_new_store() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put_one(&note(1, 1));
    drop(running);
    let sound = fs::read(data(dir.path())).expect("a file");
    let told = refused_at(dir.path(), &sound, 0);
    assert!(told.contains("empty") && told.contains("backup"), "{told}");
    // Also without LMDB's own lock file.
    fs::remove_file(dir.path().join("events/lock.mdb")).expect("removes");
    refused_at(dir.path(), &sound, 0);
    // A file that is not there is not a damaged one.
    fs::remove_file(data(dir.path())).expect("removes");
    let store = open_again(&options(dir.path())).expect("a new store");
    assert!(audit(&store).is_empty());
}

#[test]
fn a_new_store_has_its_file_when_it_is_whole() {
    let dir = folder();
    // What is left of a start that was killed.
    fs::create_dir(dir.path().join("events")).expect("a folder");
    let unfinished = dir.path().join("events").join(file::UNFINISHED);
    fs::write(&unfinished, b"").expect("writes");
    let store = open_again(&options(dir.path())).expect("a new store");
    assert!(!unfinished.exists());
    let usage = store.usage().expect("reads");
    assert_eq!(usage.bytes_max, MAP_BYTES as u64);
    drop(store);
    let files: std::collections::BTreeSet<_> = fs::read_dir(dir.path().join("events"))
        .expect("a folder")
        .map(|entry| entry.expect("a file").file_name())
        .collect();
    assert!(
        files.iter().eq(["data.mdb", "journal", "lock.mdb"]),
        "{files:?}"
    );
}

/// LMDB leaves pages out that a commit took and gave back. The file that results is sound, and each
/// page less is told by the list of free pages or is a page that is needed.
#[test]
fn a_file_that_lacks_free_pages_alone_is_sound() {
    let mut left_out = false;
    let large = (1..20).map(|seed| (seed, 2_000_000));
    for (seed, large) in large.chain([(2, 300_000), (3, 5_000)]) {
        if large > 1_000_000 && left_out {
            continue;
        }
        let dir = folder();
        let running = Running::open(&options(dir.path()));
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..30 {
            let size = random.usize(0..9_000);
            let content = "x".repeat(size);
            running.put_one(&event(id(round), [1; 32], round, 1, &[], &content));
            let tables = &running.store.shared.tables;
            let mut txn = tables.env.write_txn().expect("a transaction");
            let value = vec![7; random.usize(0..large)];
            tables.access.put(&mut txn, b"key", &value).expect("puts");
            if random.bool() {
                tables.access.delete(&mut txn, b"key").expect("deletes");
                tables.access.put(&mut txn, b"key", b"small").expect("puts");
            }
            txn.commit().expect("commits");
        }
        let pages = running.store.usage().expect("reads").file_bytes();
        drop(running);
        let path = data(dir.path());
        let written = len(&path);
        left_out |= written < pages;
        // Down to the first page that is needed, everything is there to be read.
        let mut left = written;
        while file::check(&path).is_ok() {
            let store = open_again(&options(dir.path())).expect("opens");
            assert_eq!(audit(&store).len(), 30);
            drop(store);
            left -= 4_096;
            cut(&path, left);
        }
        assert!(left > 16_384, "a store of {left} bytes");
    }
    assert!(left_out, "nothing was ever left out");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Whatever is in the file: an answer, and no more than that.
    #[test]
    fn a_damaged_file_is_judged_without_harm(
        places in proptest::collection::vec((0..65_536usize, proptest::prelude::any::<u8>()), 1..40),
        left in 0..65_536u64,
    ) {
        let dir = folder();
        drop(open_again(&options(dir.path())).expect("opens"));
        let path = data(dir.path());
        let mut contents = fs::read(&path).expect("a file");
        for (at, byte) in places {
            let at = at % contents.len();
            contents[at] = byte;
        }
        contents.truncate(left as usize);
        fs::write(&path, &contents).expect("writes");
        let _ = file::check(&path);
    }
}
