use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;

use super::*;

/// Far beyond what a working mailbox needs.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct CountedWaker(AtomicUsize);

impl Wake for CountedWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_take(
    mailbox: &Mailbox<u64>,
    into: &mut Vec<u64>,
    waker: &Waker,
) -> Poll<Result<(), Closed>> {
    Pin::new(&mut mailbox.take(into)).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_batch_is_taken_whole_and_in_order() {
    let mailbox = Mailbox::new(8);
    let mut batch = vec![1, 2, 3];
    assert_eq!(mailbox.push_batch(&mut batch), Ok(()));
    assert!(batch.is_empty());
    assert_eq!(mailbox.try_push(4), Ok(()));
    let mut taken = Vec::new();
    assert_eq!(block_on(mailbox.take(&mut taken)), Ok(()));
    assert_eq!(taken, [1, 2, 3, 4]);
    assert!(mailbox.is_empty());
}

#[test]
fn memory_is_used_in_turn() {
    let mailbox = Mailbox::new(64);
    let mut batch = Vec::with_capacity(64);
    let mut taken = Vec::with_capacity(64);
    for round in 0..3 {
        batch.extend(0..64);
        mailbox.push_batch(&mut batch).unwrap();
        mailbox.try_take(&mut taken).unwrap();
        assert_eq!(
            (taken.len(), round < 1 || taken.capacity() == 64),
            (64, true)
        );
        taken.clear();
        assert_eq!(batch.capacity(), 64, "the sender keeps its own memory");
    }
}

#[test]
fn the_receiver_is_woken_once_for_each_time_it_slept() {
    let mailbox = Mailbox::new(8);
    let count = Arc::new(CountedWaker::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut taken = Vec::new();
    assert!(poll_take(&mailbox, &mut taken, &waker).is_pending());
    mailbox.try_push(1).unwrap();
    mailbox.try_push(2).unwrap();
    mailbox.push_batch(&mut vec![3, 4]).unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert_eq!(poll_take(&mailbox, &mut taken, &waker), Poll::Ready(Ok(())));
    assert_eq!(taken, [1, 2, 3, 4]);
    taken.clear();
    // Not asleep, so not woken.
    mailbox.try_push(5).unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert_eq!(poll_take(&mailbox, &mut taken, &waker), Poll::Ready(Ok(())));
}

#[test]
fn a_full_mailbox_leaves_the_rest_with_its_sender() {
    let mailbox = Mailbox::new(3);
    let mut batch = vec![1, 2, 3, 4, 5];
    assert_eq!(mailbox.push_batch(&mut batch), Err(PushError::Full));
    assert_eq!(batch, [4, 5]);
    assert_eq!(mailbox.push_batch(&mut batch), Err(PushError::Full));
    assert_eq!(mailbox.try_push(6), Err((6, PushError::Full)));
    assert_eq!((batch.len(), mailbox.len()), (2, 3));
    let mut taken = Vec::new();
    assert_eq!(mailbox.try_take(&mut taken), Ok(true));
    assert_eq!(mailbox.push_batch(&mut batch), Ok(()));
    assert_eq!(taken, [1, 2, 3]);
    taken.clear();
    assert_eq!(mailbox.try_take(&mut taken), Ok(true));
    assert_eq!(taken, [4, 5]);
}

#[test]
fn close_lets_nothing_in_and_everything_out() {
    let mailbox = Mailbox::new(8);
    let count = Arc::new(CountedWaker::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut taken = Vec::new();
    assert!(poll_take(&mailbox, &mut taken, &waker).is_pending());
    mailbox.try_push(1).unwrap();
    mailbox.close();
    mailbox.close();
    assert!(mailbox.is_closed());
    let mut batch = vec![2];
    assert_eq!(mailbox.push_batch(&mut batch), Err(PushError::Closed));
    assert_eq!(mailbox.push_batch_blocking(&mut batch), Err(Closed));
    assert_eq!(mailbox.try_push(3), Err((3, PushError::Closed)));
    assert_eq!(batch, [2]);
    assert_eq!(mailbox.push_batch(&mut Vec::new()), Ok(()));
    assert_eq!(poll_take(&mailbox, &mut taken, &waker), Poll::Ready(Ok(())));
    assert_eq!(taken, [1]);
    taken.clear();
    assert_eq!(
        poll_take(&mailbox, &mut taken, &waker),
        Poll::Ready(Err(Closed))
    );
    assert_eq!(mailbox.try_take(&mut taken), Err(Closed));
}

#[test]
fn close_wakes_a_sleeping_receiver() {
    let mailbox = Mailbox::<u64>::new(8);
    let count = Arc::new(CountedWaker::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut taken = Vec::new();
    assert!(poll_take(&mailbox, &mut taken, &waker).is_pending());
    mailbox.close();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert_eq!(
        poll_take(&mailbox, &mut taken, &waker),
        Poll::Ready(Err(Closed))
    );
}

#[test]
#[should_panic(expected = "empty vector")]
fn a_batch_is_not_taken_over_another() {
    let _ = Mailbox::new(8).try_take(&mut vec![1]);
}

/// Spins until a sender sleeps in `push_batch_blocking`.
fn wait_for_blocked_sender(mailbox: &Mailbox<u64>) {
    while mailbox.lock().waiting == 0 {
        thread::yield_now();
    }
}

#[test]
fn a_blocked_sender_goes_on_when_there_is_room() {
    let mailbox = Mailbox::new(2);
    thread::scope(|scope| {
        let sender = scope.spawn(|| mailbox.push_batch_blocking(&mut (0..7).collect()));
        let mut all = Vec::new();
        while all.len() < 7 {
            let mut taken = Vec::new();
            block_on(mailbox.take(&mut taken)).unwrap();
            assert!(taken.len() <= 2);
            all.append(&mut taken);
        }
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(sender.join().unwrap(), Ok(()));
    });
}

#[test]
fn close_frees_a_blocked_sender() {
    let mailbox = Mailbox::new(2);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut batch = vec![1, 2, 3];
            (mailbox.push_batch_blocking(&mut batch), batch)
        });
        wait_for_blocked_sender(&mailbox);
        mailbox.close();
        assert_eq!(sender.join().unwrap(), (Err(Closed), vec![3]));
    });
    let mut taken = Vec::new();
    assert_eq!(mailbox.try_take(&mut taken), Ok(true));
    assert_eq!(taken, [1, 2]);
}

