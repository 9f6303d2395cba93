//! A 64-bit digest that is the same on any machine and in any release.

/// FNV-1a over 64-bit words with a final mix (offset and prime: Fowler, Noll, Vo; mix: the 64-bit finaliser of MurmurHash3).
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Digest {
    /// The digest of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
    /// Takes in a number.
    pub const fn number(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }
    /// Takes in a text and its length.
    pub fn text(&mut self, text: &str) {
        for word in text.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.number(u64::from_le_bytes(bytes));
        }
        self.number(text.len() as u64);
    }
    /// The digest of all that was taken in.
    #[must_use]
    pub const fn finish(self) -> u64 {
        let mut hash = self.0;
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ (hash >> 33)
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}
