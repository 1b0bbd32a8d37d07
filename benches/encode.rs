//! Instruction counts of laying out what is sent: live events, pages of history, answers.
//!
//! Counted by `scripts/instructions`. The copies are counted as the C library makes them; what the
//! kernel does with the bytes is not here.

#![allow(missing_docs)] // What the macros make.

use std::hint::black_box;
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;

use buzz_uring::limits::BATCH_PARTS_MAX;
use buzz_uring::nostr::testing::Author;
use buzz_uring::nostr::{Event, SubId, message};
use buzz_uring::shard::outbox::{Batch, Shared};
use buzz_uring::store::Row;
use gungraun::{library_benchmark, library_benchmark_group, main};

fn event(content_bytes: usize) -> Event {
    Author::new(1).event(
        1_700_000_000,
        1,
        &[&["t", "nostr"]],
        &"x".repeat(content_bytes),
    )
}

fn sub() -> SubId {
    SubId::new("subscription", 64).expect("an id")
}

/// A queue that has been written once, so that its memory has grown to what it needs.
fn live(content_bytes: usize, burst: usize) -> (Box<Batch>, SubId, Vec<Shared>) {
    let event = Rc::new(Arc::new(event(content_bytes)));
    let (sub, events) = (sub(), vec![event; burst]);
    let mut batch = Box::<Batch>::default();
    events.iter().for_each(|event| batch.push_live(&sub, event));
    batch.clear();
    (batch, sub, events)
}

// What was given is given back, so that no bench counts a free.

#[library_benchmark]
#[bench::one(live(400, 1))]
#[bench::burst_of_16(live(400, 16))]
#[bench::burst_of_16_small(live(50, 16))]
#[bench::burst_of_16_large(live(4_000, 16))]
fn deliver(
    (mut batch, sub, events): (Box<Batch>, SubId, Vec<Shared>),
) -> (Box<Batch>, SubId, Vec<Shared>) {
    for event in black_box(&events) {
        batch.push_live(&sub, event);
    }
    let mut parts = [IoSlice::new(&[]); BATCH_PARTS_MAX];
    black_box(batch.parts(&mut parts));
    (batch, sub, events)
}

fn rows(count: usize) -> (Box<Batch>, SubId, Vec<String>) {
    let json = event(400).json().to_owned();
    (Box::default(), sub(), vec![json; count])
}

#[library_benchmark]
#[bench::rows_1(rows(1))]
#[bench::rows_100(rows(100))]
#[bench::rows_500(rows(500))]
fn page(
    (mut batch, sub, rows): (Box<Batch>, SubId, Vec<String>),
) -> (Box<Batch>, SubId, Vec<String>) {
    for json in black_box(&rows) {
        let expires = None;
        batch.push_row(&sub, Row { json, expires });
    }
    batch.push_text(|out| message::write_eose(out, &sub, None));
    (batch, sub, rows)
}

#[library_benchmark]
#[bench::accepted([7; 32])]
fn ok(id: [u8; 32]) -> Box<Batch> {
    let mut batch = Box::<Batch>::default();
    batch.push_text(|out| message::write_ok(out, black_box(&id), true, None));
    batch
}

library_benchmark_group!(name = encode, benchmarks = [deliver, page, ok]);
main!(library_benchmark_groups = encode);
