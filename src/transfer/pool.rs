//! The checks of lines on all cores.
//!
//! One thread reads and cuts, as many as there are cores check, and whoever asks gets the results in
//! the order of the lines: with each piece of work the reader queues the place where its result will
//! lie, so nothing is sorted and nothing can pile up. All queues are bounded; when the taker stops
//! taking, the reader stops reading.
//!
//! The threads end when the taker goes, except that a reader that waits for input ends with it.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::limits::{IMPORT_PIECES_PER_CORE, IMPORT_READ_BYTES, VERIFIER_KEYS_MAX};
use crate::nostr::event::Event;
use crate::nostr::reason::Reason;
use crate::nostr::verify::Verifier;
use crate::transfer::check;
use crate::transfer::lines::{Line, Lines};

/// What is known of an event before its signature is checked.
pub enum Screened {
    /// Nothing: check it.
    Unknown,
    /// It is stored with this signature, which was checked then.
    Known,
    /// It is not wanted.
    Refused(Reason),
}

/// Looks at an event before its signature is checked. Each thread has a clone.
pub trait Screen: Clone + Send + 'static {
    /// Says what is known of an event whose id is its own.
    fn screen(&self, event: &Event) -> Screened;
}

/// Knows nothing of any event.
#[derive(Clone, Copy, Debug)]
pub struct NoScreen;

impl Screen for NoScreen {
    fn screen(&self, _event: &Event) -> Screened {
        Screened::Unknown
    }
}

/// One line, checked.
pub struct Checked {
    /// Its number.
    pub line: u64,
    /// The event, or what is wrong.
    pub result: Result<Event, Reason>,
}

/// Some lines in order, checked.
#[derive(Default)]
pub struct Piece {
    /// The lines that are not blank.
    pub lines: Vec<Checked>,
    /// Bytes of input that they came in.
    pub bytes: u64,
}

/// What [`Checks::next`] gives.
pub enum Next {
    /// The next lines.
    Piece(Piece),
    /// None so far.
    Waiting,
    /// There are no more.
    End,
    /// There are no more that could be read.
    Failed(io::Error),
}

/// The results, in the order of the lines.
pub struct Checks {
    places: Receiver<Place>,
    /// The place whose result was not there in time.
    awaited: Option<Receiver<Piece>>,
}

/// Where a result will lie, or why there is none.
enum Place {
    Piece(Receiver<Piece>),
    Failed(io::Error),
}

/// A piece of work, and where its result belongs.
struct Work {
    text: Vec<u8>,
    /// Number and place in `text`; no place: too long.
    lines: Vec<(u64, Option<Range<usize>>)>,
    bytes: u64,
    result: SyncSender<Piece>,
}

/// Starts to read `input` and to check its lines, of at most `line_bytes_max` bytes each, on
/// `threads` threads.
///
/// # Errors
/// When the system gives no thread.
pub fn start(
    input: impl Read + Send + 'static,
    line_bytes_max: usize,
    threads: usize,
    screen: impl Screen,
) -> io::Result<Checks> {
    let pieces_max = threads * IMPORT_PIECES_PER_CORE;
    let (place, places) = sync_channel(pieces_max);
    let (work, todo) = sync_channel::<Work>(pieces_max);
    let todo = Arc::new(Mutex::new(todo));
    for _ in 0..threads {
        let (todo, screen) = (Arc::clone(&todo), screen.clone());
        let name = thread::Builder::new().name("import-check".to_owned());
        name.spawn(move || check_all(&todo, &screen))?;
    }
    let name = thread::Builder::new().name("import-read".to_owned());
    name.spawn(move || read_all(input, line_bytes_max, &place, &work))?;
    Ok(Checks {
        places,
        awaited: None,
    })
}

impl Checks {
    /// The next lines, as soon as they are there; waits at most so long.
    pub fn next(&mut self, wait: Duration) -> Next {
        let place = match self.awaited.take() {
            Some(place) => place,
            None => match self.places.recv_timeout(wait) {
                Ok(Place::Piece(place)) => place,
                Ok(Place::Failed(error)) => return Next::Failed(error),
                Err(RecvTimeoutError::Timeout) => return Next::Waiting,
                Err(RecvTimeoutError::Disconnected) => return Next::End,
            },
        };
        match place.recv_timeout(wait) {
            Ok(piece) => Next::Piece(piece),
            Err(RecvTimeoutError::Timeout) => {
                self.awaited = Some(place);
                Next::Waiting
            }
            Err(RecvTimeoutError::Disconnected) => {
                Next::Failed(io::Error::other("a thread that checks has ended"))
            }
        }
    }
}

/// Cuts what each read brings into one piece. An end of these queues is the end of the taker.
fn read_all(
    mut input: impl Read,
    line_bytes_max: usize,
    places: &SyncSender<Place>,
    work: &SyncSender<Work>,
) {
    let mut lines = Lines::new(line_bytes_max);
    let mut chunk = vec![0; IMPORT_READ_BYTES];
    loop {
        let count = match input.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                // Nobody asks any more: nobody to tell.
                let _ = places.send(Place::Failed(error));
                return;
            }
        };
        let (result, place) = sync_channel(1);
        let mut piece = Work {
            text: Vec::with_capacity(count),
            lines: Vec::new(),
            bytes: count as u64,
            result,
        };
        let mut keep = |number, line: Line<'_>| {
            piece.lines.push(match line {
                Line::TooLong => (number, None),
                Line::Text(text) => {
                    let start = piece.text.len();
                    piece.text.extend_from_slice(text);
                    (number, Some(start..piece.text.len()))
                }
            });
        };
        match count {
            0 => lines.finish(&mut keep),
            _ => lines.push(&chunk[..count], &mut keep),
        }
        let sent = places.send(Place::Piece(place)).is_ok() && work.send(piece).is_ok();
        if count == 0 || !sent {
            return;
        }
    }
}

