//! Lines to an intake, and what is said of them.

use std::time::Duration;

use crate::limits::{IMPORT_TICK, IMPORT_WINDOW_LINES};
use crate::nostr::event::Event;
use crate::transfer::inflow::Verdicts;
use crate::transfer::pool::{Checks, Next, Piece};
use crate::transfer::window::{Verdict, Window};

/// Takes checked events in: a store, or the way to a relay.
pub trait Intake {
    /// Takes an event in under a number, or refuses it under that number; waits while there is no
    /// room.
    ///
    /// # Errors
    /// That it takes no more, and why.
    fn put(&mut self, number: u64, event: Event) -> Result<(), Ended>;

    /// Time to send on what it holds back, if it is time for it. Called after each piece, and every
    /// [`IMPORT_TICK`] while there is none.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn tick(&mut self) -> Result<(), Ended>;

    /// Nothing more will be put. Answers go on.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn finish(&mut self) -> Result<(), Ended>;

    /// Moves answers that have come into `into`; waits for the first at most so long.
    ///
    /// # Errors
    /// That none will come any more. Those that had come are moved nevertheless. After an error of
    /// [`put`](Self::put) this error comes as soon as nothing more does.
    fn verdicts(&mut self, into: &mut Verdicts, wait: Duration) -> Result<(), Ended>;
}

/// An import has ended before its input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Ended(pub String);

/// Is told what becomes of the lines.
pub trait Watch {
    /// What became of a line; in the order of the lines.
    fn verdict(&mut self, line: u64, verdict: Verdict);
    /// So many more bytes of the input were read.
    fn read(&mut self, bytes: u64);
    /// Some time has passed.
    fn tick(&mut self) {}
}

/// How an import that did not fail came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unanswered {
    /// Lines that were handed in and never answered: stored or not.
    pub lines: u64,
}

/// Feeds everything that `checks` gives to `intake`, and tells `watch`.
///
/// # Errors
/// Why it ended before the input did, after everything that is known was told; with the number of
/// lines of which nothing is known.
pub fn run(
    checks: &mut Checks,
    intake: &mut dyn Intake,
    watch: &mut dyn Watch,
) -> Result<(), (Ended, Unanswered)> {
    let mut run = Run {
        window: Window::new(),
        answers: Verdicts::new(),
        failed: None,
        intake,
        watch,
    };
    let fed = run.feed(checks);
    let settled = run.settle();
    let unanswered = Unanswered {
        lines: run.window.undecided() as u64,
    };
    match (run.failed, fed.and(settled)) {
        (Some(ended), _) | (None, Err(ended)) => Err((ended, unanswered)),
        (None, Ok(())) => Ok(()),
    }
}

struct Run<'a> {
    window: Window,
    answers: Verdicts,
    /// The first event that could not be stored.
    failed: Option<Ended>,
    intake: &'a mut dyn Intake,
    watch: &'a mut dyn Watch,
}

