//! What one rank writes: a safetensors file.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use super::manifest::{ShardFile, hexadecimal};
use crate::runtime::Kept;
use crate::state::Part;

/// The one entry of a file's metadata. (With several, their order would be that of a hash map.)
const PLACES: &str = "trainyard";
/// Bytes that are written, and counted into the checksum, at a time.
const PIECE: usize = 1 << 20;
/// A header of more bytes is none: what safetensors allows.
const LONGEST_HEADER: u64 = 100_000_000;
const ELEMENT: usize = size_of::<f32>();

/// Where a tensor of a file belongs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    /// Which of the three numbers of each parameter.
    pub(super) kept: Kept,
    /// The tensor of the model.
    pub(super) tensor: String,
    /// Its shape.
    shape: Vec<usize>,
    /// The slice of it, from and to, by dimension.
    slice: Vec<(usize, usize)>,
    /// Where in the slice, flattened, the elements begin.
    first: usize,
}

/// A copy of what a rank writes, made while training waits. Its memory is used again.
#[derive(Default, Debug)]
pub(crate) struct Shard {
    /// Name in the file, place, elements.
    tensors: Vec<(String, Place, usize)>,
    data: Vec<f32>,
}

impl Shard {
    /// Forgets what it holds and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.tensors.clear();
        self.data.clear();
    }
    /// Copies a part of the state.
    pub(crate) fn put(&mut self, kept: Kept, part: &Part<'_>) {
        let place = Place {
            kept,
            tensor: part.name.to_owned(),
            shape: part.shape.to_vec(),
            slice: part.slice.iter().map(|range| (range.start, range.end)).collect(),
            first: part.first,
        };
        self.tensors.push((format!("{}{}", kept.prefix(), part.name), place, part.data.len()));
        self.data.extend_from_slice(&part.data);
    }
    /// Writes the file and brings it to the disk; `None` if there is nothing to write.
    ///
    /// # Errors
    /// What prevents it.
    pub(super) fn write(&self, path: &Path) -> io::Result<Option<ShardFile>> {
        if self.tensors.is_empty() {
            return Ok(None);
        }
        let mut file = File::create(path)?;
        let mut crc32 = crc32fast::Hasher::new();
        let mut bytes = 0;
        let header = self.header()?;
        let length = (header.len() as u64).to_le_bytes();
        // safetensors are little-endian, as every machine that this runs on.
        for part in [&length[..], &header, bytemuck::cast_slice(&self.data)] {
            for piece in part.chunks(PIECE) {
                crc32.update(piece);
                file.write_all(piece)?;
                bytes += piece.len() as u64;
            }
        }
        file.sync_all()?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Some(ShardFile { name, bytes, crc32: hexadecimal(crc32.finalize()) }))
    }

    fn header(&self) -> io::Result<Vec<u8>> {
        let (mut infos, mut places, mut offset) = (Vec::new(), BTreeMap::new(), 0);
        for (name, place, elements) in &self.tensors {
            let end = offset + elements * ELEMENT;
            let sizes: Vec<usize> = place.slice.iter().map(|(from, to)| to - from).collect();
            let whole = sizes.iter().product::<usize>() == *elements;
            let shape = if whole { sizes } else { vec![*elements] };
            infos.push((name.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets: (offset, end) }));
            assert!(places.insert(name, place).is_none(), "{name} is written twice by one rank");
            offset = end;
        }
        let places = serde_json::to_string(&places).map_err(io::Error::other)?;
        let metadata = HashMap::from([(PLACES.to_owned(), places)]);
        let metadata = Metadata::new(Some(metadata), infos).map_err(io::Error::other)?;
        let mut header = serde_json::to_vec(&metadata).map_err(io::Error::other)?;
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(header)
    }
}

/// A file that was opened, and what it says of itself.
#[derive(Debug)]
pub(super) struct Opened {
    file: File,
    start: u64,
    metadata: Metadata,
    places: BTreeMap<String, Place>,
}

