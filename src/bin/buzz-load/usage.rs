#![allow(unsafe_code)]
//! What a process uses: CPU time to the nanosecond, anonymous memory, cores.
//!
//! Unsafe for one call. `/proc/<pid>/stat` counts in steps of 10 ms, 1 % of a run of a second and
//! more of a short step; the process clock counts nanoseconds, but only libc's call takes the
//! clock of another process.

use std::fs;
use std::io;
use std::time::Duration;

/// CPU time of the processes since they started, all threads, user and kernel.
///
/// # Errors
/// A process that is gone, or not ours to look at.
pub fn cpu_of(pids: &[u32]) -> io::Result<Duration> {
    pids.iter().map(|pid| clock(process_clock(*pid))).sum()
}

/// CPU time of this process.
pub fn cpu_of_self() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// CPU time of this thread.
pub fn cpu_of_thread() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// Anonymous resident memory of the processes (`RssAnon`), in bytes.
///
/// # Errors
/// A process that is gone, or not ours to look at.
pub fn anonymous_bytes(pids: &[u32]) -> io::Result<u64> {
    pids.iter()
        .map(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            parse_status_kib(&status, "RssAnon:")
                .map(|kib| kib << 10)
                .ok_or_else(|| io::Error::other("no RssAnon in /proc/<pid>/status"))
        })
        .sum()
}

/// Raises the limit of descriptors to the most allowed, and says how many that is.
pub fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it fails, the old limit stays and is what is reported.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The cores that a process (or, without one, this thread) may run on.
pub fn cores_of(pid: Option<u32>) -> Vec<usize> {
    let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
    let Ok(set) = rustix::thread::sched_getaffinity(pid) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// Pins this thread to one core. Where it fails, the thread runs where it ran.
pub fn pin(core: usize) {
    if core < rustix::thread::CpuSet::MAX_CPU {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// The figure of one line of `/proc/<pid>/status`, in KiB.
fn parse_status_kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The clock of a process's CPU time, as `clock_getcpuclockid` makes it: the complement of the
/// process id, shifted past three bits that say "whole process, scheduler's figure".
fn process_clock(pid: u32) -> libc::clockid_t {
    (!pid.cast_signed() << 3) | 2
}

fn clock(id: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec through a pointer to one that lives on this stack.
    if unsafe { libc::clock_gettime(id, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(
        time.tv_sec.cast_unsigned(),
        time.tv_nsec as u32,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_from_inside_and_outside_alike() {
        let inside = cpu_of_self();
        let outside = cpu_of(&[std::process::id()]).unwrap();
        assert!(outside >= inside);
        assert!(inside >= cpu_of_thread());
        assert!(anonymous_bytes(&[std::process::id()]).unwrap() > 0);
        assert!(!cores_of(Some(std::process::id())).is_empty());
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(cpu_of(&[0x3fff_fff0]).is_err());
        assert!(anonymous_bytes(&[0x3fff_fff0]).is_err());
    }

    #[test]
    fn status_lines() {
        let status = "Name:\tx\nVmRSS:\t  1 kB\nRssAnon:\t   9132 kB\n";
        assert_eq!(parse_status_kib(status, "RssAnon:"), Some(9132));
        assert_eq!(parse_status_kib(status, "RssFile:"), None);
    }
}