impl Run<'_> {
    fn feed(&mut self, checks: &mut Checks) -> Result<(), Ended> {
        loop {
            match checks.next(IMPORT_TICK) {
                Next::Piece(piece) => self.put(piece)?,
                Next::Waiting => self.intake.tick()?,
                Next::End => return self.intake.finish(),
                Next::Failed(error) => {
                    self.intake.finish()?;
                    return Err(Ended(format!("the input cannot be read: {error}")));
                }
            }
            self.look(Duration::ZERO)?;
            while self.failed.is_none() && self.window.len() >= IMPORT_WINDOW_LINES {
                self.intake.tick()?;
                self.look(IMPORT_TICK)?;
            }
            if self.failed.is_some() {
                return self.intake.finish();
            }
        }
    }

    fn put(&mut self, piece: Piece) -> Result<(), Ended> {
        for checked in piece.lines {
            match checked.result {
                Ok(event) => {
                    let number = self.window.wait_for(checked.line);
                    self.intake.put(number, event)?;
                }
                Err(reason) => self.window.decided(checked.line, Verdict::refused(&reason)),
            }
        }
        self.watch.read(piece.bytes);
        self.intake.tick()
    }

    /// Waits for the answers of everything that was put.
    fn settle(&mut self) -> Result<(), Ended> {
        while self.window.undecided() > 0 {
            let looked = self.look(IMPORT_TICK);
            // An end behind the last answer is no trouble.
            if self.window.undecided() > 0 {
                looked?;
            }
        }
        Ok(())
    }

    /// Takes answers, and tells of the lines that are decided with all before them.
    fn look(&mut self, wait: Duration) -> Result<(), Ended> {
        let looked = self.intake.verdicts(&mut self.answers, wait);
        for (number, verdict) in self.answers.drain(..) {
            self.window.decide(number, verdict);
        }
        while let Some((line, verdict)) = self.window.take() {
            if let Verdict::Failed(why) = &verdict {
                self.failed.get_or_insert_with(|| Ended(why.clone()));
            }
            self.watch.verdict(line, verdict);
        }
        self.watch.tick();
        looked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;
    use crate::transfer::pool::{self, NoScreen};
    use std::collections::VecDeque;

    /// Answers everything a few events late, the third of three first.
    #[derive(Default)]
    struct Late {
        waiting: VecDeque<(u64, Verdict)>,
        put: u64,
        finished: bool,
        ends_at: Option<u64>,
        fails_at: Option<u64>,
    }

    impl Intake for Late {
        fn put(&mut self, number: u64, event: Event) -> Result<(), Ended> {
            assert!(!self.finished);
            self.put += 1;
            if self.ends_at == Some(self.put) {
                return Err(Ended("the relay stops".to_owned()));
            }
            let verdict = match event.created_at() % 4 {
                _ if self.fails_at == Some(self.put) => Verdict::Failed("full".to_owned()),
                1 => Verdict::Duplicate,
                2 => Verdict::Refused("blocked: no".to_owned()),
                _ => Verdict::Accepted,
            };
            match number % 3 {
                2 => self.waiting.push_front((number, verdict)),
                _ => self.waiting.push_back((number, verdict)),
            }
            Ok(())
        }

        fn tick(&mut self) -> Result<(), Ended> {
            Ok(())
        }

        fn finish(&mut self) -> Result<(), Ended> {
            self.finished = true;
            Ok(())
        }

        fn verdicts(&mut self, into: &mut Verdicts, _wait: Duration) -> Result<(), Ended> {
            let keep = if self.finished { 0 } else { 3 };
            let count = self.waiting.len().saturating_sub(keep);
            into.extend(self.waiting.drain(..count));
            match self.ends_at {
                Some(at) if at <= self.put => Err(Ended("no answer".to_owned())),
                _ => Ok(()),
            }
        }
    }

    #[derive(Default)]
    struct Seen {
        lines: Vec<(u64, Verdict)>,
        bytes: u64,
    }

    impl Watch for Seen {
        fn verdict(&mut self, line: u64, verdict: Verdict) {
            self.lines.push((line, verdict));
        }

        fn read(&mut self, bytes: u64) {
            self.bytes += bytes;
        }
    }

    fn import(intake: &mut Late) -> (Seen, Result<(), (Ended, Unanswered)>) {
        let author = Author::new(1);
        let mut text = String::new();
        for n in 0..100u64 {
            text += &author.json::<&str>(n, 1, &[], "x");
            text += if n % 10 == 9 { "\nnonsense\n" } else { "\n" };
        }
        let text = std::io::Cursor::new(text.into_bytes());
        let bytes = text.get_ref().len() as u64;
        let mut checks = pool::start(text, 1_000, 2, NoScreen).expect("threads");
        let mut seen = Seen::default();
        let ran = run(&mut checks, intake, &mut seen);
        assert!(ran.is_err() || seen.bytes == bytes);
        (seen, ran)
    }

    #[test]
    fn every_line_has_its_verdict_in_order() {
        let (seen, ran) = import(&mut Late::default());
        assert_eq!(ran, Ok(()));
        assert_eq!(seen.lines.len(), 110);
        for (at, (line, verdict)) in seen.lines.iter().enumerate() {
            assert_eq!(*line, at as u64 + 1);
            let event = at - at / 11;
            match (at % 11, event % 4) {
                (10, _) => {
                    assert!(matches!(verdict, Verdict::Refused(why) if why.contains("object")))
                }
                (_, 1) => assert_eq!(*verdict, Verdict::Duplicate),
                (_, 2) => assert_eq!(*verdict, Verdict::Refused("blocked: no".to_owned())),
                _ => assert_eq!(*verdict, Verdict::Accepted),
            }
        }
    }

    #[test]
    fn an_intake_that_ends_is_told_with_its_last_word_and_what_is_unknown() {
        let mut intake = Late {
            ends_at: Some(50),
            ..Late::default()
        };
        let (seen, ran) = import(&mut intake);
        let (ended, unanswered) = ran.expect_err("ended");
        assert_eq!(ended, Ended("the relay stops".to_owned()));
        assert!(unanswered.lines > 0 && (seen.lines.len() as u64) < 60);
    }

    #[test]
    fn a_store_that_fails_ends_the_import_with_all_answers() {
        let mut intake = Late {
            fails_at: Some(20),
            ..Late::default()
        };
        let (seen, ran) = import(&mut intake);
        let (ended, unanswered) = ran.expect_err("ended");
        assert_eq!((ended, unanswered.lines), (Ended("full".to_owned()), 0));
        let failed = seen
            .lines
            .iter()
            .filter(|(_, v)| matches!(v, Verdict::Failed(_)));
        assert_eq!(failed.count(), 1);
    }
}
