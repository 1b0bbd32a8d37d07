//! What a message through a mailbox costs, beside the channels of std and tokio in the same run.
//!
//! `cargo bench --bench mailbox`. Two tables: one thread that pushes a batch and takes it, which is
//! the work alone; and two threads, where the receiver sleeps and is woken, which depends on the
//! machine and its other load. Rounds of all three are interleaved, the best round of each counts:
//! read the ratios.

use std::hint::black_box;
use std::sync::mpsc as std_mpsc;
use std::thread;
use std::time::Instant;

use buzz_uring::shard::mailbox::Mailbox;
use futures::executor::block_on;
use tokio::sync::mpsc as tokio_mpsc;

const ROUNDS: usize = 15;
const MESSAGES: usize = 192_000;
/// Bound of the mailbox and of tokio's channel, in messages. std's is used without a bound, which
/// favours it.
const BOUND: usize = 4_096;

/// As large as a shared event with its sequence number.
type Message = (u64, u64);

fn main() {
    // `cargo test --benches` only asks whether it runs.
    let (rounds, messages) = if std::env::args().any(|argument| argument == "--bench") {
        (ROUNDS, MESSAGES)
    } else {
        (1, 1_920)
    };
    table(
        "one thread, push and take",
        rounds,
        messages,
        &[alone_mailbox, alone_std, alone_tokio],
    );
    table(
        "two threads",
        rounds,
        messages,
        &[apart_mailbox, apart_std, apart_tokio],
    );
}

/// Sends that many messages in batches of that size.
type Run = fn(usize, usize);

fn table(title: &str, rounds: usize, messages: usize, runs: &[Run; 3]) {
    println!("{title}: ns a message (ratio to the mailbox)");
    println!(
        "{:>6} {:>10} {:>18} {:>18}",
        "batch", "mailbox", "std mpsc", "tokio mpsc"
    );
    for batch in [1, 16, 64] {
        let mut best = [f64::INFINITY; 3];
        for _ in 0..rounds {
            for (best, run) in best.iter_mut().zip(runs) {
                let start = Instant::now();
                run(messages, batch);
                *best = best.min(start.elapsed().as_secs_f64() * 1e9 / messages as f64);
            }
        }
        let [mailbox, std, tokio] = best;
        let (std_ratio, tokio_ratio) = (std / mailbox, tokio / mailbox);
        println!(
            "{batch:>6} {mailbox:>10.1} {std:>10.1} ({std_ratio:>4.1}×) {tokio:>10.1} ({tokio_ratio:>4.1}×)"
        );
    }
}

fn message(number: usize) -> Message {
    (number as u64, !number as u64)
}

fn alone_mailbox(messages: usize, batch: usize) {
    let mailbox = Mailbox::new(BOUND);
    let (mut out, mut into) = (Vec::new(), Vec::new());
    for first in (0..messages).step_by(batch) {
        out.extend((first..first + batch).map(message));
        mailbox.push_batch(&mut out).unwrap();
        mailbox.try_take(&mut into).unwrap();
        into.drain(..).for_each(|message| {
            black_box(message);
        });
    }
}

fn alone_std(messages: usize, batch: usize) {
    let (sender, receiver) = std_mpsc::channel();
    for first in (0..messages).step_by(batch) {
        (first..first + batch).for_each(|number| sender.send(message(number)).unwrap());
        receiver.try_iter().for_each(|message| {
            black_box(message);
        });
    }
}

fn alone_tokio(messages: usize, batch: usize) {
    let (sender, mut receiver) = tokio_mpsc::channel(BOUND);
    for first in (0..messages).step_by(batch) {
        (first..first + batch).for_each(|number| sender.try_send(message(number)).unwrap());
        while let Ok(message) = receiver.try_recv() {
            black_box(message);
        }
    }
}

fn apart_mailbox(messages: usize, batch: usize) {
    let mailbox = Mailbox::new(BOUND);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut into = Vec::new();
            while block_on(mailbox.take(&mut into)).is_ok() {
                into.drain(..).for_each(|message| {
                    black_box(message);
                });
            }
        });
        let mut out = Vec::new();
        for first in (0..messages).step_by(batch) {
            out.extend((first..first + batch).map(message));
            mailbox.push_batch_blocking(&mut out).unwrap();
        }
        mailbox.close();
    });
}

fn apart_std(messages: usize, batch: usize) {
    let (sender, receiver) = std_mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            receiver.iter().for_each(|message| {
                black_box(message);
            });
        });
        for first in (0..messages).step_by(batch) {
            (first..first + batch).for_each(|number| sender.send(message(number)).unwrap());
        }
        drop(sender);
    });
}

fn apart_tokio(messages: usize, batch: usize) {
    let (sender, mut receiver) = tokio_mpsc::channel(BOUND);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut into = Vec::new();
            while block_on(receiver.recv_many(&mut into, BOUND)) > 0 {
                into.drain(..).for_each(|message| {
                    black_box(message);
                });
            }
        });
        for first in (0..messages).step_by(batch) {
            (first..first + batch)
                .for_each(|number| sender.blocking_send(message(number)).unwrap());
        }
        drop(sender);
    });
}
