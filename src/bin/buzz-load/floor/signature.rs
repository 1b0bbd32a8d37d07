//! One signature check.

use std::hint::black_box;
use std::time::Instant;

use secp256k1::{XOnlyPublicKey, schnorr};
use sha2::{Digest, Sha256};

use super::{Cost, Options, median};
use crate::{events, usage};

/// Distinct keys and messages, so that no cache helps more than it would a relay.
const KEYS: usize = 256;
/// Checks of one timing.
const ROUND: usize = 256;

/// A check of a 32-byte message; with `cached`, by a key that was parsed before.
pub fn check(options: &Options, cached: bool) -> Cost {
    std::thread::scope(|scope| scope.spawn(|| measure(options, cached)).join()).unwrap_or(Cost {
        micros: 0.0,
        count: 0,
    })
}

fn measure(options: &Options, cached: bool) -> Cost {
    options.relay_core.into_iter().for_each(usage::pin);
    let signed: Vec<_> = (0..KEYS)
        .map(|index| {
            let keypair = events::keypair(&format!("floor {index}"));
            let message: [u8; 32] = Sha256::digest(index.to_le_bytes()).into();
            let key = keypair.x_only_public_key().0;
            (
                message,
                schnorr::sign_no_aux_rand(&message, &keypair),
                key,
                key.to_byte_array(),
            )
        })
        .collect();
    let (begin, mut rounds) = (Instant::now(), Vec::new());
    while rounds.is_empty() || begin.elapsed().as_secs_f64() < options.seconds {
        let before = usage::cpu_of_thread();
        let mut good = 0;
        for (message, signature, key, bytes) in signed.iter().cycle().take(ROUND) {
            let parsed = if cached {
                Some(*key)
            } else {
                XOnlyPublicKey::from_byte_array(*bytes).ok()
            };
            let verdict = parsed.map(|key| schnorr::verify(signature, message, &key));
            good += usize::from(matches!(black_box(verdict), Some(Ok(()))));
        }
        assert_eq!(good, ROUND, "the checks are of valid signatures");
        let spent = usage::cpu_of_thread().saturating_sub(before);
        rounds.push(spent.as_secs_f64() * 1e6 / ROUND as f64);
    }
    Cost {
        count: (rounds.len() * ROUND) as u64,
        micros: median(rounds),
    }
}
