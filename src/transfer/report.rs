//! What an operator is told: refused lines as they come, progress, a summary.
//!
//! All of it goes to standard error. The progress bar is drawn only on a terminal.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::limits::{PROGRESS_DRAWS_PER_SECOND_MAX, REFUSED_LINES_TOLD_MAX};
use crate::transfer::import::Watch;
use crate::transfer::window::Verdict;
use crate::words::counted;

/// How many lines came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stored.
    pub accepted: u64,
    /// Stored before.
    pub duplicate: u64,
    /// Older than what is stored.
    pub superseded: u64,
    /// Not stored, on purpose.
    pub refused: u64,
    /// Not stored, for trouble that is not theirs.
    pub failed: u64,
}

impl Counts {
    /// Counts a verdict.
    pub fn add(&mut self, verdict: &Verdict) {
        *match verdict {
            Verdict::Accepted => &mut self.accepted,
            Verdict::Duplicate => &mut self.duplicate,
            Verdict::Superseded => &mut self.superseded,
            Verdict::Refused(_) => &mut self.refused,
            Verdict::Failed(_) => &mut self.failed,
        } += 1;
    }

    /// Counts a verdict. Returns what is to be told of the line: nothing of most.
    pub fn count(&mut self, line: u64, verdict: &Verdict) -> Option<String> {
        self.add(verdict);
        let (Verdict::Refused(why) | Verdict::Failed(why)) = verdict else {
            return None;
        };
        match (self.refused + self.failed).checked_sub(REFUSED_LINES_TOLD_MAX) {
            None | Some(0) => Some(format!("line {line}: {why}")),
            Some(1) => Some("further refused lines are only counted".to_owned()),
            Some(_) => None,
        }
    }

    /// Lines that came to something.
    pub fn total(&self) -> u64 {
        self.accepted + self.duplicate + self.superseded + self.refused + self.failed
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            accepted,
            duplicate,
            superseded,
            refused,
            failed,
        } = self;
        write!(
            f,
            "{accepted} accepted, {duplicate} duplicate, {superseded} superseded, {refused} refused"
        )?;
        if *failed > 0 {
            write!(f, ", {failed} failed")?;
        }
        Ok(())
    }
}

/// A progress bar, or nothing where nobody would see it.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// Of an input of so many bytes, if that is known.
    pub fn of_bytes(total: Option<u64>) -> Progress {
        let style = match total {
            Some(_) => "{wide_bar} {bytes}/{total_bytes} {msg} {eta_precise} left",
            None => "{spinner} {bytes} {msg}",
        };
        Progress::new(total, style)
    }

    /// Of an output of unknown length.
    pub fn of_output() -> Progress {
        Progress::new(None, "{spinner} {bytes} {msg}")
    }

    fn new(total: Option<u64>, style: &str) -> Progress {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(PROGRESS_DRAWS_PER_SECOND_MAX)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(total, target);
        let style = ProgressStyle::with_template(style);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress {
            bar,
            began: Instant::now(),
        }
    }

    /// So many bytes more, and the events so far.
    pub fn advance(&self, bytes: u64, events: u64) {
        self.bar.inc(bytes);
        if !self.bar.is_hidden() {
            let rate = rate(events, self.began.elapsed());
            self.bar
                .set_message(format!("{}, {rate}/s", counted(events, "event")));
        }
    }

    /// Prints a line, above the bar if there is one. Where it cannot be printed nobody could be
    /// told.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(io::stderr(), "{line}");
        });
    }

    /// Takes the bar away. Returns how long it all took.
    pub fn finish(&self) -> Duration {
        self.bar.finish_and_clear();
        self.began.elapsed()
    }
}

/// Whole events a second.
pub fn rate(events: u64, time: Duration) -> u64 {
    // Rounded for people; the cast is of a small number that is not negative.
    (events as f64 / time.as_secs_f64().max(0.001)).round() as u64
}

/// Counts verdicts, prints what is to be told, moves the bar.
pub struct Told {
    /// The counts so far.
    pub counts: Counts,
    /// The bar.
    pub progress: Progress,
}

impl Told {
    /// Nothing so far.
    pub fn new(progress: Progress) -> Told {
        Told {
            counts: Counts::default(),
            progress,
        }
    }
}

impl Watch for Told {
    fn verdict(&mut self, line: u64, verdict: Verdict) {
        if let Some(text) = self.counts.count(line, &verdict) {
            self.progress.say(&text);
        }
    }

    fn read(&mut self, bytes: u64) {
        self.progress.advance(bytes, self.counts.total());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_refused_lines_are_told_and_the_rest_counted() {
        let mut counts = Counts::default();
        let refused = Verdict::Refused("invalid: no".to_owned());
        let mut told = Vec::new();
        for line in 1..=REFUSED_LINES_TOLD_MAX + 10 {
            assert_eq!(counts.count(line, &Verdict::Accepted), None);
            told.extend(counts.count(line, &refused));
        }
        assert_eq!(told.len() as u64, REFUSED_LINES_TOLD_MAX + 1);
        assert_eq!(told[0], "line 1: invalid: no");
        assert!(
            told.last()
                .is_some_and(|last| last.contains("only counted"))
        );
        counts.count(1, &Verdict::Duplicate);
        counts.count(1, &Verdict::Superseded);
        assert_eq!(
            counts.to_string(),
            "1010 accepted, 1 duplicate, 1 superseded, 1010 refused"
        );
        counts.count(1, &Verdict::Failed("full".to_owned()));
        assert!(counts.to_string().ends_with(", 1 failed"));
        assert_eq!(counts.total(), 2_023);
    }
}
