//! A text as tokens of documents.

use std::ops::Range;
use std::sync::Arc;

use ir::program::Digest;

/// Tokens of a byte-level text: one for each byte.
pub const BYTES: u32 = 256;

/// How documents fill sequences.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Packing {
    /// One after the other, cut where a sequence is full; attention sees what stands before in the sequence, whatever document
    /// it is of (GPT-2, GPT-3).
    Concatenate,
    /// Whole documents side by side, with attention and positions of their own; what is longer than a sequence is cut, and what
    /// stays free is padding without a loss.
    Documents,
}

impl Packing {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Concatenate, Self::Documents];
    /// Its name in scenario files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Concatenate => "concatenate",
            Self::Documents => "documents",
        }
    }
}

/// Tokens of all documents, each in as few bytes as the largest needs.
#[derive(Clone, Debug)]
enum Tokens {
    Bytes(Arc<[u8]>),
    Short(Arc<[u16]>),
    Wide(Arc<[u32]>),
}

/// What is trained on: the tokens of documents, in order, and how they fill sequences. Cloning it copies no token.
#[derive(Clone, Debug)]
pub struct Text {
    tokens: Tokens,
    /// Where each document ends.
    ends: Arc<[u64]>,
    vocabulary: u32,
    packing: Packing,
}

impl Text {
    /// Tokens of all documents.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
    /// Documents.
    #[must_use]
    pub fn documents(&self) -> usize {
        self.ends.len()
    }
    /// How many tokens the tokenizer knows: all of the text's are below.
    #[must_use]
    pub const fn vocabulary(&self) -> u32 {
        self.vocabulary
    }
    /// How documents fill sequences.
    #[must_use]
    pub const fn packing(&self) -> Packing {
        self.packing
    }
    /// The tokens of each document, as places among all.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter().copied()).map(|(start, end)| start..end)
    }
    /// Appends the tokens at these places.
    ///
    /// # Panics
    /// If there are none there.
    pub(super) fn append(&self, places: Range<u64>, out: &mut Vec<u32>) {
        let index = |place| usize::try_from(place).expect("tokens within memory");
        let places = index(places.start)..index(places.end);
        match &self.tokens {
            Tokens::Bytes(tokens) => out.extend(tokens[places].iter().copied().map(u32::from)),
            Tokens::Short(tokens) => out.extend(tokens[places].iter().copied().map(u32::from)),
            Tokens::Wide(tokens) => out.extend_from_slice(&tokens[places]),
        }
    }
    /// A digest of tokens, documents and packing, the same on any machine.
    pub(super) fn take_in(&self, digest: &mut Digest) {
        digest.numbers([self.vocabulary.into(), self.packing as u64, self.ends.len() as u64]);
        self.ends.iter().for_each(|end| digest.number(*end));
        match &self.tokens {
            Tokens::Bytes(tokens) => {
                for word in tokens.chunks(8) {
                    let mut whole = [0; 8];
                    whole[..word.len()].copy_from_slice(word);
                    digest.number(u64::from_le_bytes(whole));
                }
            }
            Tokens::Short(tokens) => tokens.iter().for_each(|token| digest.number((*token).into())),
            Tokens::Wide(tokens) => tokens.iter().for_each(|token| digest.number((*token).into())),
        }
    }
}

/// One document whose tokens are its bytes.
impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Arc::<[u8]>::from(bytes))
    }
}

/// One document whose tokens are its bytes.
impl From<Arc<[u8]>> for Text {
    fn from(bytes: Arc<[u8]>) -> Self {
        let ends = if bytes.is_empty() { Vec::new() } else { vec![bytes.len() as u64] };
        Self { tokens: Tokens::Bytes(bytes), ends: ends.into(), vocabulary: BYTES, packing: Packing::Concatenate }
    }
}

/// Puts a [`Text`] together, document by document.
#[derive(Debug)]
pub struct TextBuilder {
    tokens: Growing,
    ends: Vec<u64>,
    vocabulary: u32,
}