fn check_all(todo: &Mutex<Receiver<Work>>, screen: &impl Screen) {
    let mut verifier = Verifier::new(VERIFIER_KEYS_MAX);
    loop {
        // Held while this thread waits: another one would only wait behind it.
        let work = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = work else { return };
        let lines = work.lines.into_iter().map(|(line, place)| {
            let text = place.map_or(Line::TooLong, |place| Line::Text(&work.text[place]));
            Checked {
                line,
                result: check_one(text, &mut verifier, screen),
            }
        });
        let piece = Piece {
            lines: lines.collect(),
            bytes: work.bytes,
        };
        // A taker that has gone wants none.
        let _ = work.result.send(piece);
    }
}

fn check_one(
    line: Line<'_>,
    verifier: &mut Verifier,
    screen: &impl Screen,
) -> Result<Event, Reason> {
    let event = check::read(line)?;
    match screen.screen(&event) {
        Screened::Known => {}
        Screened::Refused(reason) => return Err(reason),
        Screened::Unknown => check::signature(verifier, &event)?,
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    /// Gives few bytes at a time, and fails at the end if it is told to.
    struct Trickle {
        text: Vec<u8>,
        at: usize,
        fails: bool,
    }

    impl Read for Trickle {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = (self.text.len() - self.at).min(into.len()).min(977);
            into[..count].copy_from_slice(&self.text[self.at..self.at + count]);
            self.at += count;
            match count {
                0 if self.fails => Err(io::Error::other("gone")),
                _ => Ok(count),
            }
        }
    }

    /// Number and reason of each line, and whether reading failed.
    fn all(input: Trickle, screen: impl Screen) -> (Vec<(u64, Option<String>)>, bool) {
        let mut checks = start(input, 1_000, 3, screen).expect("threads");
        let mut found = Vec::new();
        loop {
            match checks.next(Duration::from_millis(1)) {
                Next::Waiting => {}
                Next::End => return (found, false),
                Next::Failed(_) => return (found, true),
                Next::Piece(piece) => found.extend(
                    piece
                        .lines
                        .into_iter()
                        .map(|line| (line.line, line.result.err().map(|r| r.to_string()))),
                ),
            }
        }
    }

    fn input(fails: bool) -> Trickle {
        let author = Author::new(1);
        let mut text = String::new();
        for n in 0..300u64 {
            let json = author.json::<&str>(n, 1, &[], "x");
            text += &match n % 10 {
                3 => String::new(),
                5 => json.replace(&json[json.len() - 4..], "00\"}"),
                7 => "y".repeat(2_000),
                _ => json,
            };
            text.push('\n');
        }
        Trickle {
            text: text.into_bytes(),
            at: 0,
            fails,
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_lines() {
        for fails in [false, true] {
            let (found, failed) = all(input(fails), NoScreen);
            assert_eq!(failed, fails);
            let mut expected = (1..=300u64).filter(|line| line % 10 != 4);
            for (line, reason) in found {
                assert_eq!(Some(line), expected.next());
                let reason = reason.unwrap_or_default();
                match line % 10 {
                    6 => assert!(reason.contains("signature"), "{line}: {reason}"),
                    8 => assert!(reason.contains("too long"), "{line}: {reason}"),
                    _ => assert_eq!(reason, "", "{line}"),
                }
            }
            assert_eq!(expected.next(), None);
        }
    }

    #[test]
    fn what_is_known_is_not_checked_and_what_is_unwanted_is_refused() {
        #[derive(Clone)]
        struct Half;
        impl Screen for Half {
            fn screen(&self, event: &Event) -> Screened {
                match event.created_at() % 10 {
                    5 => Screened::Known,
                    6 => Screened::Refused(Reason::invalid("unwanted")),
                    _ => Screened::Unknown,
                }
            }
        }
        let (found, _) = all(input(false), Half);
        for (line, reason) in found {
            match line % 10 {
                6 => assert_eq!(reason, None, "a forged one that is known"),
                7 => assert_eq!(reason.as_deref(), Some("invalid: unwanted")),
                _ => {}
            }
        }
    }

    #[test]
    fn a_taker_that_goes_ends_the_threads() {
        #[expect(dead_code, reason = "it is counted")]
        struct Endless(Arc<()>);
        impl Read for Endless {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                into.fill(b'\n');
                Ok(into.len())
            }
        }
        let alive = Arc::new(());
        let input = Endless(Arc::clone(&alive));
        let mut checks = start(input, 10, 2, NoScreen).expect("threads");
        while !matches!(checks.next(Duration::from_secs(30)), Next::Piece(_)) {}
        drop(checks);
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while Arc::strong_count(&alive) > 1 {
            assert!(std::time::Instant::now() < end, "the reader goes on");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
