//! Measures one GPU and writes what it found as files; `exec/device-check.sh` runs it beside the conformance suite.
//!
//! ```text
//! device_check OUT_FOLDER [--tiny]
//! ```
//!
//! `--tiny` takes sizes at which the emulated machine of the tests is through in a second: it shows that this program works,
//! and its numbers mean nothing.

mod layer;
mod timing;

use std::fmt::Write as _;
use std::path::Path;

use layer::{Layer, LayerSizes};
use timing::{Row, filled, time};
use trainyard_exec::cuda::{CudaDevice, CudaOptions, probe};
use trainyard_exec::device::{ActivationKind, Device, DeviceError, Element, Operation, Product, Stream};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(out) = arguments.first().filter(|first| !first.starts_with('-')) else {
        say("usage: device_check OUT_FOLDER [--tiny]");
        std::process::exit(2);
    };
    let tiny = arguments.iter().any(|argument| argument == "--tiny");
    if let Err(error) = check(Path::new(out), tiny) {
        say(&format!("device_check: {error}"));
        std::process::exit(1);
    }
}

#[expect(clippy::print_stderr, reason = "this program talks to whoever runs it")]
fn say(words: &str) {
    eprintln!("{words}");
}

fn file_error(path: &Path, error: &std::io::Error) -> DeviceError {
    DeviceError::new(format!("writing {}", path.display()), error.to_string())
}

fn check(out: &Path, tiny: bool) -> Result<(), DeviceError> {
    std::fs::create_dir_all(out).map_err(|error| file_error(out, &error))?;
    let gpu = CudaDevice::open(CudaOptions { ordinal: 0, cache: Some(out.join("cache")) })?;
    let found = probe();
    let about = format!(
        "device: {}\n{}\n{}\n{}\n{}\n",
        gpu.name(),
        found.driver,
        found.compiler,
        found.products,
        found.collectives
    );
    say(&about);
    let path = out.join("machine.txt");
    std::fs::write(&path, about).map_err(|error| file_error(&path, &error))?;
    type Part = fn(&CudaDevice, bool) -> Result<Vec<Row>, DeviceError>;
    let parts: [(&str, Part); 4] =
        [("products", products), ("attention", attention), ("streaming", streaming), ("layers", layers)];
    for (name, part) in parts {
        let mut table = String::from("what,sizes,median_us,spread_percent,achieved,unit\n");
        for row in part(&gpu, tiny)? {
            let _ = writeln!(table, "{row}");
        }
        say(&format!("{name}\n{table}"));
        let path = out.join(format!("{name}.csv"));
        std::fs::write(&path, table).map_err(|error| file_error(&path, &error))?;
    }
    Ok(())
}

/// BF16 products over a grid, in the three forms of a linear layer.
fn products(gpu: &CudaDevice, tiny: bool) -> Result<Vec<Row>, DeviceError> {
    let sizes: &[usize] = if tiny { &[8, 24] } else { &[256, 1024, 2048, 4096, 8192] };
    let tokens: &[usize] = if tiny { &[16] } else { &[512, 2048, 8192] };
    let mut rows = Vec::new();
    for &tokens in tokens {
        for &inputs in sizes {
            for &outputs in sizes {
                let [x, dx] =
                    [filled(gpu, Element::Bf16, tokens * inputs)?, filled(gpu, Element::Bf16, tokens * inputs)?];
                let [y, dy] =
                    [filled(gpu, Element::Bf16, tokens * outputs)?, filled(gpu, Element::Bf16, tokens * outputs)?];
                let (w, dw) =
                    (filled(gpu, Element::Bf16, inputs * outputs)?, filled(gpu, Element::F32, inputs * outputs)?);
                let forms = [
                    ("forward", Product::forward(tokens, inputs, outputs, x, w, false, y)),
                    ("input gradient", Product::input_gradient(tokens, inputs, outputs, dy, w, false, dx)),
                    ("weight gradient", Product::weight_gradient(tokens, inputs, outputs, x, dy, dw)),
                ];
                for (form, product) in forms {
                    let took = time(gpu, || gpu.product(Stream::COMPUTE, &product))?;
                    let flops = 2.0 * (product.m * product.n * product.k) as f64;
                    rows.push(Row::new(form, format!("{tokens}x{inputs}x{outputs}"), took, flops / 1e12, "TFLOP/s"));
                }
                for slice in [x, dx, y, dy, w, dw] {
                    gpu.release(Stream::COMPUTE, slice)?;
                }
            }
        }
    }
    Ok(rows)
}

