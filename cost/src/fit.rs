//! An executor's measurements to a calibration of its machine, with honest errors.
//!
//! Points are kept and interpolated; the error of a class is that of each point predicted from the others
//! (leave-one-out), so a class with one point has none.

use std::collections::BTreeMap;

use ir::counts::Streaming;
use ir::program::CollectiveKind;
use ir::{AttentionKernel, MeasuredOp, Measurement, Precision, Problem};

use crate::calibration::{
    Attention, Calibration, CollectivePoints, Dispatch, InTraining, Interference, MatrixProduct, Measured,
    SHARED_MEMORY, StreamingPoints, StreamingRate,
};

use crate::curve::Curve;
use crate::shapes::{Grid, Terms, attention_points, attention_terms, product_points, product_terms};

/// The error of one class of operations, each point predicted from the others.
#[derive(Clone, PartialEq, Debug)]
pub struct ClassError {
    /// The class: `matrix-product`, `attention-forward`, `attention-backward`, `copy`, a streaming kernel's name, or a
    /// collective's name with its members.
    pub class: String,
    /// Points measured.
    pub points: u32,
    /// Points predicted: those inside the range of the others.
    pub predicted: u32,
    /// Median of |predicted/measured - 1|; `None` where nothing could be predicted.
    pub median_error: Option<f64>,
    /// Largest of them.
    pub worst_error: Option<f64>,
    /// Median dispersion of the measurements themselves: what no model can beat.
    pub dispersion: f64,
}

/// How well the measurements predict each other.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FitReport {
    /// One per class, by name.
    pub classes: Vec<ClassError>,
}

/// Measurements sorted by class.
#[derive(Default)]
struct Sorted {
    products: Vec<[f64; 4]>,
    attention: [Vec<[f64; 5]>; 2],
    copies: Vec<[f64; 2]>,
    streaming: BTreeMap<Streaming, Vec<[f64; 2]>>,
    collectives: BTreeMap<(String, u32), Vec<[f64; 2]>>,
    dispatch: Vec<f64>,
    dispersions: BTreeMap<String, Vec<f64>>,
}

