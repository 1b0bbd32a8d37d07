//! A server that echoes messages through the relay's codec, for conformance suites.
//!
//! `cargo run --example ws_echo 127.0.0.1:9001`; port 0 takes a free one, and the first line says
//! which. `scripts/autobahn` runs the Autobahn cases against it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use buzz_uring::limits::FRAME_BYTES_MAX;
use buzz_uring::ws::handshake::{write_head_error, write_switching_protocols};
use buzz_uring::ws::{Decoder, Fault, HeadError, Item, Opcode, Upgrade, frame, parse_head};

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:9001".into());
    let listener = TcpListener::bind(address)?;
    println!("{}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || serve(stream));
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut held = Vec::new();
    let mut out = Vec::new();
    if let Err(error) = shake_hands(&mut stream, &mut held, &mut out)? {
        write_head_error(&mut out, error);
        return hang_up(stream, &out);
    }
    let mut decoder = Decoder::new(FRAME_BYTES_MAX);
    loop {
        let outcome = echo(&mut decoder, &mut held, &mut out);
        if let Err(fault) = outcome {
            frame::write_close(&mut out, Some(fault.close_code()), fault.text());
        }
        if outcome != Ok(false) {
            return hang_up(stream, &out);
        }
        stream.write_all(&out)?;
        out.clear();
        if !receive(&mut stream, &mut held)? {
            return Ok(());
        }
    }
}

fn shake_hands(
    stream: &mut TcpStream,
    held: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> io::Result<Result<(), HeadError>> {
    while receive(stream, held)? {
        let head = match parse_head(held) {
            Ok(None) => continue,
            Ok(Some(head)) => head,
            Err(error) => return Ok(Err(error)),
        };
        match head.upgrade {
            Upgrade::WebSocket { key } => write_switching_protocols(out, key),
            Upgrade::Bad(error) => return Ok(Err(error)),
            Upgrade::None => return Ok(Err(HeadError::Tokens)),
        }
        let len = head.len;
        held.drain(..len);
        return Ok(Ok(()));
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// Answers all that is held; true after a close.
fn echo(decoder: &mut Decoder, held: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<bool, Fault> {
    let mut start = 0;
    loop {
        let decoded = decoder.next(&mut held[start..])?;
        match decoded.item {
            None if decoded.consumed == 0 => break,
            None | Some(Item::Pong(_)) => {}
            Some(Item::Text(text)) => frame::write_frame(out, Opcode::Text, text.as_bytes()),
            Some(Item::Binary(bytes)) => frame::write_frame(out, Opcode::Binary, bytes),
            Some(Item::Ping(bytes)) => frame::write_frame(out, Opcode::Pong, bytes),
            Some(Item::Close { code, .. }) => {
                frame::write_close(out, code, "");
                return Ok(true);
            }
        }
        start += decoded.consumed;
    }
    held.drain(..start);
    Ok(false)
}

fn receive(stream: &mut TcpStream, held: &mut Vec<u8>) -> io::Result<bool> {
    let mut read = [0; 16_384];
    let len = stream.read(&mut read)?;
    held.extend_from_slice(&read[..len]);
    Ok(len > 0)
}

/// Sends the last words, and reads on until the peer has them.
fn hang_up(mut stream: TcpStream, out: &[u8]) -> io::Result<()> {
    stream.write_all(out)?;
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream, &mut io::sink()).map(drop)
}
