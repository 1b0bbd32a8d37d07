//! What this machine gives the process: CPUs and descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::read::Reader;
use crate::limits;

/// Probed once at start; tests make their own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Machine {
    /// CPUs the process may run on: the affinity mask, cut to the cgroup quota. Never empty.
    pub cpus: Vec<usize>,
    /// Descriptors the process may hold: the soft limit, after raising it to the hard one.
    pub descriptors_max: u64,
}

impl Machine {
    /// Asks the kernel, and raises the soft descriptor limit to the hard one: the soft default of
    /// 1024 is for programs that use select(2), which nothing here does.
    pub fn probe() -> Machine {
        Machine {
            cpus: usable_cpus(),
            descriptors_max: raise_descriptors(),
        }
    }
}

fn usable_cpus() -> Vec<usize> {
    // The standard library reads the quota of both cgroup versions; the mask says which CPUs.
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cpus = match rustix::thread::sched_getaffinity(None) {
        Ok(mask) => (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|cpu| mask.is_set(*cpu))
            .collect(),
        // A machine with more CPUs than the mask holds, or a seccomp filter: count, do not choose.
        Err(_) => (0..usable).collect::<Vec<_>>(),
    };
    cpus.truncate(usable);
    if cpus.is_empty() {
        cpus.push(0);
    }
    cpus
}

fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // A refusal leaves the soft limit in force, which is then what is reported.
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        );
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many shards, and what is to say of as many.
pub(super) fn shards(reader: &mut Reader<'_>, machine: &Machine) -> usize {
    let found = machine.cpus.len().min(limits::SHARDS_MAX);
    let range = 1..=limits::SHARDS_MAX as u64;
    let shards = reader.number_or("BUZZ_SHARDS", range, Some(found as u64));
    let shards = shards.map_or(found, |shards| shards as usize);
    if shards > machine.cpus.len() {
        reader.note(format!(
            "BUZZ_SHARDS is {shards}, more than the CPUs that the process may use ({}): shards share \
             CPUs, which costs latency",
            machine.cpus.len()
        ));
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cpus_and_descriptors() {
        let machine = Machine::probe();
        let usable = std::thread::available_parallelism().unwrap().get();
        assert_eq!(machine.cpus.len(), usable);
        assert!(machine.cpus.is_sorted_by(|a, b| a < b));
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(Some(machine.descriptors_max), limit.current);
    }
}
