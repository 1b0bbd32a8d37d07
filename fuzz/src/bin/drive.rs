//! Runs the targets without a fuzzing engine: `drive [SECONDS] [TARGET…]`, 60 seconds each and all
//! of them without arguments. A failure names the seed of its run, which repeats it, and the input.

use std::path::Path;
use std::time::{Duration, Instant};

use buzz_uring_fuzz::entries::TARGETS;
use buzz_uring_fuzz::mutate::mutate;
use fastrand::Rng;

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().map_or(60, |text| text.parse().expect("seconds"));
    let wanted: Vec<String> = args.collect();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in TARGETS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let entries = std::fs::read_dir(corpus.join(name)).expect("a corpus");
        let seeds: Vec<Vec<u8>> = entries
            .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a seed"))
            .collect();
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut runs = 0_u64;
        while Instant::now() < end {
            for _ in 0..1_000 {
                let seed = fastrand::u64(..);
                let input = mutate(&mut Rng::with_seed(seed), &seeds);
                if std::panic::catch_unwind(|| target(&input)).is_err() {
                    eprintln!("{name}: seed {seed}, input {:?}", input.escape_ascii().to_string());
                    std::process::exit(1);
                }
                runs += 1;
            }
        }
        println!("{name}: {runs} inputs in {seconds} s, none fails");
    }
}
