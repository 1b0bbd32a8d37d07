//! The runtime seam: the only file that names monoio.
//!
//! A shard is one thread with one runtime, on io_uring where the kernel grants it and on epoll
//! where it does not. What the rest of the shard may use is here: sockets, tasks, pauses. Three
//! properties of the runtime shape this file:
//!
//! - A read future that is dropped while in flight loses the bytes it had. So nothing here reads
//!   asynchronously: a shard waits for readiness and then reads without blocking, which also lets
//!   all its connections share one receive buffer. See `socket`.
//! - A task that wakes itself is queued in front and stops all input and output. So a long job
//!   pauses with [`Turns::next`], which returns only after the ring was looked at once more.
//! - A runtime dropped with operations in flight frees their buffers. So a shard never drops its
//!   runtime; the process ends instead.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};
use rustix::event::EventfdFlags;
use rustix::net::SocketFlags;

use crate::limits::RING_ENTRIES;

/// Which kernel interface drives a shard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Driver {
    /// io_uring with cooperative task running and a single issuer (Linux 6.0).
    UringCooperative,
    /// io_uring without set-up flags (Linux 5.10 and later).
    UringPlain,
    /// epoll, for kernels and containers that refuse io_uring.
    Epoll,
}

impl Driver {
    /// The name that logs, status and metrics use.
    pub fn name(self) -> &'static str {
        match self {
            Driver::UringCooperative | Driver::UringPlain => "io_uring",
            Driver::Epoll => "epoll",
        }
    }

    /// The metric label.
    pub fn label(self) -> crate::metrics::Driver {
        match self {
            Driver::UringCooperative | Driver::UringPlain => crate::metrics::Driver::IoUring,
            Driver::Epoll => crate::metrics::Driver::Epoll,
        }
    }

    /// Asks the kernel for the best driver, from the top of the ladder down.
    ///
    /// Returns the driver, and where it is not the first choice the error of the first.
    pub fn probe() -> (Driver, Option<io::Error>) {
        let first = match try_ring(Driver::UringCooperative) {
            Ok(()) => return (Driver::UringCooperative, None),
            Err(error) => error,
        };
        let driver = if try_ring(Driver::UringPlain).is_ok() {
            Driver::UringPlain
        } else {
            Driver::Epoll
        };
        (driver, Some(first))
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sets a ring up and enters it, with nothing to do. A filter of system calls may allow the one and
/// refuse the other, and a shard on such a ring would serve nobody in silence.
fn try_ring(driver: Driver) -> io::Result<()> {
    let ring = builder(driver).build(RING_ENTRIES)?;
    ring.submitter().submit().map(drop)
}

fn builder(driver: Driver) -> io_uring::Builder {
    let mut builder = io_uring::IoUring::builder();
    if driver == Driver::UringCooperative {
        builder.setup_coop_taskrun().setup_single_issuer();
    }
    builder
}

/// Runs `main` on this thread's runtime. Returns only if the runtime cannot be built, or when
/// `main` ends; the caller then ends the thread or the process without dropping anything in flight.
///
/// # Errors
///
/// What the kernel answered to the ring's or epoll's set-up.
pub fn run<F: Future<Output = ()>>(driver: Driver, main: F) -> io::Result<()> {
    match driver {
        Driver::UringCooperative | Driver::UringPlain => {
            let mut runtime = RuntimeBuilder::<IoUringDriver>::new()
                .uring_builder(builder(driver))
                .with_entries(RING_ENTRIES)
                .enable_timer()
                .build()?;
            runtime.block_on(main);
            std::mem::forget(runtime);
        }
        Driver::Epoll => {
            let mut runtime = RuntimeBuilder::<LegacyDriver>::new()
                .enable_timer()
                .build()?;
            runtime.block_on(main);
            std::mem::forget(runtime);
        }
    }
    Ok(())
}

/// Starts a task on this shard. A panic in it would end the shard: callers guard it.
pub fn spawn<F: Future<Output = ()> + 'static>(task: F) {
    drop(monoio::spawn(task));
}

/// Pauses the calling task.
pub async fn sleep(duration: Duration) {
    monoio::time::sleep(duration).await;
}

/// Lets the tasks go first that are ready now.
pub async fn after_others() {
    let mut has_waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for `future` for at most `duration`. `None`: the time is over and `future` was dropped, so
/// it must not have input or output in flight.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Option<F::Output> {
    monoio::time::timeout(duration, future).await.ok()
}

/// A descriptor that is waited for.
pub struct Pollable {
    // The runtime asks no more of it than that it can be polled.
    stream: TcpStream,
}

