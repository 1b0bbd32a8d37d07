//! The fuzz targets over their corpus, and over some changes of it: what a long run has found once
//! stays found.

#[path = "../fuzz/src/entries.rs"]
mod entries;
#[path = "../fuzz/src/mutate.rs"]
mod mutate;

use std::panic::catch_unwind;
use std::path::Path;

use fastrand::Rng;

const CHANGES: u64 = 20_000;

#[test]
fn every_target_takes_whatever_comes() {
    for (name, target) in entries::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(name);
        let mut paths: Vec<_> = std::fs::read_dir(&folder)
            .expect("every target has a corpus")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        // The same order everywhere, so that a seed of the generator means the same.
        paths.sort();
        let seeds: Vec<Vec<u8>> = paths
            .iter()
            .map(|path| std::fs::read(path).unwrap())
            .collect();
        assert!(seeds.len() >= 5, "{name} has {} seeds", seeds.len());
        for (path, seed) in paths.iter().zip(&seeds) {
            assert!(catch_unwind(|| target(seed)).is_ok(), "{}", path.display());
        }
        for seed in 0..CHANGES {
            let input = mutate::mutate(&mut Rng::with_seed(seed), &seeds);
            let outcome = catch_unwind(|| target(&input));
            assert!(
                outcome.is_ok(),
                "{name}, seed {seed}: {}",
                input.escape_ascii()
            );
        }
    }
}
