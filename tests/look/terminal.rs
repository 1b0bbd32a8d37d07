//! A terminal with somebody at it.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::common::{Confine, LOOK, Launch, WAIT, until};

/// What leaves the screen that programs draw on, and what enters it.
pub const ENTERS: &str = "\x1b[?1049h";
pub const LEAVES: &str = "\x1b[?1049l";

/// A program in a terminal. It is killed when this is dropped.
pub struct Terminal {
    child: Child,
    keys: File,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Kept open, so that what the program has left of the terminal can be looked at.
    its_end: File,
}

impl Terminal {
    /// In one of 80 columns and 24 rows.
    pub fn run(launch: &Launch) -> Terminal {
        Terminal::sized(launch, 80, 24)
    }

    pub fn sized(launch: &Launch, columns: u16, rows: u16) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("a terminal");
        unlockpt(&ours).expect("a terminal");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let its_end = rustix::fs::open(name, flags, Mode::empty()).expect("its other end");
        tcsetwinsize(&ours, winsize(columns, rows)).expect("a size");
        let its_end = File::from(its_end);
        let stdio = || Stdio::from(its_end.try_clone().expect("a descriptor"));
        let mut command = launch.clone().confine(Confine::Terminal).command();
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.spawn().expect("the binary can be run");
        let keys = File::from(ours);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut shows = keys.try_clone().expect("a descriptor");
        let sees = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = shows.read(&mut piece) {
                sees.lock().unwrap().extend_from_slice(&piece[..count]);
            }
        });
        Terminal {
            child,
            keys,
            seen,
            its_end,
        }
    }

    /// All that was written so far.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Waits until this was written after the first `from` bytes.
    #[track_caller]
    pub fn await_text(&self, text: &str, from: usize) {
        until(text, || self.seen()[from..].contains(text).then_some(()));
    }

    /// Gives it another size, of which the program is told.
    pub fn resize(&self, columns: u16, rows: u16) {
        tcsetwinsize(&self.keys, winsize(columns, rows)).expect("a size");
        let program = Pid::from_child(&self.child);
        kill_process(program, Signal::WINCH).expect("our own child");
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// Waits for the end of the program: its exit code, and all that it wrote.
    #[track_caller]
    pub fn ended(&mut self) -> (Option<i32>, String) {
        let end = Instant::now() + WAIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                break status;
            }
            assert!(Instant::now() < end, "it goes on: {:?}", self.seen());
            std::thread::sleep(LOOK);
        };
        // What it wrote last may still be on its way to us.
        until("it leaves the screen", || {
            self.seen().contains(LEAVES).then_some(())
        });
        (status.code(), self.seen())
    }

    /// Whether keys are shown as they are pressed, and taken line by line, as a shell needs it.
    pub fn is_restored(&self) -> bool {
        let modes = tcgetattr(&self.its_end).expect("a terminal").local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }
}

fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