/// A sender that pushes just when the receiver has looked and goes to sleep, at many distances.
#[test]
fn a_push_between_the_look_and_the_sleep_is_seen() {
    const ROUNDS: u64 = 40_000;
    let mailbox = Arc::new(Mailbox::new(1));
    let (seen, last) = mpsc::channel();
    let receiving = Arc::clone(&mailbox);
    thread::spawn(move || {
        let mut taken = Vec::new();
        while block_on(receiving.take(&mut taken)).is_ok() {
            if taken.drain(..).any(|round| round == ROUNDS - 1) {
                seen.send(()).unwrap();
            }
        }
    });
    let sending = Arc::clone(&mailbox);
    thread::spawn(move || {
        for round in 0..ROUNDS {
            while !sending.is_empty() {
                if sending.is_closed() {
                    return;
                }
                std::hint::spin_loop();
            }
            (0..round % 97).for_each(|_| std::hint::spin_loop());
            sending.try_push(round).unwrap();
        }
    });
    let outcome = last.recv_timeout(PATIENCE);
    mailbox.close();
    outcome.expect("the receiver sleeps although something is there");
}

/// Several senders of both kinds, one receiver that really sleeps, a small bound: everything
/// arrives once, in each sender's order, and nobody sleeps for ever.
#[test]
fn nothing_is_lost_doubled_or_reordered() {
    const SENDERS: u64 = 4;
    const ITEMS: u64 = 20_000;
    for items_max in [1, 3, 64, 4096] {
        let mailbox = Arc::new(Mailbox::new(items_max));
        let items = if items_max < 64 { ITEMS / 10 } else { ITEMS };
        let (done, ended) = mpsc::channel();
        for sender in 0..SENDERS {
            let (mailbox, done) = (Arc::clone(&mailbox), done.clone());
            thread::spawn(move || {
                send(&mailbox, sender, items);
                done.send(()).unwrap();
            });
        }
        let receiving = Arc::clone(&mailbox);
        thread::spawn(move || {
            let mut next = [0; SENDERS as usize];
            let mut taken = Vec::new();
            while block_on(receiving.take(&mut taken)).is_ok() {
                assert!(taken.len() <= items_max);
                for item in taken.drain(..) {
                    let (sender, number) = (item >> 32, item & 0xffff_ffff);
                    assert_eq!(next[sender as usize], number);
                    next[sender as usize] += 1;
                }
            }
            assert_eq!(next, [items; SENDERS as usize]);
            done.send(()).unwrap();
        });
        for _ in 0..SENDERS {
            ended
                .recv_timeout(PATIENCE)
                .expect("a sender sleeps for ever, or the receiver");
        }
        mailbox.close();
        ended
            .recv_timeout(PATIENCE)
            .expect("the receiver sleeps for ever, or items are missing");
    }
}

/// Sends `items` numbered items in uneven batches; even senders block, odd ones try again.
fn send(mailbox: &Mailbox<u64>, sender: u64, items: u64) {
    let mut random = fastrand::Rng::with_seed(sender);
    let mut batch = Vec::new();
    let mut number = 0;
    while number < items {
        for _ in 0..random.u64(1..=20).min(items - number) {
            batch.push(sender << 32 | number);
            number += 1;
        }
        if sender.is_multiple_of(2) {
            mailbox.push_batch_blocking(&mut batch).unwrap();
            continue;
        }
        while let Err(error) = mailbox.push_batch(&mut batch) {
            assert_eq!(error, PushError::Full);
            thread::yield_now();
        }
    }
}
