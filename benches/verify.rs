//! What an event costs before it is stored, as ratios within one run: `cargo bench --bench verify`.
//!
//! CPU time of this thread, the least of many rounds, all candidates interleaved. The signature
//! check with its key parsed anew is 1; absolute times depend on the machine, ratios hardly.

#![allow(unsafe_code)] // The thread's CPU clock has no safe form among the crates in use.

use std::hint::black_box;

use buzz_uring::nostr::{Event, Verifier, testing::Author};

const ROUNDS: usize = 15;
const EVENTS: usize = 256;

/// As serde_json reads it, with the same checks of keys.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Derived<'a> {
    id: &'a str,
    pubkey: &'a str,
    created_at: u64,
    kind: u16,
    #[serde(borrow)]
    tags: Vec<Vec<std::borrow::Cow<'a, str>>>,
    #[serde(borrow)]
    content: std::borrow::Cow<'a, str>,
    sig: &'a str,
}

/// A name, and what to do with the event of a number.
type Candidate<'a> = (&'static str, Box<dyn FnMut(usize) + 'a>);

fn main() {
    let (id, key) = ("ab".repeat(32), "cd".repeat(32));
    let content = "A note of a usual length,\nwith a \"quoted\" word and a second line. ".repeat(2);
    let texts: Vec<String> = (0..EVENTS as u64)
        .map(|n| Author::new(n).json(n, 1, &[&["e", &id], &["p", &key]], &content))
        .collect();
    // The same events with an escape that is not canonical: their ids take the long way.
    let escaped: Vec<String> = texts
        .iter()
        .map(|text| text.replace("usual", "\\u0075sual"))
        .collect();
    let read = |texts: &[String]| -> Vec<Event> {
        texts
            .iter()
            .map(|text| Event::parse(text).expect("an event"))
            .collect()
    };
    let (events, escaped) = (read(&texts), read(&escaped));
    let mut bare = Verifier::new(0);
    let mut cached = Verifier::default();

    let mut candidates: Vec<Candidate<'_>> = vec![
        (
            "signature, key parsed anew",
            Box::new(|n| assert!(bare.verify(&events[n]))),
        ),
        (
            "signature, key remembered",
            Box::new(|n| assert!(cached.verify(&events[n]))),
        ),
        (
            "id, text is canonical",
            Box::new(|n| assert!(events[n].id_matches())),
        ),
        (
            "id, text rebuilt",
            Box::new(|n| assert!(escaped[n].id_matches())),
        ),
        (
            "scan and normalize",
            Box::new(|n| drop(black_box(Event::parse(&texts[n])))),
        ),
        (
            "serde_json alone, for scale",
            Box::new(|n| drop(black_box(serde_json::from_str::<Derived>(&texts[n])))),
        ),
    ];
    let mut least = vec![f64::INFINITY; candidates.len()];
    for _ in 0..ROUNDS {
        for ((_, run), least) in candidates.iter_mut().zip(&mut least) {
            let start = thread_cpu_ns();
            for n in 0..EVENTS {
                run(n);
            }
            *least = least.min((thread_cpu_ns() - start) as f64 / EVENTS as f64);
        }
    }
    println!(
        "one event of {} bytes, {EVENTS} authors, least of {ROUNDS} rounds",
        texts[0].len()
    );
    for ((name, _), ns) in candidates.iter().zip(&least) {
        println!("{name:30} {ns:9.0} ns  {:7.4}", ns / least[0]);
    }
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place to write one timespec, for the length of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
