//! Measured layers: what is measured holds, what is not has no price.

use ir::counts::message_bytes;
use ir::program::{CollectiveKind, Pass, UnitRange};
use ir::{AttentionKernel, Axis, Bytes, CollectiveAlgorithm, DeviceId, DeviceKindId, Path, Precision, Recompute};

use super::fixtures::*;
use crate::{Basis, CostModel, GroupPlace, Profile, ProfiledLayer, ProfiledPoint};

const KIND: DeviceKindId = DeviceKindId::new(0);
const MS: u64 = 1_000_000;

fn layer(forward: f64, backward: f64, update: f64) -> ProfiledLayer {
    ProfiledLayer { forward: forward * 1e-3, backward: backward * 1e-3, update: update * 1e-3 }
}

/// Four layers, of which the first is slower, an embedding, a norm and a head; times in proportion to the microbatch.
fn point(tensor: u32, microbatch: u32) -> ProfiledPoint {
    let scale = f64::from(microbatch) / f64::from(tensor);
    let of = |forward: f64, backward: f64| layer(forward * scale, backward * scale, 2.0 / f64::from(tensor));
    let mut layers = vec![of(1.0, 0.0), of(16.0, 20.0)];
    layers.extend([of(8.0, 20.0), of(8.0, 20.0), of(8.0, 20.0), of(1.0, 2.0), of(3.0, 4.0)]);
    ProfiledPoint { tensor, microbatch, layers }
}

fn profile(interpolate: bool) -> Profile {
    let points = [(1, 1), (1, 4), (2, 4)].map(|(tensor, microbatch)| point(tensor, microbatch)).to_vec();
    Profile { source: "p.json".to_owned(), device: "a100".to_owned(), interpolate, points }
}

fn model(profiles: &[Profile]) -> CostModel {
    dgx_a100(4).with_profiles(profiles, &gpt(1024, 4, 16)).expect("sound profiles")
}

fn job(tensor: u32, microbatch: u32, pipeline: u32) -> Owned {
    let layout = ir::program::Layout { pipeline, ..layout(tensor, false, microbatch) };
    Owned(gpt(1024, 4, 16), workload(Precision::Fp32, AttentionKernel::Plain), layout)
}

#[test]
fn layers_of_a_chunk_add_up_to_what_was_measured() {
    let model = model(&[profile(false)]);
    for (tensor, microbatch, scale) in [(1, 1, 1), (1, 4, 4), (2, 4, 2)] {
        let owned = job(tensor, microbatch, 1);
        let prices = model.prepare(owned.shape());
        let whole = chunk(4, true, true, Recompute::None);
        let of = |chunk, pass, units| {
            let priced = model.compute(owned.shape(), chunk, pass, units, KIND);
            assert_eq!(priced, prices.compute(chunk, pass, units, KIND));
            assert_eq!(priced.basis, Basis::Measured);
            priced.duration.nanoseconds()
        };
        let all = |pass| of(&whole, pass, whole.all_units());
        // 1 + 40 + 4 forward, 80 + 6 backward, in thousandths of a second.
        assert_eq!((all(Pass::Forward), all(Pass::Backward)), (45 * scale * MS, 86 * scale * MS));
        assert_eq!(all(Pass::BackwardInput) + all(Pass::BackwardWeight), all(Pass::Backward));
        // A layer anywhere is the mean of all, whole where a tensor group cuts it in half.
        let inner = chunk(3, false, false, Recompute::None);
        assert_eq!(of(&inner, Pass::Forward, inner.all_units()), 30 * scale * MS);
        let halves = [(0, 2), (2, 4)].map(|(start, end)| of(&inner, Pass::Forward, UnitRange { start, end }));
        assert_eq!(halves, [5 * scale * MS; 2]);
        // Its exchanges are in it; others are not.
        let place = GroupPlace::of(model.cluster(), &[DeviceId::new(0), DeviceId::new(1)]);
        let (kind, bytes, ring) = (CollectiveKind::AllReduce, Bytes::new(1 << 26), CollectiveAlgorithm::Ring);
        let along = |axis| model.collective_along((&owned.0, &owned.1), axis, kind, bytes, place, ring);
        assert_eq!(along(Axis::Tensor).duration.nanoseconds(), 1);
        assert_eq!(model.wire_bytes_along((&owned.0, &owned.1), Axis::Tensor, kind, bytes, place, ring).get(), 1);
        assert_eq!(along(Axis::Data), dgx_a100(4).collective(kind, bytes, place, ring));
        // Seven updates of 2 ms over all parameters of the rank.
        let held = owned.0.parameters() / u64::from(tensor);
        let step = model.optimizer(held, Precision::Fp32, tensor, KIND).duration.seconds();
        assert!((step / (7.0 * 2e-3 / f64::from(tensor)) - 1.0).abs() < 1e-6, "{step}");
    }
}