/// Makes a calibration of CPU workers from what an executor measured of them.
///
/// Bytes of streaming kernels must be counted as [`ir::counts::unit_kernels`] and [`crate::CostModel::optimizer`] count
/// them. Kernels that were not measured are priced like [`Streaming::Add`].
///
/// # Errors
/// No matrix product or no streaming addition measured; unknown kernel or collective names; times or sizes of zero.
pub fn fit(measurements: &[Measurement], name: &str) -> Result<(Calibration, FitReport), Vec<Problem>> {
    let (sorted, mut problems) = sort(measurements);
    if sorted.products.is_empty() {
        problems.push(Problem::new("measurements", "no matrix product was measured").hint("measure a grid of shapes"));
    }
    if !sorted.streaming.contains_key(&Streaming::Add) {
        problems
            .push(Problem::new("measurements", "no `add` kernel was measured").hint("it prices what was not measured"));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let report = FitReport { classes: errors(&sorted) };
    Ok((calibration(sorted, name), report))
}

fn sort(measurements: &[Measurement]) -> (Sorted, Vec<Problem>) {
    let (mut sorted, mut problems) = (Sorted::default(), Vec::new());
    for (index, measurement) in measurements.iter().enumerate() {
        let us = measurement.median.seconds() * 1e6;
        let mut fault = |message: String| problems.push(Problem::new(format!("measurements[{index}]"), message));
        if measurement.median.nanoseconds() == 0 {
            fault("it took no time".to_owned());
            continue;
        }
        let class = class_name(&measurement.op);
        let positive = |sizes: &[u64]| sizes.iter().all(|size| *size > 0);
        match &measurement.op {
            MeasuredOp::MatrixProduct { m, n, k } if positive(&[*m, *n, *k]) => {
                sorted.products.push([*m as f64, *n as f64, *k as f64, us]);
            }
            MeasuredOp::Attention { sequences, sequence_length, heads, head_dim, backward }
                if positive(&[*sequences, *sequence_length, *heads, *head_dim]) =>
            {
                let point = [*sequences as f64, *sequence_length as f64, *heads as f64, *head_dim as f64, us];
                sorted.attention[usize::from(*backward)].push(point);
            }
            MeasuredOp::Copy { bytes } if bytes.get() > 0 => sorted.copies.push([bytes.get() as f64, us]),
            MeasuredOp::ElementWise { bytes, kernel } if bytes.get() > 0 => match Streaming::from_name(kernel) {
                Some(kind) => sorted.streaming.entry(kind).or_default().push([bytes.get() as f64, us]),
                None => fault(format!("no streaming kernel is called `{kernel}`")),
            },
            MeasuredOp::Collective { kind, ranks, bytes } if bytes.get() > 0 && *ranks > 1 => {
                match CollectiveKind::from_name(kind) {
                    Some(_) => {
                        sorted.collectives.entry((kind.clone(), *ranks)).or_default().push([bytes.get() as f64, us]);
                    }
                    None => fault(format!("no collective is called `{kind}`")),
                }
            }
            MeasuredOp::Dispatch => sorted.dispatch.push(us),
            MeasuredOp::MatrixProduct { .. }
            | MeasuredOp::Attention { .. }
            | MeasuredOp::Copy { .. }
            | MeasuredOp::ElementWise { .. }
            | MeasuredOp::Collective { .. } => fault(format!("{:?} has a size of zero", measurement.op)),
        }
        sorted.dispersions.entry(class).or_default().push(measurement.dispersion);
    }
    (sorted, problems)
}

fn class_name(op: &MeasuredOp) -> String {
    match op {
        MeasuredOp::MatrixProduct { .. } => "matrix-product".to_owned(),
        MeasuredOp::ElementWise { kernel, .. } => kernel.clone(),
        MeasuredOp::Attention { backward: false, .. } => "attention-forward".to_owned(),
        MeasuredOp::Attention { backward: true, .. } => "attention-backward".to_owned(),
        MeasuredOp::Copy { .. } => "copy".to_owned(),
        MeasuredOp::Collective { kind, ranks, .. } => format!("{kind} of {ranks}"),
        MeasuredOp::Dispatch => "dispatch".to_owned(),
    }
}

/// Leave-one-out errors of every class, by name.
fn errors(sorted: &Sorted) -> Vec<ClassError> {
    let mut classes: BTreeMap<String, (usize, Vec<f64>)> = BTreeMap::new();
    let mut grid = |name: &str, points: Vec<([f64; 3], f64)>, terms: Terms| {
        if !points.is_empty() {
            classes.insert(name.to_owned(), (points.len(), grid_errors(&points, terms)));
        }
    };
    grid("matrix-product", product_points(&sorted.products), product_terms);
    grid("attention-forward", attention_points(&sorted.attention[0]), attention_terms);
    grid("attention-backward", attention_points(&sorted.attention[1]), attention_terms);
    let mut curve = |name: String, points: &[[f64; 2]]| {
        if !points.is_empty() {
            classes.insert(name, (points.len(), curve_errors(points)));
        }
    };
    curve("copy".to_owned(), &sorted.copies);
    for (kind, points) in &sorted.streaming {
        curve(kind.name().to_owned(), points);
    }
    for ((kind, ranks), points) in &sorted.collectives {
        curve(format!("{kind} of {ranks}"), points);
    }
    classes
        .into_iter()
        .map(|(class, (points, mut errors))| {
            errors.sort_by(f64::total_cmp);
            ClassError {
                points: u32::try_from(points).expect("fewer than 2^32 measurements"),
                predicted: u32::try_from(errors.len()).expect("fewer than 2^32 measurements"),
                median_error: median(&errors),
                worst_error: errors.last().copied(),
                dispersion: sorted.dispersions.get(&class).and_then(|all| median(&ordered(all))).unwrap_or(0.0),
                class,
            }
        })
        .collect()
}

fn ordered(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// The median of values in order.
fn median(values: &[f64]) -> Option<f64> {
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

fn grid_errors(points: &[([f64; 3], f64)], terms: Terms) -> Vec<f64> {
    points
        .iter()
        .filter_map(|(sizes, seconds)| {
            // A shape that was measured twice must not predict itself.
            let same = |other: &[f64; 3]| other.iter().zip(sizes).all(|(a, b)| a.total_cmp(b).is_eq());
            let others: Vec<_> = points.iter().filter(|(other, _)| !same(other)).copied().collect();
            Some((Grid::new(&others, terms)?.at(*sizes).0 / seconds - 1.0).abs())
        })
        .collect()
}

/// Only points between others: nobody asks a calibration far outside of what it measured.
fn curve_errors(points: &[[f64; 2]]) -> Vec<f64> {
    let smallest = points.iter().map(|p| p[0]).fold(f64::INFINITY, f64::min);
    let largest = points.iter().map(|p| p[0]).fold(0.0, f64::max);
    points
        .iter()
        .filter(|point| point[0] > smallest && point[0] < largest)
        .filter_map(|point| {
            let others = points.iter().filter(|other| other[0].total_cmp(&point[0]).is_ne()).map(|o| (o[0], o[1]));
            Some((Curve::new(others)?.at(point[0]).0 / point[1] - 1.0).abs())
        })
        .collect()
}

fn calibration(sorted: Sorted, name: &str) -> Calibration {
    let source = "measured by the executor on this machine";
    let add = sorted.streaming[&Streaming::Add].clone();
    let missing = Streaming::ALL.into_iter().filter(|kind| {
        let stand_in = kind.stand_in().is_some_and(|k| sorted.streaming.contains_key(&k));
        !sorted.streaming.contains_key(kind) && !stand_in
    });
    let priced_like_add: Vec<StreamingPoints> =
        missing.map(|kind| StreamingPoints { kernel: kind.name().to_owned(), points: add.clone() }).collect();
    let by_name =
        |(kind, points): (Streaming, Vec<[f64; 2]>)| StreamingPoints { kernel: kind.name().to_owned(), points };
    let [attention_forward, attention_backward] = sorted.attention;
    // Constants stand behind the measurements: only what has no point (attention, if it was not measured) uses them.
    Calibration {
        name: name.to_owned(),
        device: "one CPU core as one worker".to_owned(),
        source: source.to_owned(),
        generation: None,
        spread: None,
        threads: true,
        dispatch: Dispatch { instruction_us: median(&ordered(&sorted.dispatch)).unwrap_or(0.0), launch_us: 0.0 },
        interference: Interference::default(),
        in_training: InTraining::default(),
        matrix_product: vec![assumed_product()],
        attention: vec![assumed_attention()],
        streaming: vec![assumed_streaming()],
        link: Vec::new(),
        protocol: Vec::new(),
        collective_fit: Vec::new(),
        message_fit: Vec::new(),
        host: None,
        measured: Some(Measured {
            precision: Precision::Fp32,
            matrix_products: sorted.products,
            attention_forward,
            attention_backward,
            copies: sorted.copies,
            streaming: sorted.streaming.into_iter().map(by_name).chain(priced_like_add).collect(),
            collectives: sorted
                .collectives
                .into_iter()
                .map(|((kind, ranks), points)| CollectivePoints {
                    link: SHARED_MEMORY.to_owned(),
                    kind,
                    ranks,
                    nodes: 1,
                    points,
                })
                .collect(),
        }),
    }
}

const ASSUMED: &str = "assumed";

fn assumed_product() -> MatrixProduct {
    MatrixProduct {
        precision: Precision::Fp32,
        overhead_us: 0.5,
        utilisation: 0.6,
        wave_exponent: 0.5,
        memory_efficiency: 0.8,
        tile_m: 8,
        tile_n: 16,
        grouped_utilisation: None,
        alignment: Vec::new(),
        rows: 0,
        source: ASSUMED.to_owned(),
    }
}

fn assumed_attention() -> Attention {
    Attention {
        kernel: AttentionKernel::Fused,
        forward_utilisation: 0.25,
        backward_utilisation: 0.25,
        overhead_us: 1.0,
        block: 64,
        score_bytes: 0.0,
        score_bytes_backward: 0.0,
        elementary_score_bytes: None,
        elementary_score_bytes_backward: None,
        alignment: Vec::new(),
        precision: None,
        rows: 0,
        source: ASSUMED.to_owned(),
    }
}

fn assumed_streaming() -> StreamingRate {
    StreamingRate {
        kernel: "all".to_owned(),
        overhead_us: 0.2,
        bandwidth_fraction: 0.8,
        rows: 0,
        source: ASSUMED.to_owned(),
    }
}
