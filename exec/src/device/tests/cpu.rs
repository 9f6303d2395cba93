//! The CPU as a device.

use super::suite;
use crate::device::*;
use crate::kernels::testing::Cases;

/// Every operation, in both elements.
#[test]
fn two_runs_agree_to_the_bit_and_give_all_memory_back() {
    for (name, group) in suite::GROUPS {
        Cases::run(6, |cases| {
            let again = &mut cases.clone();
            let element = [Element::F32, Element::Bf16][cases.size(0, 1)];
            again.size(0, 1);
            let device = CpuDevice::new();
            let first = suite::run(&device, element, cases, *group);
            let second = suite::run(&device, element, again, *group);
            let bits = |outcomes: &[suite::Outcome]| {
                outcomes.iter().flat_map(|o| o.values.iter().map(|v| v.to_bits())).collect::<Vec<_>>()
            };
            assert_eq!(bits(&first), bits(&second), "{name}");
            assert_eq!(device.memory().in_use, 0, "{name}: all was given back");
            assert!(device.memory().peak > 0 && !first.is_empty(), "{name}: something was done");
        });
    }
}

/// Row-major products with transposes against sums in double precision.
#[test]
fn products_match_a_sum_in_double_precision() {
    Cases::run(20, |cases| {
        let (m, n, k) = (cases.size(1, 12), cases.size(1, 12), cases.size(1, 12));
        let (a, b, c) = (cases.values(m * k, 1.0), cases.values(k * n, 1.0), cases.values(m * n, 1.0));
        let (transpose_a, transpose_b) = (cases.size(0, 1) == 1, cases.size(0, 1) == 1);
        let device = CpuDevice::new();
        let upload = |values: &[f32]| {
            let slice = device.allocate(Stream::COMPUTE, Element::F32, values.len()).expect("memory");
            write_f32(&device, Stream::COMPUTE, values, slice).expect("a write");
            slice
        };
        let (alpha, beta) = (0.5, 2.0);
        let out = upload(&c);
        let product = Product { m, n, k, a: upload(&a), transpose_a, b: upload(&b), transpose_b, alpha, beta, c: out };
        device.product(Stream::COMPUTE, &product).expect("a product");
        let at_a = |i: usize, l: usize| f64::from(if transpose_a { a[l * m + i] } else { a[i * k + l] });
        let at_b = |l: usize, j: usize| f64::from(if transpose_b { b[j * k + l] } else { b[l * n + j] });
        let want: Vec<f64> = (0..m * n)
            .map(|at| {
                let sum: f64 = (0..k).map(|l| at_a(at / n, l) * at_b(l, at % n)).sum();
                f64::from(alpha) * sum + f64::from(beta) * f64::from(c[at])
            })
            .collect();
        let got = read_f32(&device, Stream::COMPUTE, out).expect("a read");
        crate::kernels::testing::assert_close("product", &got, &want, 1e-6);
    });
}

/// A choice goes to the place of its expert and comes back to its token.
#[test]
fn rows_come_back_from_their_experts() {
    let device = CpuDevice::new();
    let numbers = |values: &[u32]| {
        let slice = device.allocate(Stream::COMPUTE, Element::U32, values.len()).expect("memory");
        write_u32(&device, Stream::COMPUTE, values, slice).expect("a write");
        slice
    };
    let singles = |values: &[f32]| {
        let slice = device.allocate(Stream::COMPUTE, Element::F32, values.len()).expect("memory");
        write_f32(&device, Stream::COMPUTE, values, slice).expect("a write");
        slice
    };
    let run = |operation| device.run(Stream::COMPUTE, &operation).expect("an operation");
    let chosen = numbers(&[2, 0, 0, 1]);
    let [order, places, counts] = [4, 4, 3].map(|count| numbers(&vec![9; count]));
    run(Operation::OrderByExpert { chosen, order, places, counts });
    let read = |slice| {
        let bytes = device.read(Stream::COMPUTE, slice).expect("a read");
        bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect::<Vec<_>>()
    };
    assert_eq!((read(order), read(places), read(counts)), (vec![1, 2, 3, 0], vec![3, 0, 1, 2], vec![2, 1, 1]));
    let (x, copies, out) = (singles(&[1.0, 2.0]), singles(&[0.0; 4]), singles(&[0.0; 2]));
    run(Operation::GatherRows { width: 1, share: 2, indices: order, factors: None, from: x, to: copies });
    assert_eq!(read_f32(&device, Stream::COMPUTE, copies).expect("a read"), [1.0, 2.0, 2.0, 1.0]);
    let factors = Some(singles(&[0.25, 0.75, 0.5, 0.25]));
    run(Operation::CombineRows { width: 1, share: 2, places, factors, rows: copies, out });
    assert_eq!(read_f32(&device, Stream::COMPUTE, out).expect("a read"), [1.0, 1.5]);
}

#[test]
#[should_panic(expected = "an output overlaps an input")]
fn an_output_that_overlaps_an_input_is_a_bug() {
    let device = CpuDevice::new();
    let whole = device.allocate(Stream::COMPUTE, Element::F32, 10).expect("memory");
    let (a, out) = (whole.part(0, 6), whole.part(4, 6));
    device.run(Stream::COMPUTE, &Operation::Add { a, b: a, out }).expect("a panic before");
}

#[test]
#[should_panic(expected = "sizes do not fit")]
fn sizes_that_disagree_are_a_bug() {
    let device = CpuDevice::new();
    let allocate = |length| device.allocate(Stream::COMPUTE, Element::F32, length).expect("memory");
    let (a, b, out) = (allocate(5), allocate(5), allocate(6));
    device.run(Stream::COMPUTE, &Operation::Add { a, b, out }).expect("a panic before");
}
