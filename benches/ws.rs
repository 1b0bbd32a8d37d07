//! Instructions of the WebSocket codec, counted under valgrind: equal from run to run, whatever
//! else the machine does.
//!
//! `scripts/instructions`, or with gungraun's runner `cargo bench --bench ws`.

#![allow(missing_docs)] // the macros make items of their own

use std::hint::black_box;

use buzz_uring::limits::FRAME_BYTES_DEFAULT;
use buzz_uring::ws::handshake::write_switching_protocols;
use buzz_uring::ws::{Decoder, Opcode, frame, parse_head};
use gungraun::prelude::*;

/// A client's text frame of `len` bytes of ASCII, as most of Nostr is.
fn text_frame(len: usize) -> (Decoder, Vec<u8>) {
    // The first check of a long text looks up what the processor can do: not to be counted.
    let mut decoder = Decoder::new(FRAME_BYTES_DEFAULT);
    decoder.next(&mut masked(500)).expect("a good frame");
    (decoder, masked(len))
}

fn masked(len: usize) -> Vec<u8> {
    let mut input = Vec::new();
    frame::write_header(&mut input, Opcode::Text, len);
    input[1] |= 0x80;
    let key = [0x37, 0xfa, 0x21, 0x3d];
    input.extend(key);
    let payload = input.len();
    input.resize(payload + len, b'x');
    frame::unmask(&mut input[payload..], key);
    input
}

/// What a browser sends.
fn request() -> Vec<u8> {
    b"GET / HTTP/1.1\r\n\
      Host: relay.example.com\r\n\
      Connection: Upgrade\r\n\
      Pragma: no-cache\r\n\
      Cache-Control: no-cache\r\n\
      User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
      Upgrade: websocket\r\n\
      Origin: https://client.example.com\r\n\
      Sec-WebSocket-Version: 13\r\n\
      Accept-Encoding: gzip, deflate, br, zstd\r\n\
      Accept-Language: en-US,en;q=0.5\r\n\
      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
      Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        .to_vec()
}

// What was given is given back, so that no bench counts a free.

#[library_benchmark]
#[bench::text_100(text_frame(100))]
#[bench::text_500(text_frame(500))]
#[bench::text_4000(text_frame(4_000))]
fn decode((mut decoder, mut input): (Decoder, Vec<u8>)) -> (Decoder, Vec<u8>) {
    let _ = black_box(decoder.next(black_box(&mut input)));
    (decoder, input)
}

#[library_benchmark]
#[bench::len_100(100)]
#[bench::len_500(500)]
#[bench::len_70000(70_000)]
fn encode_header(len: usize) -> ([u8; 10], usize) {
    black_box(frame::header(black_box(Opcode::Text), black_box(len)))
}

#[library_benchmark]
#[bench::browser(request())]
fn parse_request(request: Vec<u8>) -> Vec<u8> {
    let _ = black_box(parse_head(black_box(&request)));
    request
}

#[library_benchmark]
#[bench::rfc_6455(Vec::with_capacity(256))]
fn switch_protocols(mut out: Vec<u8>) -> Vec<u8> {
    write_switching_protocols(&mut out, black_box("dGhlIHNhbXBsZSBub25jZQ=="));
    out
}

library_benchmark_group!(
    name = codec,
    benchmarks = [decode, encode_header, parse_request, switch_protocols]
);

main!(library_benchmark_groups = codec);
