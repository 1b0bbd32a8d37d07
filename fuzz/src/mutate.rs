//! Changes to inputs, for a driver without coverage: pieces of seeds cut, joined, repeated, and
//! bytes that formats care about.

use fastrand::Rng;

/// Longest input made.
pub const INPUT_BYTES_MAX: usize = 16_384;

const TELLING: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"null",
    b"-0",
    b"1e9",
    b"18446744073709551616",
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"\0",
    b"\xff",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"\x81\x80\0\0\0\0",
    b"\x01\x80\0\0\0\0",
    b"\x80\x80\0\0\0\0",
    b"\x88\x80\0\0\0\0",
    b"\x89\x80\0\0\0\0",
    b"\x81\xfe\xff\xff",
    b"\x81\xff\0\0\0\0\0\x10\0\0",
    b"\xf0",
];

/// An input made from one or two seeds by a few changes.
pub fn mutate(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let seed = |rng: &mut Rng| rng.choice(seeds).cloned().unwrap_or_default();
    let mut input = seed(rng);
    for _ in 0..rng.usize(1..8) {
        let at = rng.usize(0..=input.len());
        let end = at + rng.usize(0..=(input.len() - at).min(64));
        match rng.u8(0..7) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(0..8),
            1 if at < input.len() => input[at] = rng.u8(..),
            2 => drop(input.drain(at..end)),
            3 => {
                let piece = input[at..end].repeat(rng.usize(1..20));
                input.splice(at..at, piece);
            }
            4 => {
                let piece = rng.choice(TELLING).copied().unwrap_or_default();
                input.splice(at..at, piece.iter().copied());
            }
            5 => {
                let other = seed(rng);
                let from = rng.usize(0..=other.len());
                input.truncate(at);
                input.extend(&other[from..]);
            }
            _ => input.truncate(at.max(1)),
        }
        input.truncate(INPUT_BYTES_MAX);
    }
    input
}
