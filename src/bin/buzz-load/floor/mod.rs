//! Floors: what nothing can beat on this machine, measured in the same minute as the relay, so that
//! a ratio means something where an absolute time does not.
//!
//! Each is the bare system work or arithmetic that an operation cannot do without, in its plainest
//! form, as CPU time of the thread that stands for the relay.

mod commit;
mod signature;
mod sockets;

use std::io;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::report::thousandths;
use crate::usage;

/// A floor to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Floor {
    /// One BIP-340 check, the key parsed anew.
    Signature,
    /// One BIP-340 check with the key parsed before.
    SignatureCached,
    /// A vectored send of one event to each of `sockets` connections, `burst` of them in a send;
    /// per event and connection.
    Sends { sockets: usize, burst: usize },
    /// Accept, read a request, reply, see the end, close.
    Accept,
    /// Read a request, send `bytes` back: an echo, or a page.
    Reply { bytes: usize },
    /// One event put and committed to LMDB, durably. Wall time: it waits for the disk.
    CommitLmdb,
    /// One event appended to a file, and fdatasync. Wall time.
    CommitAppend,
}

/// How floors are measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seconds each.
    pub seconds: f64,
    /// The core of the thread that stands for the relay.
    pub relay_core: Option<usize>,
    /// The core of its peer.
    pub peer_core: Option<usize>,
    /// Where commits are written.
    pub dir: PathBuf,
}

impl Options {
    /// The relay's first core, where its process is known, else the first that may be used; the
    /// peer on another, if there is one.
    pub fn cores(pids: &[u32]) -> (Option<usize>, Option<usize>) {
        let own = usage::cores_of(None);
        let relay = pids
            .first()
            .map_or_else(Vec::new, |pid| usage::cores_of(Some(*pid)));
        let first = relay.first().or(own.first()).copied();
        let peer = own
            .iter()
            .copied()
            .find(|core| Some(*core) != first)
            .or(own.first().copied());
        (first, peer)
    }
}

/// What a floor costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Microseconds for one: CPU time, or wall time for commits.
    pub micros: f64,
    /// How many were measured.
    pub count: u64,
}

impl Floor {
    /// The name in reports.
    pub fn name(self) -> String {
        match self {
            Floor::Signature => "signature".into(),
            Floor::SignatureCached => "signature_cached_key".into(),
            Floor::Sends { sockets, burst } => format!("sends_{sockets}_burst_{burst}"),
            Floor::Accept => "accept".into(),
            Floor::Reply { bytes } => format!("reply_{bytes}_bytes"),
            Floor::CommitLmdb => "commit_lmdb".into(),
            Floor::CommitAppend => "commit_append_fdatasync".into(),
        }
    }

    /// Measures it.
    ///
    /// # Errors
    /// What the system refused.
    pub fn measure(self, options: &Options) -> io::Result<Cost> {
        match self {
            Floor::Signature => Ok(signature::check(options, false)),
            Floor::SignatureCached => Ok(signature::check(options, true)),
            Floor::Sends { sockets, burst } => sockets::sends(options, sockets, burst),
            Floor::Accept => sockets::accept(options),
            Floor::Reply { bytes } => sockets::reply(options, bytes),
            Floor::CommitLmdb => commit::lmdb(options),
            Floor::CommitAppend => commit::append(options),
        }
    }

    /// Whether its cost is the time that passes, and not that of a CPU.
    pub fn is_wall_time(self) -> bool {
        matches!(self, Floor::CommitLmdb | Floor::CommitAppend)
    }
}

/// Measures all of them and gives one JSON object by name.
///
/// # Errors
/// The first that could not be measured.
pub fn measure_all(floors: &[Floor], options: &Options) -> io::Result<Map<String, Value>> {
    let mut found = Map::new();
    for floor in floors {
        let cost = floor.measure(options)?;
        let kind = if floor.is_wall_time() {
            "wall_us"
        } else {
            "cpu_us"
        };
        let mut one = json!({ "count": cost.count });
        one[kind] = thousandths(cost.micros).into();
        if floor.is_wall_time() {
            one["per_second"] = (1e6 / cost.micros).round().into();
        }
        found.insert(floor.name(), one);
    }
    Ok(found)
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &std::path::Path) -> Options {
        Options {
            seconds: 0.05,
            relay_core: None,
            peer_core: None,
            dir: dir.to_owned(),
        }
    }

    #[test]
    fn every_floor_can_be_measured() {
        let dir = tempfile::tempdir().unwrap();
        let floors = [
            Floor::Signature,
            Floor::SignatureCached,
            Floor::Sends {
                sockets: 20,
                burst: 1,
            },
            Floor::Sends {
                sockets: 3,
                burst: 16,
            },
            Floor::Accept,
            Floor::Reply { bytes: 700 },
            Floor::Reply { bytes: 300_000 },
            Floor::CommitLmdb,
            Floor::CommitAppend,
        ];
        let found = measure_all(&floors, &options(dir.path())).unwrap();
        assert_eq!(found.len(), floors.len());
        for (name, value) in &found {
            let micros = value["cpu_us"]
                .as_f64()
                .or(value["wall_us"].as_f64())
                .unwrap();
            assert!(
                micros > 0.0 && value["count"].as_u64().unwrap() > 0,
                "{name}"
            );
        }
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is left behind"
        );
    }

    #[test]
    fn the_middle_one() {
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(vec![]), 0.0);
    }
}
