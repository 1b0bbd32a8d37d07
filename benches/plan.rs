//! Instruction counts of plans: which runs of an index answer a filter, and when a drain closes whom.
//!
//! Counted by `scripts/instructions`.

#![allow(missing_docs)] // What the macros make.

use std::hint::black_box;
use std::time::Duration;

use buzz_uring::drain::plan as drain_plan;
use buzz_uring::nostr::Filter;
use buzz_uring::store::embedded::plan;
use gungraun::{library_benchmark, library_benchmark_group, main};

fn filter(text: &str) -> Filter {
    Filter::parse(text, 1_000).expect("a filter")
}

fn feed(authors: u64) -> Filter {
    let authors: Vec<String> = (0..authors).map(|n| format!("{n:064x}")).collect();
    filter(&serde_json::json!({ "authors": authors, "kinds": [1, 6] }).to_string())
}

#[library_benchmark]
#[bench::id(filter(
    r#"{"ids":["abababababababababababababababababababababababababababababababab"]}"#
))]
#[bench::author_kind(feed(1))]
#[bench::feed_of_50(feed(50))]
#[bench::tag(filter(r##"{"#t":["nostr","rust"],"since":1700000000}"##))]
#[bench::newest(filter("{}"))]
fn query(filter: Filter) -> (impl Sized, Filter) {
    // Given back, so that dropping them is not counted.
    (plan(black_box(&filter)), filter)
}

#[library_benchmark]
#[bench::connections_10000([5_000, 5_000])]
fn drain(connections: [usize; 2]) -> Vec<Vec<Duration>> {
    drain_plan::plan(black_box(&connections), Duration::from_secs(20), 1)
}

library_benchmark_group!(name = plans, benchmarks = [query, drain]);
main!(library_benchmark_groups = plans);
