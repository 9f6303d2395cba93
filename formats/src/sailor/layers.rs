//! What layers hold and exchange, by model and tensor degree.

use std::collections::BTreeMap;

use ir::Problem;

use super::reader::{At, Reader};

/// Sizes of one layer for one sequence on one rank, in numbers of 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerSizes {
    /// Its parameters.
    pub parameters: u64,
    /// What it hands on.
    pub output: u64,
    /// What it takes in.
    pub input: u64,
    /// What it keeps for its backward pass.
    pub kept: u64,
}

/// The keys of a layer. Bytes are four times the numbers, and are held against them.
const KEYS: [&str; 8] = [
    "params_floats",
    "act_output_floats",
    "act_input_floats",
    "act_mem_floats",
    "params_bytes",
    "act_output_bytes",
    "act_input_bytes",
    "act_mem_bytes",
];

/// Layers by model and tensor degree.
pub type Layers = BTreeMap<String, BTreeMap<u32, Vec<LayerSizes>>>;

/// Reads sizes of layers.
///
/// # Errors
/// Everything that is wrong, each with its key and place: keys that are not known, numbers that are no counts, layers that
/// are missing, degrees of a model with unlike numbers of layers.
pub fn layers(text: &str, file: &str) -> Result<Layers, Vec<Problem>> {
    let mut reader = Reader::new(file);
    let Some(root) = reader.tree(text) else { return Err(reader.problems) };
    let root = At { path: String::new(), node: &root };
    let mut models = Layers::new();
    for (name, degrees) in reader.object(&root, "tables by model") {
        let mut found: BTreeMap<u32, Vec<LayerSizes>> = BTreeMap::new();
        for (key, layers) in reader.object(&degrees, "tables by tensor degree") {
            let tensor = reader.key(&key, &layers, 1, "tensor degree");
            let sizes = of_degree(&mut reader, &layers);
            let Some((tensor, sizes)) = tensor.zip(sizes) else { continue };
            if let Some((other, known)) = found.iter().find(|(_, known)| known.len() != sizes.len()) {
                let message = format!("has {} layers, and tensor degree {other} has {}", sizes.len(), known.len());
                reader.fault(&layers, message, "every layer of the model");
            }
            found.insert(tensor, sizes);
        }
        models.insert(name, found);
    }
    if models.is_empty() && reader.problems.is_empty() {
        reader.fault(&root, "has no model", "{ \"a model\": { \"1\": { \"0\": { \"params_floats\": ... } } } }");
    }
    if reader.problems.is_empty() { Ok(models) } else { Err(reader.problems) }
}

fn of_degree(reader: &mut Reader<'_>, layers: &At<'_>) -> Option<Vec<LayerSizes>> {
    let before = reader.problems.len();
    let mut numbered = BTreeMap::new();
    for (key, layer) in reader.object(layers, "tables by layer") {
        let number = reader.key(&key, &layer, 0, "layer");
        let sizes = of_layer(reader, &layer);
        if let Some((number, sizes)) = number.zip(sizes) {
            numbered.insert(number, sizes);
        }
    }
    let last = numbered.keys().next_back().copied().unwrap_or(0);
    if reader.problems.len() == before && u32::try_from(numbered.len()).ok() != last.checked_add(1) {
        let missing = (0..last).find(|number| !numbered.contains_key(number)).unwrap_or(0);
        reader.fault(layers, format!("has layer {last}, and not {missing}"), "each layer from 0 to the head");
    }
    (reader.problems.len() == before).then(|| numbered.into_values().collect())
}

fn of_layer(reader: &mut Reader<'_>, at: &At<'_>) -> Option<LayerSizes> {
    let mut values: [Option<u64>; 8] = [None; 8];
    let keys = reader.object(at, "sizes of a layer");
    for (key, value) in &keys {
        match KEYS.iter().position(|known| known == key) {
            Some(place) => values[place] = reader.whole(value, 0.0, "a size"),
            None => reader.unknown(key, value, &KEYS),
        }
    }
    for (floats, key) in KEYS.iter().enumerate().take(4) {
        if !keys.iter().any(|(there, _)| there == key) {
            reader.fault(at, format!("has no `{key}`"), "the size in numbers of 32 bits");
        }
        // Inputs hold indices and masks of other widths.
        if let (Some(numbers), Some(bytes), true) = (values[floats], values[floats + 4], *key != "act_input_floats")
            && bytes != numbers * 4
        {
            let message = format!("{bytes} bytes are not four times {numbers} numbers ({key})");
            reader.fault(at, message, "both of one measurement");
        }
    }
    Some(LayerSizes { parameters: values[0]?, output: values[1]?, input: values[2]?, kept: values[3]? })
}
