//! The client: one thread, epoll, closed loops, and the CPU clock of the server's process.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll;

/// What one round found.
#[derive(Clone, Copy)]
pub struct Figures {
    /// CPU of the server, in microseconds a message or delivery.
    pub cpu_micros: f64,
    /// Messages or deliveries a second.
    pub per_second: f64,
}

/// Connections with one message of `bytes` in flight each.
pub fn echo(
    port: u16,
    server: u32,
    connections: usize,
    bytes: usize,
    seconds: f64,
) -> io::Result<Figures> {
    let sockets = connect(port, connections, None)?;
    let set = ReadySet::new(&sockets)?;
    let (message, mut buffer) = (vec![b'x'; bytes], vec![0; 1 << 16]);
    let mut missing = vec![bytes; connections];
    sockets
        .iter()
        .try_for_each(|mut socket| socket.write_all(&message))?;
    measure(server, seconds, || {
        let mut done = 0;
        set.each_ready(|index| {
            let mut socket = &sockets[index];
            let count = socket.read(&mut buffer)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            missing[index] -= count;
            if missing[index] == 0 {
                missing[index] = bytes;
                done += 1;
                socket.write_all(&message)?;
            }
            Ok(())
        })?;
        Ok(done)
    })
}

/// Rounds of `burst` messages to all subscribers, each begun when the last one is there.
pub fn fanout(
    port: u16,
    server: u32,
    subscribers: usize,
    burst: usize,
    seconds: f64,
) -> io::Result<Figures> {
    let sockets = connect(port, subscribers, Some(b's'))?;
    let mut publisher = connect(port, 1, Some(b'p'))?.remove(0);
    // Everyone is subscribed when the server has read what it was sent, a moment from now.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let set = ReadySet::new(&sockets)?;
    let (messages, mut buffer) = (vec![b'x'; burst * crate::FANOUT_BYTES], vec![0; 1 << 16]);
    measure(server, seconds, || {
        publisher.write_all(&messages)?;
        let mut missing = subscribers * messages.len();
        while missing > 0 {
            set.each_ready(|index| {
                let count = (&sockets[index]).read(&mut buffer)?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                missing -= count;
                Ok(())
            })?;
        }
        Ok(subscribers * burst)
    })
}

/// Repeats `step`, first for a short while unmeasured.
fn measure(
    server: u32,
    seconds: f64,
    mut step: impl FnMut() -> io::Result<usize>,
) -> io::Result<Figures> {
    let warm = Instant::now();
    while warm.elapsed().as_secs_f64() < seconds / 5.0 {
        step()?;
    }
    let (begin, cpu, mut count) = (Instant::now(), cpu_seconds(server)?, 0);
    while begin.elapsed().as_secs_f64() < seconds {
        count += step()?;
    }
    let spent = cpu_seconds(server)? - cpu;
    Ok(Figures {
        cpu_micros: spent * 1e6 / count.max(1) as f64,
        per_second: count as f64 / begin.elapsed().as_secs_f64(),
    })
}

fn connect(port: u16, count: usize, first: Option<u8>) -> io::Result<Vec<TcpStream>> {
    (0..count)
        .map(|_| {
            let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            socket.set_nodelay(true)?;
            first.map_or(Ok(()), |byte| socket.write_all(&[byte]))?;
            Ok(socket)
        })
        .collect()
}

struct ReadySet(OwnedFd);

impl ReadySet {
    fn new(sockets: &[TcpStream]) -> io::Result<ReadySet> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, socket) in sockets.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&set, socket.as_fd(), data, epoll::EventFlags::IN)?;
        }
        Ok(ReadySet(set))
    }

    fn each_ready(&self, mut act: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        let none = epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        };
        let mut events = [none; 256];
        let second = rustix::event::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let count = epoll::wait(&self.0, &mut events[..], Some(&second))?;
        events[..count].iter().try_for_each(|event| {
            let data = event.data;
            act(data.u64() as usize)
        })
    }
}

/// The cores that this thread may run on.
pub fn cores() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// Keeps this thread, and processes that it starts, on one core.
pub fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // Where it fails, the figures are noisier; nothing else.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// A thousand connections need more than the usual soft limit.
pub fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// CPU time of a process, all its threads.
fn cpu_seconds(pid: u32) -> io::Result<f64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let clock = (!pid.cast_signed() << 3) | 2;
    // SAFETY: the call writes one timespec through a pointer to one that lives on this stack.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}