impl Pollable {
    /// Takes over a descriptor that does not block.
    ///
    /// # Errors
    ///
    /// If the driver cannot register it.
    pub fn adopt(fd: OwnedFd) -> io::Result<Pollable> {
        let stream = TcpStream::from_std(std::net::TcpStream::from(fd))?;
        Ok(Pollable { stream })
    }

    /// Waits until it can be read.
    ///
    /// # Errors
    ///
    /// What the driver reports.
    pub async fn readable(&self) -> io::Result<()> {
        self.stream.readable(false).await
    }
}

impl AsFd for Pollable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open as long as `self.stream`, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.stream.as_raw_fd()) }
    }
}

/// A listening socket of this shard.
pub struct Listener {
    listener: TcpListener,
}

impl Listener {
    /// Takes over a listening socket that the control thread has bound.
    ///
    /// # Errors
    ///
    /// If the driver cannot register the descriptor.
    pub fn adopt(listener: std::net::TcpListener) -> io::Result<Listener> {
        // `accept` below must never block the shard, whatever the driver.
        listener.set_nonblocking(true)?;
        Ok(Listener {
            listener: TcpListener::from_std(listener)?,
        })
    }

    /// Waits until a connection can be accepted.
    ///
    /// # Errors
    ///
    /// What the driver reports.
    pub async fn readable(&self) -> io::Result<()> {
        self.listener.readable(false).await
    }

    /// Takes one waiting connection without waiting for one.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nobody waits, else the error of accept(2).
    pub fn accept(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        // SAFETY: the listener owns the descriptor and outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(self.listener.as_raw_fd()) };
        let (socket, address) = rustix::net::acceptfrom_with(fd, SocketFlags::CLOEXEC)?;
        let address = address
            .and_then(|address| SocketAddr::try_from(address).ok())
            .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        Ok((socket, address))
    }

    /// Stops listening, now and for every descriptor of this socket: closing alone would wait for
    /// the driver's last operation on it. Whoever waits for it is woken.
    pub fn stop(&self) {
        // SAFETY: as in `accept`.
        let fd = unsafe { BorrowedFd::borrow_raw(self.listener.as_raw_fd()) };
        // It fails only if it has stopped already.
        let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Read);
    }
}

/// Real pauses: a task that awaits [`Turns::next`] goes on after the ring was submitted to and its
/// completions were taken, so that sockets, timers and wakes of the shard have their turn.
///
/// Tasks that pause in the same turn share one operation: an eventfd that is always ready.
pub struct Turns {
    waiting: RefCell<Vec<Waker>>,
    /// Those of [`Turns::next_alone`], in the order they came.
    alone: RefCell<VecDeque<Rc<Place>>>,
    turn: Cell<u64>,
    idle: RefCell<Option<Waker>>,
}

