//! A decoder layer with grouped queries, rotary embedding, RMSNorm and SwiGLU, as operations on one device.

use trainyard_exec::cuda::CudaDevice;
use trainyard_exec::device::{
    AttentionTensors, Device, DeviceError, Element, Norm, NormSaved, Operation, Product, Rotation, Slice, Stream,
};
use trainyard_exec::kernels::rope::RotaryTable;

use crate::timing::filled;

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LayerSizes {
    pub(crate) tokens: usize,
    pub(crate) sequence: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) dim: usize,
    pub(crate) ffn: usize,
}

impl LayerSizes {
    /// Products, and half of the attention's matrix.
    pub(crate) fn forward_flops(self) -> f64 {
        let Self { tokens, sequence, hidden, heads, key_heads, dim, ffn } = self;
        let weights = hidden * dim * (2 * heads + 2 * key_heads) + 3 * hidden * ffn;
        2.0 * (tokens * weights) as f64 + 4.0 * (tokens * sequence / 2 * heads * dim) as f64
    }

    fn attention(self) -> trainyard_exec::kernels::attention::Attention {
        let sequences = self.tokens / self.sequence;
        trainyard_exec::kernels::attention::Attention::new(
            sequences,
            self.sequence,
            self.heads,
            self.key_heads,
            self.dim,
        )
    }
}

/// Attention with its gradients.
#[derive(Debug)]
pub(crate) struct Attention {
    sizes: LayerSizes,
    tensors: AttentionTensors,
    d_out: Slice,
    delta: Slice,
    dq: Slice,
    dk: Slice,
    dv: Slice,
}

impl Attention {
    pub(crate) fn new(gpu: &CudaDevice, sizes: LayerSizes) -> Result<Self, DeviceError> {
        let query = sizes.tokens * sizes.heads * sizes.dim;
        let key = sizes.tokens * sizes.key_heads * sizes.dim;
        let any = |length| filled(gpu, Element::Bf16, length);
        let singles = || filled(gpu, Element::F32, sizes.tokens * sizes.heads);
        let tensors = AttentionTensors {
            q: any(query)?,
            k: any(key)?,
            v: any(key)?,
            out: any(query)?,
            lse: singles()?,
            starts: None,
        };
        let (dq, dk, dv) = (any(query)?, any(key)?, any(key)?);
        Ok(Self { sizes, tensors, d_out: any(query)?, delta: singles()?, dq, dk, dv })
    }

    pub(crate) fn forward(&self) -> Operation {
        Operation::AttentionForward { shape: self.sizes.attention(), tensors: self.tensors }
    }

    pub(crate) fn backward(&self) -> Operation {
        let Self { tensors, d_out, delta, dq, dk, dv, .. } = *self;
        Operation::AttentionBackward { shape: self.sizes.attention(), tensors, d_out, delta, add: false, dq, dk, dv }
    }

    pub(crate) fn release(self, gpu: &CudaDevice) -> Result<(), DeviceError> {
        let AttentionTensors { q, k, v, out, lse, .. } = self.tensors;
        let all = [q, k, v, out, lse, self.d_out, self.delta, self.dq, self.dk, self.dv];
        all.into_iter().try_for_each(|slice| gpu.release(Stream::COMPUTE, slice))
    }
}

/// A linear layer's weights and their FP32 gradients.
#[derive(Debug, Clone, Copy)]
struct Linear {
    inputs: usize,
    outputs: usize,
    w: Slice,
    dw: Slice,
}

/// Weights, activations and gradients of a layer.
#[derive(Debug)]
pub(crate) struct Layer {
    sizes: LayerSizes,
    attention: Attention,
    /// q, k, v, out, gate, up, down.
    linears: [Linear; 7],
    /// Weights and gradients of the two norms.
    norms: [(Slice, Slice, Slice); 2],
    tables: (Slice, Slice),
    /// `[tokens, hidden]`: input, normed, after attention, normed again, output, and a gradient for each use.
    x: [Slice; 8],
    /// `[tokens, ffn]`: gate, up, their product, and gradients.
    wide: [Slice; 6],
}

impl Layer {
    pub(crate) fn new(gpu: &CudaDevice, sizes: LayerSizes) -> Result<Self, DeviceError> {
        let LayerSizes { tokens, sequence, hidden, heads, key_heads, dim, ffn } = sizes;
        let any = |length| filled(gpu, Element::Bf16, length);
        let singles = |length| filled(gpu, Element::F32, length);
        let linear = |inputs, outputs| -> Result<Linear, DeviceError> {
            Ok(Linear { inputs, outputs, w: any(inputs * outputs)?, dw: singles(inputs * outputs)? })
        };
        let linears = [
            linear(hidden, heads * dim)?,
            linear(hidden, key_heads * dim)?,
            linear(hidden, key_heads * dim)?,
            linear(heads * dim, hidden)?,
            linear(hidden, ffn)?,
            linear(hidden, ffn)?,
            linear(ffn, hidden)?,
        ];
        let norm = || Ok::<_, DeviceError>((any(hidden)?, singles(hidden)?, singles(tokens)?));
        let narrow = || any(tokens * hidden);
        let wide = || any(tokens * ffn);
        let table = RotaryTable::new(sequence, dim, 1e4);
        let upload = |values: &[f32]| -> Result<Slice, DeviceError> {
            let slice = gpu.allocate(Stream::COMPUTE, Element::F32, values.len())?;
            trainyard_exec::device::write_f32(gpu, Stream::COMPUTE, values, slice)?;
            Ok(slice)
        };
        let (cosines, sines) = table.content();
        Ok(Self {
            sizes,
            attention: Attention::new(gpu, sizes)?,
            linears,
            norms: [norm()?, norm()?],
            tables: (upload(cosines)?, upload(sines)?),
            x: [narrow()?, narrow()?, narrow()?, narrow()?, narrow()?, narrow()?, narrow()?, narrow()?],
            wide: [wide()?, wide()?, wide()?, wide()?, wide()?, wide()?],
        })
    }

