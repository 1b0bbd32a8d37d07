#![no_main]

use buzz_uring_fuzz::entries;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| entries::auth(data));
