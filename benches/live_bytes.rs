//! What a subscription occupies, by a counting allocator.
//!
//! `cargo bench --bench live_bytes`. Bytes are what was asked of the allocator; its own overhead and
//! rounding come on top. A table that doubles is sometimes half empty: the counts are taken over
//! many sizes, and the least and the most are shown. Also asserts that matching allocates nothing
//! and that removal leaves nothing.

// A global allocator is unsafe to implement; this one only counts, then asks the system's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use buzz_uring::live::{SubKey, Subscriptions};
use buzz_uring::nostr::Filter;
use buzz_uring::nostr::testing::Author;

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged, whose contract is the same.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `memory` came from `System` with this layout, by `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SUBSCRIPTIONS_MAX: u64 = 40_000;

fn main() {
    println!(
        "bytes a subscription: all of it (least–most over sizes), its parsed filter meanwhile"
    );
    let author = |n: u64| format!("\"{n:064x}\"");
    measure("an author", |n| format!("{{\"authors\":[{}]}}", author(n)));
    measure("an author and kind", |n| {
        format!("{{\"authors\":[{}],\"kinds\":[1]}}", author(n))
    });
    measure("a popular kind", |_| "{\"kinds\":[1]}".to_owned());
    measure("mentions, 4 kinds", |n| {
        format!("{{\"#p\":[{}],\"kinds\":[1,6,7,9735]}}", author(n))
    });
    measure("a feed of 100, 2 kinds", |n| {
        let authors: Vec<String> = (0..100)
            .map(|i| author(n * 7_919 % 50_000 + i * 31))
            .collect();
        format!("{{\"authors\":[{}],\"kinds\":[1,6]}}", authors.join(","))
    });
}

fn measure(title: &str, shape: impl Fn(u64) -> String) {
    let event = Author::new(1).note(1, "");
    let mut subscriptions = Subscriptions::new();
    let mut out = Vec::with_capacity(SUBSCRIPTIONS_MAX as usize);
    let mut places = Vec::with_capacity(SUBSCRIPTIONS_MAX as usize);
    let empty = BYTES.load(Ordering::Relaxed);
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    let (mut parsed_bytes, mut kept_bytes) = (0, 0);
    for number in 0..SUBSCRIPTIONS_MAX {
        let before = BYTES.load(Ordering::Relaxed);
        let filter = [Filter::parse(&shape(number), 1_000).unwrap()];
        parsed_bytes += BYTES.load(Ordering::Relaxed) - before + size_of_val(&filter);
        places.push(subscriptions.insert(SubKey(number), &filter));
        drop(filter);
        kept_bytes = BYTES.load(Ordering::Relaxed) - empty;
        if number >= SUBSCRIPTIONS_MAX / 4 {
            let each = kept_bytes as f64 / (number + 1) as f64;
            (least, most) = (least.min(each), most.max(each));
        }
    }
    let count = SUBSCRIPTIONS_MAX as f64;
    println!(
        "{title:>24}: {least:>6.0}–{most:<6.0} {:>6.0}",
        parsed_bytes as f64 / count
    );
    let calls = CALLS.load(Ordering::Relaxed);
    (0..10).for_each(|_| subscriptions.matching(&event, &mut out));
    assert_eq!(
        CALLS.load(Ordering::Relaxed),
        calls,
        "matching allocates nothing"
    );
    for (number, place) in (0..).zip(places.iter()) {
        assert!(subscriptions.remove(*place, SubKey(number)).is_some());
    }
    let left = BYTES.load(Ordering::Relaxed) - empty;
    // Tables below the size that is worth shrinking.
    assert!(left <= 64 << 10, "{left} bytes left of {kept_bytes}");
}