    fn rotation(&self, heads: usize, back: bool) -> Rotation {
        let ((cosines, sines), LayerSizes { sequence, dim, .. }) = (self.tables, self.sizes);
        Rotation { cosines, sines, head_dim: dim, heads, sequence_length: sequence, first_position: 0, back }
    }

    fn norm(&self, which: usize, x: Slice, y: Slice) -> Operation {
        let (weight, _, rstd) = self.norms[which];
        Operation::NormForward { norm: Norm { weight, bias: None, epsilon: 1e-5 }, x, y, mean: None, rstd }
    }

    pub(crate) fn forward(&self, gpu: &CudaDevice) -> Result<(), DeviceError> {
        let [x, normed, middle, normed2, out, ..] = self.x;
        let [gate, up, product, ..] = self.wide;
        let AttentionTensors { q, k, v, out: attended, .. } = self.attention.tensors;
        let run = |operation: Operation| gpu.run(Stream::COMPUTE, &operation);
        let multiply = |linear: Linear, x, y| {
            let product = Product::forward(self.sizes.tokens, linear.inputs, linear.outputs, x, linear.w, false, y);
            gpu.product(Stream::COMPUTE, &product)
        };
        let [of_q, of_k, of_v, of_out, of_gate, of_up, of_down] = self.linears;
        run(self.norm(0, x, normed))?;
        for (linear, y) in [(of_q, q), (of_k, k), (of_v, v)] {
            multiply(linear, normed, y)?;
        }
        run(Operation::Rotate { rotation: self.rotation(self.sizes.heads, false), x: q })?;
        run(Operation::Rotate { rotation: self.rotation(self.sizes.key_heads, false), x: k })?;
        run(self.attention.forward())?;
        multiply(of_out, attended, normed2)?;
        run(Operation::Add { a: x, b: normed2, out: middle })?;
        run(self.norm(1, middle, normed2))?;
        multiply(of_gate, normed2, gate)?;
        multiply(of_up, normed2, up)?;
        run(Operation::SwigluForward { gate, up, out: product })?;
        multiply(of_down, product, out)?;
        run(Operation::Accumulate { total: out, factor: 1.0, part: middle })
    }

    /// Input and weight gradients; the gradient of the output is what lies in the sixth buffer.
    pub(crate) fn backward(&self, gpu: &CudaDevice) -> Result<(), DeviceError> {
        let [x, normed, middle, normed2, _, dy, d_normed, d_x] = self.x;
        let [gate, up, product, d_gate, d_up, d_product] = self.wide;
        let Attention { dq, dk, dv, d_out, .. } = self.attention;
        let tokens = self.sizes.tokens;
        let run = |operation: Operation| gpu.run(Stream::COMPUTE, &operation);
        let back = |linear: Linear, x, dy, add, dx| {
            let Linear { inputs, outputs, w, dw } = linear;
            gpu.product(Stream::COMPUTE, &Product::input_gradient(tokens, inputs, outputs, dy, w, add, dx))?;
            gpu.product(Stream::COMPUTE, &Product::weight_gradient(tokens, inputs, outputs, x, dy, dw))
        };
        let norm_back = |which: usize, x, dy, dx| {
            let (weight, weight_gradient, rstd) = self.norms[which];
            let (norm, saved) = (Norm { weight, bias: None, epsilon: 1e-5 }, NormSaved { x, mean: None, rstd });
            run(Operation::NormBackwardInput { norm, saved, dy, add: true, dx })?;
            run(Operation::NormBackwardWeight { saved, dy, weight_gradient, bias_gradient: None })
        };
        let [of_q, of_k, of_v, of_out, of_gate, of_up, of_down] = self.linears;
        back(of_down, product, dy, false, d_product)?;
        run(Operation::SwigluBackward { gate, up, d_out: d_product, d_gate, d_up })?;
        back(of_gate, normed2, d_gate, false, d_normed)?;
        back(of_up, normed2, d_up, true, d_normed)?;
        gpu.copy(Stream::COMPUTE, dy, d_x)?;
        norm_back(1, middle, d_normed, d_x)?;
        back(of_out, self.attention.tensors.out, d_x, false, d_out)?;
        run(self.attention.backward())?;
        run(Operation::Rotate { rotation: self.rotation(self.sizes.heads, true), x: dq })?;
        run(Operation::Rotate { rotation: self.rotation(self.sizes.key_heads, true), x: dk })?;
        for (linear, dy, add) in [(of_q, dq, false), (of_k, dk, true), (of_v, dv, true)] {
            back(linear, normed, dy, add, d_normed)?;
        }
        norm_back(0, x, d_normed, d_x)
    }

    pub(crate) fn release(self, gpu: &CudaDevice) -> Result<(), DeviceError> {
        let mut all: Vec<Slice> = self.linears.iter().flat_map(|linear| [linear.w, linear.dw]).collect();
        all.extend(self.norms.iter().flat_map(|&(weight, gradient, rstd)| [weight, gradient, rstd]));
        all.extend(self.x.into_iter().chain(self.wide).chain([self.tables.0, self.tables.1]));
        all.into_iter().try_for_each(|slice| gpu.release(Stream::COMPUTE, slice))?;
        self.attention.release(gpu)
    }
}