impl Opened {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// Why it is no such file.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let read = |error: io::Error| error.to_string();
        let mut file = File::open(path).map_err(read)?;
        let all = file.metadata().map_err(read)?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(read)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER || length + 8 > all {
            return Err(format!("a header of {length} bytes in a file of {all}"));
        }
        let mut header = vec![0; usize::try_from(length).map_err(|e| e.to_string())?];
        file.read_exact(&mut header).map_err(read)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| error.to_string())?;
        let places = metadata.metadata().as_ref().and_then(|entries| entries.get(PLACES));
        let places = places.ok_or("it does not say where its tensors belong")?;
        let places: BTreeMap<String, Place> = serde_json::from_str(places).map_err(|error| error.to_string())?;
        let data = metadata.data_len() as u64;
        if 8 + length + data != all {
            return Err(format!("{} bytes of tensors where its header says {data}", all - 8 - length));
        }
        Ok(Self { file, start: 8 + length, metadata, places })
    }
    /// Where its tensors belong, with how many elements each has.
    ///
    /// # Errors
    /// A tensor that is not of the model, or does not fit its place.
    pub(super) fn places<'a>(&'a self, of: &BTreeMap<String, Vec<usize>>) -> Result<Vec<(&'a Place, usize)>, String> {
        let mut all = Vec::new();
        for name in self.metadata.offset_keys() {
            let info = self.metadata.info(&name).expect("a key of the header");
            let place = self.places.get(&name).ok_or_else(|| format!("{name} has no place"))?;
            let elements = info.shape.iter().product::<usize>();
            let fits = info.dtype == Dtype::F32
                && of.get(&place.tensor) == Some(&place.shape)
                && place.slice.len() == place.shape.len()
                && place.slice.iter().zip(&place.shape).all(|((from, to), whole)| from <= to && to <= whole)
                && place
                    .first
                    .checked_add(elements)
                    .is_some_and(|end| end <= place.slice.iter().map(|(from, to)| to - from).product());
            if !fits {
                return Err(format!("{name} does not fit the model's {}", place.tensor));
            }
            all.push((place, elements));
        }
        Ok(all)
    }
    /// Hands over the parts that are wanted, by the names of their tensors. They must have been looked at before
    /// ([`Self::places`]).
    ///
    /// # Errors
    /// What prevents reading.
    pub(super) fn read(
        &mut self,
        wanted: impl Fn(&str) -> bool,
        mut put: impl FnMut(Kept, &Part<'_>),
    ) -> Result<(), String> {
        let mut data = Vec::new();
        for name in self.metadata.offset_keys() {
            let Some(place) = self.places.get(&name).filter(|place| wanted(&place.tensor)) else { continue };
            let (from, to) = self.metadata.info(&name).expect("a key of the header").data_offsets;
            data.clear();
            data.resize((to - from) / ELEMENT, 0.0);
            let at = SeekFrom::Start(self.start + from as u64);
            let bytes = bytemuck::cast_slice_mut(&mut data);
            let read = self.file.seek(at).and_then(|_| self.file.read_exact(bytes));
            read.map_err(|error| error.to_string())?;
            let slice: Vec<_> = place.slice.iter().map(|(from, to)| *from..*to).collect();
            let part = Part {
                name: &place.tensor,
                shape: &place.shape,
                slice: &slice,
                first: place.first,
                data: (&data).into(),
            };
            put(place.kept, &part);
        }
        Ok(())
    }
}

/// Length and checksum of a file, all of it read.
///
/// # Errors
/// What prevents reading.
pub(super) fn measure(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let (mut crc32, mut bytes, mut piece) = (crc32fast::Hasher::new(), 0, vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((bytes, hexadecimal(crc32.finalize()))),
            count => {
                crc32.update(&piece[..count]);
                bytes += count as u64;
            }
        }
    }
}
