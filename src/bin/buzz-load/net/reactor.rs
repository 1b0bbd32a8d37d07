//! The loop: waits for the kernel, reads, and tells what came.

use std::io;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{Conn, ConnId, Event, Net, Notice, State};
use crate::codec::{self, Decoder, Opcode};
use crate::limits;
use crate::schedule::Nanos;

/// The loop's own buffers.
pub struct Reactor {
    buffer: Vec<u8>,
    ready: Vec<epoll::Event>,
    last_sweep: Nanos,
}

impl Reactor {
    /// Buffers at their first size.
    pub fn new() -> Reactor {
        Reactor {
            buffer: vec![0; limits::READ_BYTES],
            ready: Vec::with_capacity(limits::READY_MAX),
            last_sweep: 0,
        }
    }

    /// Sends what is queued, waits at most `wait` nanoseconds for something to happen, and tells
    /// everything that did. `clock` gives the time since the start of the run.
    ///
    /// # Errors
    /// The kernel's refusal to wait.
    pub fn turn(
        &mut self,
        net: &mut Net,
        wait: Nanos,
        clock: impl Fn() -> Nanos,
        tell: &mut dyn FnMut(&mut Net, Notice<'_>, Nanos),
    ) -> io::Result<()> {
        let now = clock();
        net.begin(now, |net, notice| tell(net, notice, now));
        net.flush();
        self.ready.clear();
        let timeout = rustix::event::Timespec {
            tv_sec: (wait / 1_000_000_000) as i64,
            tv_nsec: (wait % 1_000_000_000) as i64,
        };
        let space = rustix::buffer::spare_capacity(&mut self.ready);
        match epoll::wait(&net.epoll, space, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for index in 0..self.ready.len() {
            let event = self.ready[index];
            let id = ConnId(event.data.u64());
            self.one(net, id, event.flags, &clock, tell);
            net.flush();
            Self::tell_broken(net, &clock, tell);
        }
        Self::tell_broken(net, &clock, tell);
        self.sweep(net, clock(), tell);
        Ok(())
    }

    fn one(
        &mut self,
        net: &mut Net,
        id: ConnId,
        flags: epoll::EventFlags,
        clock: &impl Fn() -> Nanos,
        tell: &mut dyn FnMut(&mut Net, Notice<'_>, Nanos),
    ) {
        let Some(conn) = net.get_mut(id) else { return };
        if matches!(conn.state, State::Connecting) {
            if let Err(why) = net.connected(id) {
                net.broken.push((id, why));
            }
            return;
        }
        if flags.contains(epoll::EventFlags::OUT) {
            net.flush_one(id);
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
            && let Err(why) = self.read(net, id, clock, tell)
        {
            net.broken.push((id, why));
        }
    }

    /// One read, and every message that it completed. An error ends the connection.
    fn read(
        &mut self,
        net: &mut Net,
        id: ConnId,
        clock: &impl Fn() -> Nanos,
        tell: &mut dyn FnMut(&mut Net, Notice<'_>, Nanos),
    ) -> Result<(), String> {
        let Some(conn) = net.get_mut(id) else {
            return Ok(());
        };
        let (owner, tag) = (conn.owner, conn.tag);
        let held = conn.rest.len();
        if held + limits::READ_BYTES / 2 > self.buffer.len() {
            self.buffer.resize(held * 2, 0);
        }
        self.buffer[..held].copy_from_slice(&conn.rest);
        let count =
            match rustix::net::recv(&conn.socket, &mut self.buffer[held..], RecvFlags::empty()) {
                Ok((0, _)) => return Err("the relay closed the connection".into()),
                Ok((count, _)) => count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(error) => return Err(format!("receive: {error}")),
            };
        let mut decoder = std::mem::take(&mut conn.decoder);
        net.received_bytes += count as u64;
        let now = clock();
        let input = &self.buffer[..held + count];
        let mut start = 0;
        if let Some(Conn {
            state: State::Upgrading { key },
            ..
        }) = net.get(id)
        {
            match codec::parse_response(input, key)? {
                None => start = 0,
                Some(head) => {
                    start = head;
                    net.opening -= 1;
                    if let Some(conn) = net.get_mut(id) {
                        conn.state = State::Open;
                    }
                    tell(
                        net,
                        Notice {
                            owner,
                            tag,
                            conn: id,
                            event: Event::Opened,
                        },
                        now,
                    );
                }
            }
        }
        if matches!(
            net.get(id),
            Some(Conn {
                state: State::Open,
                ..
            })
        ) {
            start += deliver(
                net,
                id,
                (owner, tag),
                &mut decoder,
                &input[start..],
                now,
                tell,
            )?;
        }
        if let Some(conn) = net.get_mut(id) {
            conn.decoder = decoder;
            conn.rest.clear();
            conn.rest.extend_from_slice(&input[start..]);
        }
        Ok(())
    }

    fn tell_broken(
        net: &mut Net,
        clock: &impl Fn() -> Nanos,
        tell: &mut dyn FnMut(&mut Net, Notice<'_>, Nanos),
    ) {
        while let Some((id, why)) = net.broken.pop() {
            if let Some((owner, tag)) = net.remove(id) {
                let event = Event::Closed(&why);
                tell(
                    net,
                    Notice {
                        owner,
                        tag,
                        conn: id,
                        event,
                    },
                    clock(),
                );
            }
        }
    }

    /// Once a second: connections that took too long to open are given up.
    fn sweep(
        &mut self,
        net: &mut Net,
        now: Nanos,
        tell: &mut dyn FnMut(&mut Net, Notice<'_>, Nanos),
    ) {
        if net.opening == 0 || now < self.last_sweep + 1_000_000_000 {
            return;
        }
        self.last_sweep = now;
        let late = |conn: &Conn| {
            !matches!(conn.state, State::Open)
                && now.saturating_sub(conn.since) > limits::OPEN_SECONDS_MAX * 1_000_000_000
        };
        let given_up: Vec<ConnId> = net
            .conns
            .iter()
            .filter(|(_, conn)| late(conn))
            .map(|(_, conn)| conn.id)
            .collect();
        net.broken.extend(
            given_up
                .into_iter()
                .map(|id| (id, "no upgrade in time".into())),
        );
        Self::tell_broken(net, &|| now, tell);
    }
}

/// Tells every whole message of `input`; gives the bytes that are done with.
fn deliver(
    net: &mut Net,
    id: ConnId,
    (owner, tag): (usize, u32),
    decoder: &mut Decoder,
    input: &[u8],
    now: Nanos,
    tell: &mut dyn FnMut(&mut Net, Notice<'_>, Nanos),
) -> Result<usize, String> {
    let mut start = 0;
    loop {
        let decoded = decoder.next(&input[start..])?;
        start += decoded.consumed;
        let event = match decoded.item {
            None if decoded.consumed == 0 => return Ok(start),
            None | Some(codec::Item::Binary(_)) => continue,
            Some(codec::Item::Text(text)) => Event::Text(text),
            Some(codec::Item::Pong(payload)) => Event::Pong(payload),
            Some(codec::Item::Ping(payload)) => {
                net.frame(id, Opcode::Pong, payload);
                continue;
            }
            Some(codec::Item::Close(code)) => {
                return Err(format!(
                    "the relay closed with {}",
                    code.map_or("no code".into(), |code| code.to_string())
                ));
            }
        };
        tell(
            net,
            Notice {
                owner,
                tag,
                conn: id,
                event,
            },
            now,
        );
        // The workload may have ended the connection.
        if net.get(id).is_none() {
            return Ok(input.len());
        }
    }
}
