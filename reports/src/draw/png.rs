//! PNG (ISO/IEC 15948) of flat pictures: the Up filter, then runs in fixed-Huffman deflate (RFC 1951).
//!
//! A picture of boxes is mostly runs of zeros after the filter, so runs alone shrink it well, and the bytes are the same
//! on every machine.

/// An RGB image of 8 bits a channel, rows from the top.
///
/// # Panics
/// If the pixels are not `3 * width * height`.
pub(super) fn encode(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let row = 3 * width as usize;
    assert_eq!(pixels.len(), row * height as usize, "an image of other size than its pixels");
    let mut filtered = Vec::with_capacity(pixels.len() + height as usize);
    for (index, line) in pixels.chunks_exact(row.max(1)).enumerate() {
        filtered.push(2);
        let above = index.checked_sub(1).map(|above| &pixels[above * row..(above + 1) * row]);
        filtered.extend(line.iter().enumerate().map(|(i, byte)| byte.wrapping_sub(above.map_or(0, |above| above[i]))));
    }
    let mut header = Vec::with_capacity(13);
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut out, *b"IHDR", &header);
    chunk(&mut out, *b"IDAT", &zlib(&filtered));
    chunk(&mut out, *b"IEND", &[]);
    out
}

fn chunk(out: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    out.extend(u32::try_from(data.len()).expect("an image under 4 GiB").to_be_bytes());
    let start = out.len();
    out.extend(kind);
    out.extend(data);
    let sum = crc32(&out[start..]);
    out.extend(sum.to_be_bytes());
}

/// CRC-32 of ISO 3309, as PNG wants it.
fn crc32(data: &[u8]) -> u32 {
    let mut table = [0u32; 256];
    for (index, entry) in (0u32..).zip(&mut table) {
        *entry = (0..8).fold(index, |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 });
    }
    !data.iter().fold(u32::MAX, |c, byte| table[usize::from(c.to_le_bytes()[0] ^ byte)] ^ (c >> 8))
}

fn adler32(data: &[u8]) -> u32 {
    let (a, b) = data.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    (b << 16) | a
}

/// Bits, least significant first.
#[derive(Default)]
struct Bits {
    out: Vec<u8>,
    pending: u32,
    count: u32,
}

impl Bits {
    fn push(&mut self, value: u32, count: u32) {
        self.pending |= value << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push(self.pending.to_le_bytes()[0]);
            self.pending >>= 8;
            self.count -= 8;
        }
    }
    /// Huffman codes go most significant bit first.
    fn code(&mut self, code: u32, count: u32) {
        self.push(code.reverse_bits() >> (32 - count), count);
    }
    /// A literal or length symbol in the fixed code (RFC 1951, 3.2.6).
    fn symbol(&mut self, symbol: u32) {
        match symbol {
            0..=143 => self.code(0x30 + symbol, 8),
            144..=255 => self.code(0x190 + symbol - 144, 9),
            256..=279 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }
    /// A repetition of the byte `distance` back: distance 1 (symbol 0) or 3 (symbol 2), `length` 3 to 258.
    fn copy(&mut self, length: u32, distance_symbol: u32) {
        // Base length and extra bits of each length symbol from 257 (RFC 1951, 3.2.5).
        const BASE: [u32; 29] = [
            3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195,
            227, 258,
        ];
        const EXTRA: [u32; 29] =
            [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
        let index = BASE.iter().rposition(|base| *base <= length).expect("a copy of at least 3");
        self.symbol(257 + u32::try_from(index).expect("29 symbols"));
        self.push(length - BASE[index], EXTRA[index]);
        self.code(distance_symbol, 5);
    }
}

/// The zlib form (RFC 1950) of data, its repetitions one byte or one pixel back written as copies.
fn zlib(data: &[u8]) -> Vec<u8> {
    let mut bits = Bits { out: vec![0x78, 0x01], ..Bits::default() };
    bits.push(0b011, 3);
    let run = |at: usize, distance: usize| {
        if at < distance {
            return 0;
        }
        data[at..].iter().zip(&data[at - distance..]).take(258).take_while(|(a, b)| a == b).count()
    };
    let mut at = 0;
    while at < data.len() {
        let (byte, pixel) = (run(at, 1), run(at, 3));
        let (length, symbol) = if byte >= pixel { (byte, 0) } else { (pixel, 2) };
        if length >= 3 {
            bits.copy(u32::try_from(length).expect("at most 258"), symbol);
            at += length;
        } else {
            bits.symbol(u32::from(data[at]));
            at += 1;
        }
    }
    bits.symbol(256);
    bits.push(0, (8 - bits.count % 8) % 8);
    bits.out.extend(adler32(data).to_be_bytes());
    bits.out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_standards() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }

    /// Fixed-Huffman inflate, as literal as the standard: the oracle.
    fn inflate(data: &[u8]) -> Vec<u8> {
        let mut position = 16 + 3;
        let bit = |position: &mut usize| {
            let value = u32::from(data[*position / 8] >> (*position % 8) & 1);
            *position += 1;
            value
        };
        let mut out = Vec::new();
        loop {
            let mut code = 0;
            let mut length = 0;
            let symbol = loop {
                code = code << 1 | bit(&mut position);
                length += 1;
                match (length, code) {
                    (7, 0..=0x17) => break code + 256,
                    (8, 0x30..=0xbf) => break code - 0x30,
                    (8, 0xc0..=0xc7) => break code - 0xc0 + 280,
                    (9, 0x190..=0x1ff) => break code - 0x190 + 144,
                    (0..=9, _) => {}
                    _ => panic!("no such code"),
                }
            };
            if symbol == 256 {
                return out;
            }
            if symbol < 256 {
                out.push(u8::try_from(symbol).unwrap());
                continue;
            }
            let extra = if symbol < 265 || symbol == 285 { 0 } else { (symbol - 261) / 4 };
            let base = match symbol {
                285 => 258,
                257..=264 => symbol - 254,
                _ => ((4 + (symbol - 261) % 4) << extra) + 3,
            };
            let more: u32 = (0..extra).map(|i| bit(&mut position) << i).sum();
            let distance = (0..5).fold(0, |d, _| d << 1 | bit(&mut position)) as usize + 1;
            for _ in 0..base + more {
                out.push(out[out.len() - distance]);
            }
        }
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let mut data = Vec::new();
        let mut seed = 1u32;
        for round in 0..3000usize {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [_, _, value, length] = seed.to_be_bytes();
            data.extend(std::iter::repeat_n(value, 1 + usize::from(length) * (round % 3)));
        }
        let compressed = zlib(&data);
        assert_eq!(inflate(&compressed), data);
        assert!(compressed.len() * 4 < data.len());
        assert_eq!(inflate(&zlib(&[])), Vec::<u8>::new());
    }
}