/// Causal attention, forward and backward; half of the full matrix counts.
fn attention(gpu: &CudaDevice, tiny: bool) -> Result<Vec<Row>, DeviceError> {
    let lengths: &[usize] = if tiny { &[16] } else { &[512, 2048, 8192] };
    let mut rows = Vec::new();
    for &length in lengths {
        for (heads, key_heads, dim) in if tiny { vec![(2, 1, 8)] } else { vec![(16, 16, 64), (32, 8, 128)] } {
            let sizes = LayerSizes { tokens: length, sequence: length, heads, key_heads, dim, ..LayerSizes::default() };
            let attention = layer::Attention::new(gpu, sizes)?;
            let flops = 4.0 * (length * length / 2 * heads * dim) as f64;
            let words = format!("{length}x{heads}/{key_heads}x{dim}");
            for (what, operation, factor) in
                [("forward", attention.forward(), 1.0), ("backward", attention.backward(), 2.5)]
            {
                let took = time(gpu, || gpu.run(Stream::COMPUTE, &operation))?;
                rows.push(Row::new(what, words.clone(), took, factor * flops / 1e12, "TFLOP/s"));
            }
            attention.release(gpu)?;
        }
    }
    Ok(rows)
}

/// What is bound by memory, by the host's link, or by a launch.
fn streaming(gpu: &CudaDevice, tiny: bool) -> Result<Vec<Row>, DeviceError> {
    let count = if tiny { 1000 } else { 64 << 20 };
    let [a, b, out] =
        [filled(gpu, Element::Bf16, count)?, filled(gpu, Element::Bf16, count)?, filled(gpu, Element::Bf16, count)?];
    let small = [a.part(0, 1), b.part(0, 1), out.part(0, 1)];
    let host = gpu.pin(a.bytes())?;
    let bytes = a.bytes() as f64;
    let kind = ActivationKind::GeluTanh;
    let mut rows = Vec::new();
    let mut row = |what, bytes: f64, run: &mut dyn FnMut() -> Result<(), DeviceError>| {
        let took = time(gpu, run)?;
        rows.push(Row::new(what, count.to_string(), took, bytes / 1e9, "GB/s"));
        Ok::<(), DeviceError>(())
    };
    let s = Stream::COMPUTE;
    row("sum", 3.0 * bytes, &mut || gpu.run(s, &Operation::Add { a, b, out }))?;
    row("swiglu", 3.0 * bytes, &mut || gpu.run(s, &Operation::SwigluForward { gate: a, up: b, out }))?;
    row("gelu", 2.0 * bytes, &mut || gpu.run(s, &Operation::ActivationForward { kind, x: a, y: out }))?;
    row("copy", 2.0 * bytes, &mut || gpu.copy(s, a, out))?;
    row("zeros", bytes, &mut || gpu.zero(s, out))?;
    row("to the host", bytes, &mut || gpu.offload(s, a, host, 0))?;
    row("from the host", bytes, &mut || gpu.fetch(s, host, 0, a))?;
    row("launch of one element", 0.0, &mut || gpu.run(s, &Operation::Add { a: small[0], b: small[1], out: small[2] }))?;
    gpu.synchronize(s)?;
    gpu.unpin(host)?;
    for slice in [a, b, out] {
        gpu.release(s, slice)?;
    }
    Ok(rows)
}

/// Forward and backward of whole layers, in BF16 with FP32 weight gradients.
fn layers(gpu: &CudaDevice, tiny: bool) -> Result<Vec<Row>, DeviceError> {
    let all = if tiny {
        vec![("tiny", 2, LayerSizes { tokens: 16, sequence: 16, hidden: 16, heads: 2, key_heads: 1, dim: 8, ffn: 24 })]
    } else {
        vec![
            (
                "8B layer",
                1,
                LayerSizes {
                    tokens: 4096,
                    sequence: 4096,
                    hidden: 4096,
                    heads: 32,
                    key_heads: 8,
                    dim: 128,
                    ffn: 14336,
                },
            ),
            (
                "345M layer",
                1,
                LayerSizes { tokens: 8192, sequence: 1024, hidden: 1024, heads: 16, key_heads: 16, dim: 64, ffn: 4096 },
            ),
            (
                "7B stage of 4 layers",
                4,
                LayerSizes {
                    tokens: 4096,
                    sequence: 4096,
                    hidden: 4096,
                    heads: 32,
                    key_heads: 32,
                    dim: 128,
                    ffn: 11008,
                },
            ),
        ]
    };
    let mut rows = Vec::new();
    for (what, count, sizes) in all {
        let layers = (0..count).map(|_| Layer::new(gpu, sizes)).collect::<Result<Vec<_>, _>>()?;
        let words = format!("{}x{}x{}", sizes.tokens, sizes.hidden, sizes.ffn);
        let forward = time(gpu, || layers.iter().try_for_each(|layer| layer.forward(gpu)))?;
        let backward = time(gpu, || layers.iter().rev().try_for_each(|layer| layer.backward(gpu)))?;
        let flops = count as f64 * sizes.forward_flops() / 1e12;
        rows.push(Row::new(&format!("{what} forward"), words.clone(), forward, flops, "TFLOP/s"));
        rows.push(Row::new(&format!("{what} backward"), words, backward, 2.0 * flops, "TFLOP/s"));
        layers.into_iter().try_for_each(|layer| layer.release(gpu))?;
    }
    Ok(rows)
}