#[test]
fn what_was_not_measured_has_no_price() {
    let strict = model(&[profile(false)]);
    let check = |model: &CostModel, owned: &Owned, expect: &str| {
        let problems = model.unprofiled(owned.shape(), &[KIND]);
        let told = problems.iter().any(|problem| problem.to_string().contains(expect) && problem.hint.is_some());
        assert!(told, "{problems:?} has not {expect}");
        let whole = chunk(4, true, true, Recompute::None);
        let lost = model.compute(owned.shape(), &whole, Pass::Forward, whole.all_units(), KIND);
        if problems.iter().any(|problem| problem.subject != "plan.sequence_parallel") {
            assert!(lost.duration.seconds() > 1000.0 && lost.basis == Basis::Assumed, "{lost:?}");
        }
    };
    assert!(strict.unprofiled(job(2, 4, 1).shape(), &[KIND]).is_empty());
    check(&strict, &job(4, 4, 1), "no tensor degree 4 was measured on a100");
    check(&strict, &job(1, 2, 1), "no microbatch 2 at tensor degree 1 was measured on a100 (p.json)");
    check(&strict, &job(2, 1, 1), "no microbatch 1 at tensor degree 2");
    check(&strict, &job(1, 8, 1), "no microbatch 8");
    let mut divided = job(2, 4, 1);
    divided.2.sequence_parallel = true;
    check(&strict, &divided, "no layer with divided sequences");

    // Between two points, and nowhere else, if the profile says so.
    let between = model(&[profile(true)]);
    let owned = job(1, 2, 1);
    let whole = chunk(4, true, true, Recompute::None);
    let priced = between.compute(owned.shape(), &whole, Pass::Forward, whole.all_units(), KIND);
    assert_eq!((priced.duration.nanoseconds(), priced.basis), (90 * MS, Basis::Interpolated));
    check(&between, &job(1, 8, 1), "no microbatch 8");
    check(&between, &job(2, 2, 1), "no microbatch 2 at tensor degree 2");
}

#[test]
fn points_that_others_contradict_are_replaced_by_name() {
    let mut profile = profile(false);
    profile.points.push(point(1, 8));
    let slow = profile.points.iter_mut().find(|point| point.microbatch == 1).expect("there");
    slow.layers[1..5].iter_mut().for_each(|layer| layer.forward = 90e-3);
    let model = model(&[profile]);
    let owned = job(1, 1, 1);
    let inner = chunk(1, false, false, Recompute::None);
    let priced = model.compute(owned.shape(), &inner, Pass::Forward, inner.all_units(), KIND);
    // From 10 ms, on the line through 40 and 80 ms of microbatches 4 and 8, to 40 ms.
    assert_eq!((priced.duration.nanoseconds(), priced.basis), (25 * MS, Basis::Interpolated));
    let named = model.replaced_points();
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(named[0].contains("p.json: forward of a layer takes 90.000 ms at microbatch 1"), "{named:?}");
}

#[test]
fn messages_that_block_lengthen_passes_by_what_they_take() {
    let model = model(&[profile(false)]);
    let mut owned = job(2, 4, 4);
    let of = |owned: &Owned, embedding, head| {
        let chunk = chunk(1, embedding, head, Recompute::None);
        let [forward, backward] = [Pass::Forward, Pass::Backward].map(|pass| {
            let priced = model.compute(owned.shape(), &chunk, pass, chunk.all_units(), KIND);
            assert_eq!(priced, model.prepare(owned.shape()).compute(&chunk, pass, chunk.all_units(), KIND));
            priced.duration.nanoseconds()
        });
        (forward, backward)
    };
    let ends = [(true, true), (true, false), (false, true), (false, false)];
    let free = ends.map(|(embedding, head)| of(&owned, embedding, head));
    owned.1.recipe.blocking_messages = true;
    let message = {
        let pricing = dgx_a100(4);
        let (from, to) = (DeviceId::new(0), DeviceId::new(8));
        assert_eq!(pricing.cluster().path(from, to), Path::Leaf);
        pricing.message(message_bytes(owned.shape()), from, to).duration.nanoseconds()
    };
    assert!(message > MS);
    for ((embedding, head), free) in ends.into_iter().zip(free) {
        let others = u64::from(!embedding) + u64::from(!head);
        let held = of(&owned, embedding, head);
        assert_eq!(held, (free.0 + others * message, free.1 + others * message));
    }
    // One stage exchanges nothing.
    let mut alone = job(2, 4, 1);
    alone.1.recipe.blocking_messages = true;
    assert_eq!(of(&alone, false, false), free[3]);
}

#[test]
fn profiles_of_something_else_are_refused() {
    let check = |profiles: &[Profile], expect: &str| {
        let problems = dgx_a100(1).with_profiles(profiles, &gpt(1024, 4, 16)).expect_err(expect);
        let told = problems.iter().any(|problem| problem.to_string().contains(expect) && problem.hint.is_some());
        assert!(told, "{problems:?} has not {expect}");
    };
    let with = |change: &dyn Fn(&mut Profile)| {
        let mut changed = profile(false);
        change(&mut changed);
        changed
    };
    check(&[with(&|p| p.device = "h100".to_owned())], "p.json is of h100, which the cluster does not have");
    check(&[profile(false), profile(true)], "is a second profile of a100");
    check(&[with(&|p| p.points.iter_mut().for_each(|point| point.layers.truncate(4)))], "has 4 layers");
    check(&[with(&|p| p.points[0].layers[2].forward = 0.0)], "has no times at microbatch 1 and tensor degree 1");
    check(&[with(&|p| p.points[0].layers[2].backward = f64::NAN)], "has no times");
    check(&[with(&|p| p.points.push(point(1, 1)))], "has microbatch 1 of tensor degree 1 twice");
    check(&[with(&|p| p.points.clear())], "has no point");
}
