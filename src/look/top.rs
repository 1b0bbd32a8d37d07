//! `buzz-uring top`: a relay's picture, every second, in the terminal.
//!
//! Questions are asked on a thread of their own, so that a relay that does not answer holds up no
//! key. Whatever ends this, a panic included, leaves the terminal as it was.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, EnterAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{TerminalOptions, Viewport};

use super::picture::Picture;
use super::screen::Screen;
use super::source::Source;
use crate::limits::{TOP_COLUMNS_MAX, TOP_KEY_LOOK, TOP_PERIOD, TOP_ROWS_MAX};
use crate::shard::hooks;

/// Shows the relay until a key ends it.
///
/// # Errors
///
/// Without a terminal, or when it cannot be written to.
pub fn run(source: Source) -> Result<(), String> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err("top needs a terminal; status prints one picture without".to_owned());
    }
    let mut screen = Screen::new(source.name());
    let answers = ask(source);
    let trouble = |error: io::Error| format!("the terminal fails: {error}");
    let mut area = area().map_err(trouble)?;
    let viewport = Viewport::Fixed(area);
    // Sets a panic hook that restores the terminal, too.
    let terminal = ratatui::try_init_with_options(TerminalOptions { viewport });
    let mut terminal = terminal.map_err(trouble)?;
    let _restored = Restored;
    execute!(io::stdout(), EnterAlternateScreen).map_err(trouble)?;
    let mut is_stale = true;
    loop {
        if is_stale {
            let is_now = self::area().map_err(trouble)?;
            if is_now != area {
                area = is_now;
                terminal.resize(area).map_err(trouble)?;
            }
            terminal.draw(|frame| screen.draw(frame)).map_err(trouble)?;
        }
        is_stale = false;
        hooks::maybe_panic("top");
        if event::poll(TOP_KEY_LOOK).map_err(trouble)? {
            match event::read().map_err(trouble)? {
                Event::Key(key) if ends(key) => return Ok(()),
                Event::Resize(..) => is_stale = true,
                _ => {}
            }
        }
        while let Ok((answer, at)) = answers.try_recv() {
            is_stale = true;
            match answer {
                Ok(picture) => screen.saw(picture, at),
                Err(why) => screen.missed(why, at),
            }
        }
    }
}

/// What is drawn on: all of the terminal, but no more than the picture can need. Each cell costs
/// memory and time, and how many there are is what anybody says.
fn area() -> io::Result<Rect> {
    let (columns, rows) = terminal::size()?;
    Ok(Rect::new(
        0,
        0,
        columns.min(TOP_COLUMNS_MAX),
        rows.min(TOP_ROWS_MAX),
    ))
}

/// Restores the terminal when dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
            KeyCode::Char('c') => control,
            _ => false,
        }
}

type Answer = (Result<Picture, String>, Instant);

/// Asks every [`TOP_PERIOD`], as long as somebody takes the answers.
fn ask(source: Source) -> Receiver<Answer> {
    // One answer may wait: a terminal that is stopped must not collect them.
    let (sender, answers) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        loop {
            let asked = Instant::now();
            let answer = source.ask().and_then(Picture::read);
            if sender.send((answer, Instant::now())).is_err() {
                return;
            }
            std::thread::sleep(TOP_PERIOD.saturating_sub(asked.elapsed()));
        }
    });
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_keys_end_it_and_no_other() {
        let key = |code, modifiers| ends(KeyEvent::new(code, modifiers));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Enter, KeyModifiers::NONE));
        let mut released = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);
        released.kind = KeyEventKind::Release;
        assert!(!ends(released));
    }
}