#[derive(Debug)]
enum Growing {
    Bytes(Vec<u8>),
    Short(Vec<u16>),
    Wide(Vec<u32>),
}

impl TextBuilder {
    /// Of a tokenizer that knows this many tokens.
    #[must_use]
    pub const fn new(vocabulary: u32) -> Self {
        let tokens = match vocabulary {
            0..=0x100 => Growing::Bytes(Vec::new()),
            0x101..=0x1_0000 => Growing::Short(Vec::new()),
            0x1_0001.. => Growing::Wide(Vec::new()),
        };
        Self { tokens, ends: Vec::new(), vocabulary }
    }
    /// Takes a document; one without tokens is none.
    ///
    /// # Panics
    /// If the tokenizer does not know a token.
    pub fn push(&mut self, document: &[u32]) {
        let known = |token: u32| {
            assert!(token < self.vocabulary, "token {token} of a vocabulary of {}", self.vocabulary);
            token
        };
        let within = "below the vocabulary";
        let length = match &mut self.tokens {
            Growing::Bytes(tokens) => {
                tokens.extend(document.iter().map(|token| u8::try_from(known(*token)).expect(within)));
                tokens.len()
            }
            Growing::Short(tokens) => {
                tokens.extend(document.iter().map(|token| u16::try_from(known(*token)).expect(within)));
                tokens.len()
            }
            Growing::Wide(tokens) => {
                tokens.extend(document.iter().map(|token| known(*token)));
                tokens.len()
            }
        };
        if !document.is_empty() {
            self.ends.push(length as u64);
        }
    }
    /// The text.
    #[must_use]
    pub fn finish(self, packing: Packing) -> Text {
        let tokens = match self.tokens {
            Growing::Bytes(tokens) => Tokens::Bytes(tokens.into()),
            Growing::Short(tokens) => Tokens::Short(tokens.into()),
            Growing::Wide(tokens) => Tokens::Wide(tokens.into()),
        };
        Text { tokens, ends: self.ends.into(), vocabulary: self.vocabulary, packing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_whatever_their_width() {
        for vocabulary in [256, 257, 65_536, 65_537, 200_000] {
            let documents = [vec![0, 1, vocabulary - 1], vec![], vec![7; 5], vec![vocabulary - 2]];
            let mut builder = TextBuilder::new(vocabulary);
            documents.iter().for_each(|document| builder.push(document));
            let text = builder.finish(Packing::Documents);
            assert_eq!((text.documents(), text.tokens(), text.vocabulary()), (3, 9, vocabulary));
            let mut all = Vec::new();
            text.ranges().for_each(|range| text.append(range, &mut all));
            assert_eq!(all, documents.concat());
            assert_eq!(text.ranges().collect::<Vec<_>>(), [0..3, 3..8, 8..9]);
        }
    }

    #[test]
    fn a_digest_sees_tokens_documents_and_packing() {
        let digest = |documents: &[&[u32]], vocabulary, packing| {
            let mut builder = TextBuilder::new(vocabulary);
            documents.iter().for_each(|document| builder.push(document));
            let mut digest = Digest::new();
            builder.finish(packing).take_in(&mut digest);
            digest.finish()
        };
        let digests = [
            digest(&[&[1, 2, 3]], 256, Packing::Concatenate),
            digest(&[&[1, 2, 4]], 256, Packing::Concatenate),
            digest(&[&[1, 2], &[3]], 256, Packing::Concatenate),
            digest(&[&[1, 2, 3]], 256, Packing::Documents),
            digest(&[&[1, 2, 3]], 300, Packing::Concatenate),
        ];
        for (index, one) in digests.iter().enumerate() {
            assert!(!digests[..index].contains(one), "{digests:x?}");
        }
        assert_eq!(digests[0], digest(&[&[1, 2, 3]], 256, Packing::Concatenate));
    }
}
