//! Random numbers that are the same everywhere and always.

/// Random numbers that are a function of seed and index, whatever library is in use (SplitMix64).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// The dice for one index.
    pub fn new(seed: u64, index: u64) -> Dice {
        let mut dice = Dice(seed);
        let start = dice.next() ^ index.wrapping_mul(0xd134_2543_de82_ef95);
        Dice(start)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, each alike.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product: even enough for these sizes.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Below `end`, small ones more often: `end · u²`.
    pub fn skewed(&mut self, end: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((unit * unit * end as f64) as u64).min(end - 1)
    }
}
