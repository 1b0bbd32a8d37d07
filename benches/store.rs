//! What the embedded store costs: CPU time, and its ratio to a floor measured in the same run.
//!
//! `cargo bench --bench store [-- EVENTS]`. Writes go to a real disk (`TMPDIR` chooses which): CPU
//! time is of the whole process, wall time is the disk's. Floors: for writes, the same JSON appended
//! to one bare LMDB table in groups of the same size; for scans, a hand-written walk over a bare time
//! index that fetches and hands out as many events. Absolute figures mean little on a shared machine,
//! ratios do.
#![allow(missing_docs, unsafe_code)] // The clocks of libc, and LMDB for the floor.

use std::hint::black_box;
use std::ops::Bound;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use buzz_uring::nostr::{Event, Filter};
use buzz_uring::store::embedded::{
    Budget, Count, Embedded, EmbeddedOptions, Progress, Query, QueryBounds, Reader,
};
use buzz_uring::store::{CommitSink, Done, Job, Origin, Outcome};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, PutFlags, WithoutTls};

const AUTHORS: u64 = 200;
const MAP_BYTES: usize = 8 << 30;

fn main() {
    // `cargo test` runs benches too, without asking for figures.
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let count = asked
        .iter()
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(100_000);
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let events: Vec<Arc<Event>> = (0..count).map(|n| Arc::new(event(n))).collect();
    let bytes: usize = events.iter().map(|event| event.json().len()).sum();
    println!("{count} events of {} bytes\n", bytes / events.len());
    println!("write: us an event        cpu   floor   ratio      wall   floor   ratio");
    writes(&events);
    println!("\nread: us an answer         cpu   floor   ratio");
    reads(&events);
}