/// A place in the queue of [`Turns::next_alone`]; given up when only the queue holds it.
#[derive(Default)]
struct Place {
    called: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Turns {
    /// Makes the shard's turns and starts the task that ends them.
    ///
    /// # Errors
    ///
    /// If no eventfd can be had.
    pub fn start(driver: Driver) -> io::Result<Rc<Turns>> {
        let ready = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bell = ready.try_clone()?;
        let ready = TcpStream::from_std(std::net::TcpStream::from(ready))?;
        let turns = Rc::new(Turns {
            waiting: RefCell::new(Vec::new()),
            alone: RefCell::default(),
            turn: Cell::new(0),
            idle: RefCell::new(None),
        });
        let this = turns.clone();
        spawn(async move {
            loop {
                this.somebody_waits().await;
                match driver {
                    Driver::Epoll => ring_the_bell(&ready, &bell).await,
                    _ => drop(ready.readable(false).await),
                }
                this.turn.set(this.turn.get() + 1);
                // Waking only queues the tasks, so nobody can borrow this list meanwhile.
                for waker in this.waiting.borrow_mut().drain(..) {
                    waker.wake();
                }
                this.call_one();
            }
        });
        Ok(turns)
    }

    /// Calls the first of those who want a turn of their own, and is still there.
    fn call_one(&self) {
        let mut places = self.alone.borrow_mut();
        while let Some(place) = places.pop_front() {
            if Rc::strong_count(&place) > 1 {
                place.called.set(true);
                return place.waker.take().map_or((), Waker::wake);
            }
        }
    }

    /// Waits for a turn that no other caller of this has: for work that takes so long that a turn
    /// bears one of it. First come, first served.
    pub async fn next_alone(&self) {
        let place = Rc::new(Place::default());
        self.alone.borrow_mut().push_back(place.clone());
        poll_fn(|context| {
            if place.called.get() {
                return Poll::Ready(());
            }
            place.waker.set(Some(context.waker().clone()));
            if let Some(idle) = self.idle.borrow_mut().take() {
                idle.wake();
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits for the shard's next turn.
    pub async fn next(&self) {
        let turn = self.turn.get();
        poll_fn(|context| {
            if self.turn.get() != turn {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            if let Some(idle) = self.idle.borrow_mut().take() {
                idle.wake();
            }
            Poll::Pending
        })
        .await;
    }

    /// Whether somebody waits for the next turn.
    pub fn are_wanted(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    async fn somebody_waits(&self) {
        poll_fn(|context| {
            if !self.waiting.borrow().is_empty() || !self.alone.borrow().is_empty() {
                return Poll::Ready(());
            }
            *self.idle.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// On epoll a descriptor that stays ready is reported once. So the wait is started first, with the
/// eventfd empty, and the bell is rung after: the event is new and goes through the driver.
async fn ring_the_bell(ready: &TcpStream, bell: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(bell, &mut count);
    let mut wait = pin!(ready.readable(false));
    let mut rung = false;
    poll_fn(|context| {
        let answer = wait.as_mut().poll(context);
        if !rung {
            rung = true;
            let _ = rustix::io::write(bell.as_fd(), &1u64.to_ne_bytes());
        }
        answer.map(drop)
    })
    .await;
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Instant;

    pub fn drivers() -> Vec<Driver> {
        vec![Driver::probe().0, Driver::Epoll]
    }

    /// Runs `main` on a thread of its own and gives back its result; runtimes do not nest.
    pub fn on_shard<T, F>(driver: Driver, main: impl FnOnce() -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let thread = std::thread::spawn(move || {
            let mut result = None;
            run(driver, async { result = Some(main().await) }).expect("runtime");
            result.expect("main ran")
        });
        thread.join().expect("shard thread")
    }

    pub fn pair() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let client = std::net::TcpStream::connect(listener.local_addr().expect("address"));
        let (server, _) = listener.accept().expect("accept");
        (server.into(), client.expect("connect"))
    }

    #[test]
    fn a_pausing_loop_lets_timers_and_sockets_go_on() {
        for driver in drivers() {
            let turns = on_shard(driver, move || async move {
                let turns = Turns::start(driver).expect("eventfd");
                let (server, mut client) = pair();
                rustix::io::ioctl_fionbio(&server, true).expect("a flag");
                let server = Pollable::adopt(server).expect("adopt");
                let echoed = Rc::new(Cell::new(false));
                let done = echoed.clone();
                spawn(async move {
                    server.readable().await.expect("readable");
                    let mut buffer = [0; 16];
                    assert_eq!(rustix::io::read(&server, &mut buffer), Ok(5));
                    sleep(Duration::from_millis(2)).await;
                    done.set(true);
                });
                io::Write::write_all(&mut client, b"hello").expect("write");
                let mut count = 0_u64;
                let start = Instant::now();
                while !echoed.get() {
                    turns.next().await;
                    count += 1;
                    assert!(start.elapsed() < Duration::from_secs(20), "starved");
                }
                count
            });
            assert!(turns > 0);
        }
    }

    #[test]
    fn turns_are_shared_by_all_who_pause() {
        for driver in drivers() {
            let (count, turn) = on_shard(driver, move || async move {
                let turns = Turns::start(driver).expect("eventfd");
                let count = Rc::new(Cell::new(0));
                for _ in 0..100 {
                    let (turns, count) = (turns.clone(), count.clone());
                    spawn(async move {
                        turns.next().await;
                        count.set(count.get() + 1);
                    });
                }
                while count.get() < 100 {
                    turns.next().await;
                }
                (count.get(), turns.turn.get())
            });
            assert_eq!(count, 100);
            assert!(turn < 20, "{turn} turns for one pause of a hundred tasks");
        }
    }

    #[test]
    fn who_wants_a_turn_alone_gets_it_in_the_order_of_coming() {
        for driver in drivers() {
            let order = on_shard(driver, move || async move {
                let turns = Turns::start(driver).expect("eventfd");
                let order = Rc::new(RefCell::new(Vec::new()));
                let given_up = Box::pin(turns.next_alone());
                for number in 0..3 {
                    let (turns, order) = (turns.clone(), order.clone());
                    spawn(async move {
                        for _ in 0..2 {
                            turns.next_alone().await;
                            order.borrow_mut().push((number, turns.turn.get()));
                        }
                    });
                }
                // Nobody waits for its place: it costs no turn.
                drop(given_up);
                while order.borrow().len() < 6 {
                    turns.next().await;
                }
                order.take()
            });
            let numbers: Vec<_> = order.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers, [0, 1, 2, 0, 1, 2]);
            let alone = order.windows(2).all(|pair| pair[0].1 < pair[1].1);
            assert!(alone, "{order:?}");
        }
    }
}
