//! Random frames against the live relay: no crash, no leak, and no neighbour that has to wait.
//!
//! `cargo test` sends a few. A million:
//! `BUZZ_TEST_FRAMES=1000000 cargo test --release --test process frames -- --nocapture`

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::common::raw::{self, Raw};
use crate::common::{Launch, Relay, until};
use crate::resources::{anonymous_bytes, settled_descriptors};

#[path = "../../fuzz/src/mutate.rs"]
mod mutate;

const FRAMES_DEFAULT: u64 = 20_000;
const SENDERS: u64 = 4;
/// Far above what a turn of a shard takes, on a machine that has other things to do as well.
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(5);

#[test]
fn a_flood_of_random_frames_harms_nobody() {
    let frames = std::env::var("BUZZ_TEST_FRAMES").map_or(FRAMES_DEFAULT, |text| {
        text.parse().expect("BUZZ_TEST_FRAMES is a number")
    });
    let relay = Launch::new().set("BUZZ_MAX_FRAME_BYTES", 65_536).start();
    let seeds = ["message", "codec"].map(seeds);
    let address = relay.address;
    let mut neighbours: Vec<Raw> = (0..4).map(|_| Raw::upgraded(address)).collect();
    // What only comes once, such as a thread's buffers, comes before the first look.
    let warm_up = AtomicU64::new(0);
    send_frames(&relay, &warm_up, (frames / 10).min(20_000), 1_000, &seeds);
    settle(&relay, neighbours.len());
    let (memory, descriptors) = (anonymous_bytes(&relay), settled_descriptors(&relay));

    let sent = AtomicU64::new(0);
    let (mut longest, started) = (Duration::ZERO, Instant::now());
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (relay, sent, seeds) = (&relay, &sent, &seeds);
            scope.spawn(move || send_frames(relay, sent, frames, sender, seeds));
        }
        while sent.load(Ordering::Relaxed) < frames {
            for neighbour in &mut neighbours {
                let asked = Instant::now();
                neighbour.send(raw::text("[\"REQ\",\"n\",{\"limit\":1}]"));
                assert_eq!(neighbour.message()[0], "EOSE");
                longest = longest.max(asked.elapsed());
            }
            assert!(longest < NEIGHBOUR_WAIT, "a neighbour waited {longest:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let took = started.elapsed();
    drop(neighbours);
    settle(&relay, 0);
    until("descriptors come back", || {
        (settled_descriptors(&relay) <= descriptors).then_some(())
    });
    let grown = anonymous_bytes(&relay).saturating_sub(memory);
    // They were read, and not only sent: messages that are almost right are answered.
    let of = |series| relay.metric(series, &[]).expect("it exists from start");
    let refused = of("buzz_messages_refused_total") + of("buzz_events_received_total");
    println!(
        "{frames} frames in {took:?}, {refused} refusals; longest wait {longest:?}; {grown} bytes more"
    );
    assert!(refused > frames as f64 / 10.0, "{refused} refusals");
    assert!(grown < 48 << 20, "{grown} bytes more");
    assert_eq!(relay.metric("buzz_ws_panics_total", &[]), Some(0.0));
    relay.stop().expect(0, &[]);
}

fn settle(relay: &Relay, connections: usize) {
    relay.await_metric("buzz_ws_connections_active", &[], |count| {
        count as usize == connections
    });
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let entries = std::fs::read_dir(corpus.join(target)).expect("a corpus");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Sends random frames over one connection after the other until `most` were sent by all.
fn send_frames(relay: &Relay, sent: &AtomicU64, most: u64, sender: u64, seeds: &[Vec<Vec<u8>>; 2]) {
    let mut rng = Rng::with_seed(sender);
    while sent.load(Ordering::Relaxed) < most {
        let mut raw = Raw::upgraded(relay.address);
        raw.bound_write(Duration::from_secs(5));
        // Every other connection keeps to whole frames, or few would live to see a hundred.
        let kinds = if rng.bool() { WHOLE } else { ALL };
        for _ in 0..rng.u32(1..2_000) {
            if sent.fetch_add(1, Ordering::Relaxed) >= most {
                return;
            }
            let frame = random_frame(&mut rng, kinds, seeds);
            if raw.try_send(&frame).is_err() || !raw.skip_received() {
                break;
            }
        }
    }
}

/// Kinds of frames, of a hundred: those that a connection survives, and all.
const WHOLE: u8 = 85;
const ALL: u8 = 100;

fn random_frame(rng: &mut Rng, kinds: u8, [messages, codec]: &[Vec<Vec<u8>>; 2]) -> Vec<u8> {
    match rng.u8(0..kinds) {
        // A message that may be almost right.
        0..60 => {
            let payload = mutate::mutate(rng, messages);
            let payload = String::from_utf8_lossy(&payload);
            raw::text(&payload)
        }
        // A whole frame of any opcode, most often a control frame.
        60..85 => {
            let payload: Vec<u8> = (0..rng.usize(0..126)).map(|_| rng.u8(..)).collect();
            match rng.choice([raw::PING, raw::PONG, raw::TEXT]).unwrap() {
                raw::TEXT => raw::text(&String::from_utf8_lossy(&payload)),
                opcode => raw::frame(0x80 | opcode, &payload),
            }
        }
        // Pieces of a message, or a frame of any first byte.
        85..95 => {
            let any = rng.u8(..);
            let first = rng.choice([raw::TEXT, raw::CONTINUATION, any]).unwrap();
            raw::frame(first, &vec![b'x'; rng.usize(0..3_000)])
        }
        // Frames that are broken in ways of their own.
        95..98 => {
            // A seed's first byte is not sent: it says how the codec's target cuts.
            let input = mutate::mutate(rng, codec);
            input.get(1..).unwrap_or_default().to_vec()
        }
        _ => (0..rng.usize(1..200)).map(|_| rng.u8(..)).collect(),
    }
}
