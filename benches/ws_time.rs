//! CPU time of the WebSocket codec beside sockudo-ws, both in one process, turn by turn; the least
//! of many rounds, because other work on the machine only ever adds.
//!
//! `cargo bench --bench ws_time`. Compare the ratios; the nanoseconds are one machine's.

#![allow(unsafe_code)] // one clock that std does not have

use std::hint::black_box;

use buzz_uring::limits::FRAME_BYTES_DEFAULT;
use buzz_uring::ws::{Decoder, Item, Opcode, frame};
use bytes::BytesMut;
use sockudo_ws::protocol::{Message, Protocol, Role};

const FRAMES: usize = 64;
const PASSES: usize = 200;
const ROUNDS: usize = 25;

fn main() {
    println!(
        "ns of CPU a message, {FRAMES} masked text frames a buffer, copy of the wire included"
    );
    println!(
        "{:>8} {:>8} {:>8} {:>12} {:>8}",
        "bytes", "copy", "ours", "sockudo-ws", "ratio"
    );
    for (name, unit) in [("ascii", "x"), ("mixed", "wörd 😀 ")] {
        for len in [100, 500, 4_000] {
            let payload: Vec<u8> = unit
                .bytes()
                .cycle()
                .take(len / unit.len() * unit.len())
                .collect();
            let wire = client_frame(&payload).repeat(FRAMES);
            let [copy, ours, theirs] = least([
                &mut copying(&wire),
                &mut by_ours(&wire),
                &mut by_sockudo(&wire),
            ]);
            let ratio = theirs / ours;
            println!("{len:>8} {copy:>8.1} {ours:>8.1} {theirs:>12.1} {ratio:>8.2}  {name}");
        }
    }

    println!("\nns of CPU to unmask");
    println!(
        "{:>8} {:>8} {:>12} {:>8}",
        "bytes", "ours", "byte-wise", "ratio"
    );
    for len in [100, 500, 4_000] {
        let mut bytes = vec![b'x'; len * FRAMES];
        let mut more = bytes.clone();
        let [ours, bytewise] = least([
            &mut || {
                bytes
                    .chunks_mut(len)
                    .for_each(|chunk| frame::unmask(chunk, black_box(KEY)))
            },
            &mut || {
                more.chunks_mut(len)
                    .for_each(|chunk| unmask_bytewise(chunk, black_box(KEY)))
            },
        ]);
        println!(
            "{len:>8} {ours:>8.1} {bytewise:>12.1} {:>8.2}",
            bytewise / ours
        );
    }
}

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

fn client_frame(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_header(&mut out, Opcode::Text, payload.len());
    out[1] |= 0x80;
    out.extend(KEY);
    let start = out.len();
    out.extend(payload);
    frame::unmask(&mut out[start..], KEY);
    out
}

/// What both pay for a fresh wire.
fn copying(wire: &[u8]) -> impl FnMut() {
    let mut held = Vec::with_capacity(wire.len());
    move || {
        held.clear();
        held.extend_from_slice(black_box(wire));
        black_box(&mut held);
    }
}

fn by_ours(wire: &[u8]) -> impl FnMut() {
    let mut decoder = Decoder::new(FRAME_BYTES_DEFAULT);
    let mut held = Vec::with_capacity(wire.len());
    move || {
        held.clear();
        held.extend_from_slice(black_box(wire));
        let (mut start, mut messages) = (0, 0);
        loop {
            let decoded = decoder.next(&mut held[start..]).expect("good frames");
            if let Some(Item::Text(text)) = decoded.item {
                black_box(text);
                messages += 1;
            }
            if decoded.consumed == 0 {
                break;
            }
            start += decoded.consumed;
        }
        assert_eq!(messages, FRAMES);
    }
}

fn by_sockudo(wire: &[u8]) -> impl FnMut() {
    let mut protocol = Protocol::new(Role::Server, FRAME_BYTES_DEFAULT, FRAME_BYTES_DEFAULT);
    let mut held = BytesMut::with_capacity(wire.len());
    let mut messages = Vec::with_capacity(FRAMES);
    move || {
        held.clear();
        held.extend_from_slice(black_box(wire));
        protocol
            .process_into(&mut held, &mut messages)
            .expect("good frames");
        for message in messages.drain(..) {
            if let Message::Text(text) = message {
                black_box(&text[..]);
            }
        }
    }
}

fn unmask_bytewise(payload: &mut [u8], key: [u8; 4]) {
    for (i, byte) in payload.iter_mut().enumerate() {
        *byte ^= key[i % 4];
    }
}

/// The least time of each subject over all rounds, in ns a frame.
fn least<const N: usize>(mut subjects: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut least = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for (subject, least) in subjects.iter_mut().zip(&mut least) {
            let start = thread_cpu_ns();
            for _ in 0..PASSES {
                subject();
            }
            let took = (thread_cpu_ns() - start) as f64 / (PASSES * FRAMES) as f64;
            *least = least.min(took);
        }
    }
    least
}

fn thread_cpu_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec to write to, and the clock exists on every Linux.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    assert_eq!(failed, 0);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
