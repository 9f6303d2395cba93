//! What ranks send each other during an iteration: a header of fixed size, then FP32 numbers.
//!
//! Numbers travel as they lie in memory, little-endian on every machine that this is built for.

use std::io::{self, Read, Write};

use super::socket::Socket;
use crate::runtime::script::EndId;

/// Bytes of a header.
const BYTES: usize = 40;
/// Frames up to this many bytes leave in one write.
const ONE_WRITE: usize = 64 << 10;
/// A time that is not known yet.
const UNKNOWN: u64 = u64::MAX;

#[cfg(target_endian = "big")]
compile_error!("numbers travel as they lie in memory; a machine of the other byte order would misread them");

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// An end of a collective was reached.
    Reached,
    /// What an end puts in: all of it, or the slice that the receiver sums. `at` says when the end was reached, if known.
    Part,
    /// The sum of the slice that the end answers for.
    Sum,
    /// A message was taken: when it began and ended.
    Taken,
}

const KINDS: [Kind; 4] = [Kind::Reached, Kind::Part, Kind::Sum, Kind::Taken];

/// What stands before the numbers. Times are nanoseconds of the iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The iteration, modulo 2^32: what belongs to another one is a bug.
    pub(super) iteration: u32,
    /// Position in the script's transactions.
    pub(super) transaction: u32,
    /// The end that it is about, by its place in the transaction.
    pub(super) end: u32,
    pub(super) at: Option<u64>,
    pub(super) until: Option<u64>,
    /// How many numbers follow.
    pub(super) elements: u64,
}

impl Header {
    /// Of an end, without numbers.
    pub(super) fn about(kind: Kind, iteration: u64, id: EndId, at: Option<u64>) -> Self {
        let number = |position: usize| u32::try_from(position).expect("fewer than 2^32 transactions of an iteration");
        let iteration = u32::try_from(iteration & u64::from(u32::MAX)).expect("32 bits");
        let (transaction, end) = (number(id.transaction), number(id.end));
        Self { kind, iteration, transaction, end, at, until: None, elements: 0 }
    }

    fn write(self) -> [u8; BYTES] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).expect("every kind is listed");
        let mut bytes = [0; BYTES];
        let words = [u32::try_from(kind).expect("few kinds"), self.iteration, self.transaction, self.end];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let longs = [self.at.unwrap_or(UNKNOWN), self.until.unwrap_or(UNKNOWN), self.elements];
        for (place, long) in bytes[16..].chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&long.to_le_bytes());
        }
        bytes
    }

    /// The next header, or an error at the end of the stream.
    pub(super) fn read(from: &mut Socket) -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        from.read_exact(&mut bytes)?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let time = |at: usize| Some(long(at)).filter(|time| *time != UNKNOWN);
        let kind = KINDS.get(word(0) as usize).ok_or_else(|| io::Error::other("it is not a frame"))?;
        let [iteration, transaction, end] = [4, 8, 12].map(word);
        Ok(Self { kind: *kind, iteration, transaction, end, at: time(16), until: time(24), elements: long(32) })
    }
}

/// Sends a header, whose count of numbers is set here, and its numbers.
pub(super) fn send(to: &mut Socket, header: Header, values: &[f32]) -> io::Result<()> {
    let header = Header { elements: values.len() as u64, ..header }.write();
    let values: &[u8] = bytemuck::cast_slice(values);
    if values.is_empty() {
        return to.write_all(&header);
    }
    if header.len() + values.len() <= ONE_WRITE {
        return to.write_all(&[&header, values].concat());
    }
    to.write_all(&header)?;
    to.write_all(values)
}

/// Reads numbers into all of `values`.
pub(super) fn read_values(from: &mut Socket, values: &mut [f32]) -> io::Result<()> {
    from.read_exact(bytemuck::cast_slice_mut(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_as_they_were_sent() {
        let (mut one, mut other) = Socket::pair().unwrap();
        let header = Header {
            kind: Kind::Part,
            iteration: 3,
            transaction: 1_000_000,
            end: 7,
            at: Some(u64::MAX - 1),
            until: None,
            elements: 0,
        };
        for (kind, count) in [(Kind::Reached, 0), (Kind::Part, 5), (Kind::Sum, 100_000), (Kind::Taken, 0)] {
            let values: Vec<f32> = (0..count).map(|i| f32::from_bits(0x7f80_0001 ^ i)).collect();
            let header = Header { kind, ..header };
            std::thread::scope(|scope| {
                scope.spawn(|| send(&mut one, header, &values).unwrap());
                let got = Header::read(&mut other).unwrap();
                assert_eq!(got, Header { elements: values.len() as u64, ..header });
                let mut numbers = vec![0.0; values.len()];
                read_values(&mut other, &mut numbers).unwrap();
                // Bit for bit: a number that is none keeps its payload.
                assert!(numbers.iter().zip(&values).all(|(got, sent)| got.to_bits() == sent.to_bits()));
            });
        }
        one.write_all(&[9; BYTES]).unwrap();
        assert_eq!(Header::read(&mut other).unwrap_err().to_string(), "it is not a frame");
    }

    #[test]
    fn a_stream_is_handed_over() {
        let (one, other) = Socket::pair().unwrap();
        let (mut mine, handed) = Socket::pair().unwrap();
        one.hand_over(&handed).unwrap();
        drop(handed);
        let mut theirs = other.take_over().unwrap();
        mine.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        theirs.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
        drop(one);
        assert!(other.take_over().is_err());
    }
}