/// An event of about 700 bytes with two or three tags, of a thousand hashtags and many threads.
fn event(n: u64) -> Event {
    let mix = |salt: u64| {
        (n ^ salt)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let hex = |seed: u64| {
        format!(
            "{:016x}{:016x}{:016x}{:016x}",
            seed,
            seed ^ 1,
            seed ^ 2,
            seed ^ 3
        )
    };
    let author = |n: u64| hex((n + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
    let kind = [1, 1, 1, 7, 6][mix(1) as usize % 5];
    let mut tags = vec![
        format!(r#"["e","{}"]"#, hex(mix(2) % 20_000)),
        format!(r#"["p","{}"]"#, author(mix(3) % AUTHORS)),
    ];
    if n.is_multiple_of(2) {
        tags.push(format!(r#"["t","tag{}"]"#, mix(4) % 20));
    }
    let json = format!(
        r#"{{"id":"{}","pubkey":"{}","created_at":{},"kind":{kind},"tags":[{}],"content":"{}","sig":"{}"}}"#,
        hex(mix(5)),
        author(mix(6) % AUTHORS),
        1_700_000_000 + n / 4 + mix(7) % 60,
        tags.join(","),
        "what a note says ".repeat(6 + (mix(8) % 8) as usize),
        "5a".repeat(64),
    );
    Event::parse(&json).expect("an event")
}

// Writes.

fn writes(events: &[Arc<Event>]) {
    for group in [1, 32, 256] {
        // A lone event waits for its sync: fewer of them say the same.
        let events = &events[..events.len().min(group * 400)];
        let floor_dir = tempfile::tempdir().expect("a folder");
        let bare = Bare::open(floor_dir.path());
        let floor = measure(events.len(), || {
            events.chunks(group).for_each(|group| bare.append(group))
        });
        let dir = tempfile::tempdir().expect("a folder");
        let running = Running::open(dir.path());
        let cost = measure(events.len(), || {
            events.chunks(group).for_each(|group| running.put(group))
        });
        println!(
            "{group:>4} a commit          {:>7.1} {:>7.1} {:>7.2} {:>9.1} {:>7.1} {:>7.2}",
            cost.0,
            floor.0,
            cost.0 / floor.0,
            cost.1,
            floor.1,
            cost.1 / floor.1
        );
    }
}

/// CPU time of the process and wall time, in us for each of `count`.
fn measure(count: usize, mut work: impl FnMut()) -> (f64, f64) {
    let (cpu, wall) = (clock(libc::CLOCK_PROCESS_CPUTIME_ID), Instant::now());
    work();
    let cpu = clock(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    (each(cpu), each(wall.elapsed()))
}

struct Running {
    store: Embedded,
    done: std::sync::mpsc::Receiver<usize>,
}

struct Sink(Sender<usize>);

impl CommitSink for Sink {
    fn committed(&mut self, done: &mut Vec<Done>) {
        assert!(
            done.iter()
                .all(|done| matches!(done.outcome, Outcome::Stored { .. }))
        );
        let _ = self.0.send(done.len());
        done.clear();
    }
}

impl Running {
    fn open(dir: &Path) -> Running {
        let options = EmbeddedOptions {
            dir: dir.to_path_buf(),
            map_bytes: MAP_BYTES,
            readers_max: 16,
        };
        let store = Embedded::open(&options).expect("opens");
        let (sender, done) = channel();
        store.start_writer(Sink(sender));
        Running { store, done }
    }

    fn put(&self, events: &[Arc<Event>]) {
        let origin = Origin { shard: 0, token: 0 };
        let mut jobs = events
            .iter()
            .map(|event| Job {
                event: Arc::clone(event),
                origin,
            })
            .collect();
        self.store.submit(&mut jobs);
        let mut open = events.len();
        while open > 0 {
            open -= self.done.recv().expect("outcomes");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// LMDB with nothing around it.
struct Bare {
    env: Env<WithoutTls>,
    events: Database<'static, Bytes, Bytes>,
    time: Database<'static, Bytes, Bytes>,
}

impl Bare {
    fn open(dir: &Path) -> Bare {
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(MAP_BYTES).max_dbs(2);
        // SAFETY: the folder is this bench's own and the flag changes read-ahead alone.
        let env = unsafe {
            open.flags(EnvFlags::NO_READ_AHEAD)
                .open(dir)
                .expect("opens")
        };
        let txn = env.write_txn().expect("a transaction");
        let (events, time) = env
            .create_databases_and_commit(txn, |opener, txn| {
                let events = opener.create_database::<Bytes, Bytes>(txn, Some("events"))?;
                let time = opener.create_database::<Bytes, Bytes>(txn, Some("time"))?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit((events, time)))
            })
            .expect("creates")
            .commit()
            .expect("commits");
        Bare { env, events, time }
    }

    fn append(&self, group: &[Arc<Event>]) {
        let mut txn = self.env.write_txn().expect("a transaction");
        let mut seq = self
            .events
            .last(&txn)
            .expect("reads")
            .map_or(0, |(key, _)| {
                u64::from_be_bytes(key.try_into().expect("eight bytes"))
            });
        for event in group {
            seq += 1;
            let json = event.json().as_bytes();
            self.events
                .put_with_flags(&mut txn, PutFlags::APPEND, &seq.to_be_bytes(), json)
                .expect("puts");
        }
        txn.commit().expect("commits");
    }

    fn index(&self, events: &[Arc<Event>]) {
        let mut txn = self.env.write_txn().expect("a transaction");
        for (seq, event) in (1u64..).zip(events) {
            let mut key = [0; 24];
            key[..8].copy_from_slice(&(!event.created_at()).to_be_bytes());
            key[8..].copy_from_slice(&event.id()[..16]);
            self.time
                .put(&mut txn, &key, &seq.to_be_bytes())
                .expect("puts");
        }
        txn.commit().expect("commits");
    }

    fn newest(&self, count: usize, sink: &mut dyn FnMut(&str)) {
        let txn = self.env.read_txn().expect("a transaction");
        let from = (Bound::Included(&[0u8; 8][..]), Bound::Unbounded);
        for entry in self.time.range(&txn, &from).expect("a range").take(count) {
            let (_, seq) = entry.expect("an entry");
            let json = self
                .events
                .get(&txn, seq)
                .expect("reads")
                .expect("its event");
            sink(simdutf8::basic::from_utf8(json).expect("text"));
        }
    }
}

// Reads.

fn reads(events: &[Arc<Event>]) {
    let (dir, floor_dir) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let running = Running::open(dir.path());
    let bare = Bare::open(floor_dir.path());
    events.chunks(1_000).for_each(|group| {
        running.put(group);
        bare.append(group);
    });
    bare.index(events);
    let reader = running.store.reader();
    let usage = running.store.usage().expect("reads");

    let authors = |count: usize| {
        let mut authors: Vec<[u8; 32]> = events
            .iter()
            .take(10_000)
            .map(|event| *event.pubkey())
            .collect();
        authors.sort();
        authors.dedup();
        authors.truncate(count);
        Some(authors)
    };
    let tag = |letter, value: &[u8]| vec![(letter, vec![value.into()])];
    let thread: Box<[u8]> = events[0].index_tags().next().expect("a tag").1.into();
    let ids = |count: usize| {
        let mut ids: Vec<[u8; 32]> = events
            .iter()
            .step_by(97)
            .take(count)
            .map(|event| *event.id())
            .collect();
        ids.sort();
        Some(ids)
    };
    let newest = |limit| Filter {
        limit: Some(limit),
        ..Filter::default()
    };
    let shapes = [
        (
            "one by id",
            1,
            Filter {
                ids: ids(1),
                ..newest(1)
            },
        ),
        (
            "100 by id",
            100,
            Filter {
                ids: ids(100),
                ..newest(100)
            },
        ),
        (
            "100 by author, kind",
            100,
            Filter {
                authors: authors(1),
                kinds: Some(vec![1]),
                ..newest(100)
            },
        ),
        (
            "100 by #t",
            100,
            Filter {
                tags: tag(b't', b"tag2"),
                ..newest(100)
            },
        ),
        (
            "100 by #t, kind",
            100,
            Filter {
                tags: tag(b't', b"tag2"),
                kinds: Some(vec![7]),
                ..newest(100)
            },
        ),
        (
            "replies by #e",
            5,
            Filter {
                tags: tag(b'e', &thread),
                ..newest(100)
            },
        ),
        ("500 newest", 500, newest(500)),
        (
            "500 by kind",
            500,
            Filter {
                kinds: Some(vec![1]),
                ..newest(500)
            },
        ),
        (
            "500 by #t",
            500,
            Filter {
                tags: tag(b't', b"tag2"),
                ..newest(500)
            },
        ),
        (
            "feed: 50 authors, 100",
            100,
            Filter {
                authors: authors(50),
                kinds: Some(vec![1]),
                ..newest(100)
            },
        ),
        (
            "feed, 2 kinds",
            100,
            Filter {
                authors: authors(50),
                kinds: Some(vec![1, 6]),
                ..newest(100)
            },
        ),
        (
            "feed, all kinds",
            100,
            Filter {
                authors: authors(50),
                ..newest(100)
            },
        ),
    ];
    for (name, count, filter) in shapes {
        let filters: Rc<[Filter]> = Rc::from([filter]);
        let given = answer(&reader, &filters, u32::MAX);
        assert!(given <= count && given > 0, "{name}: {given}");
        let (cost, floor) = compare(
            || _ = black_box(answer(&reader, &filters, u32::MAX)),
            || bare.newest(count, &mut |json| _ = black_box(json)),
        );
        println!("{name:<22} {cost:>8.2} {floor:>7.2} {:>7.2}", cost / floor);
    }
    let filters: Rc<[Filter]> = Rc::from([newest(500)]);
    let (cost, floor) = compare(
        || _ = black_box(answer(&reader, &filters, 64)),
        || _ = black_box(answer(&reader, &filters, u32::MAX)),
    );
    println!(
        "{:<22} {cost:>8.2} {floor:>7.2} {:>7.2}  (floor: one slice)",
        "500 in slices of 64",
        cost / floor
    );
    let all: Rc<[Filter]> = Rc::from([Filter {
        kinds: Some(vec![1]),
        ..Filter::default()
    }]);
    let start = clock(libc::CLOCK_THREAD_CPUTIME_ID);
    let mut count = Count::new(Rc::clone(&all));
    while count.slice(&reader, &budget(4_096)).expect("a slice") == Progress::More {}
    let time = (clock(libc::CLOCK_THREAD_CPUTIME_ID) - start).as_secs_f64();
    println!(
        "\ncount by kind: {} in {:.1} ms, {:.0} ns each",
        count.total(),
        time * 1e3,
        time * 1e9 / count.total() as f64
    );
    println!(
        "file: {} bytes an event",
        usage.file_bytes() / events.len() as u64
    );
}

fn budget(entries_max: u32) -> Budget {
    Budget {
        entries_max,
        bytes_max: usize::MAX,
        deadline: None,
        now: 0,
    }
}

fn answer(reader: &Reader, filters: &Rc<[Filter]>, entries: u32) -> usize {
    let mut query = Query::new(
        Rc::clone(filters),
        QueryBounds {
            limit_max: 1_000,
            limit_default: 500,
        },
    );
    let mut given = 0;
    let mut sink = |json: &str| {
        black_box(json);
        given += 1;
    };
    while query
        .slice(reader, &budget(entries), &mut sink)
        .expect("a slice")
        == Progress::More
    {}
    given
}

/// The least CPU time of this thread that each of two works took, in us; rounds alternate.
fn compare(mut work: impl FnMut(), mut floor: impl FnMut()) -> (f64, f64) {
    const CALLS: u32 = 100;
    let mut least = [Duration::MAX; 2];
    for _ in 0..15 {
        for (least, work) in least
            .iter_mut()
            .zip([&mut work as &mut dyn FnMut(), &mut floor])
        {
            let start = clock(libc::CLOCK_THREAD_CPUTIME_ID);
            (0..CALLS).for_each(|_| work());
            *least = (*least).min(clock(libc::CLOCK_THREAD_CPUTIME_ID) - start);
        }
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(CALLS);
    (each(least[0]), each(least[1]))
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of our own, the clock is one of the kernel's.
    assert_eq!(unsafe { libc::clock_gettime(id, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
