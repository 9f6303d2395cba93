//! All ranks of a program in one thread, a step of each in turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::program::{CollectiveKind, Direction, Message, Op, Payload};
use ir::{Bytes, GroupId, MicrobatchId, Rank, VerifiedProgram};

use super::super::{NotFinite, Progress, RankState, Weights};
use crate::data::Batch;
use crate::device::Device;

type MessageKey = (Rank, Rank, u32, bool, MicrobatchId);

/// The ranks of a program.
pub(super) struct Lockstep {
    program: Arc<VerifiedProgram>,
    pub(super) ranks: Vec<RankState>,
}

/// What is under way in an iteration.
#[derive(Default)]
struct Traffic {
    messages: BTreeMap<MessageKey, Vec<f32>>,
    /// By group, first rank of the instance and count of its collectives before: what each member put in.
    collectives: BTreeMap<(GroupId, Rank, usize), BTreeMap<u32, Vec<f32>>>,
    /// Collectives that a rank completed in a group.
    completed: BTreeMap<(Rank, GroupId), usize>,
}

/// The sequences of an iteration, each of one token more than the sequence length: a noisy but learnable pattern.
pub(super) fn sequences(program: &VerifiedProgram, iteration: u64) -> Vec<Vec<u32>> {
    let vocabulary = u64::from(program.model.vocabulary);
    let sequence = |index: u32| {
        let mut state = iteration * 1000 + u64::from(index);
        let token = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = state >> 61;
            u32::try_from((noise + 3 * u64::from(index)) % vocabulary).unwrap()
        };
        (0..=program.workload.sequence_length).map(token).collect()
    };
    (0..program.workload.global_batch).map(sequence).collect()
}

impl Lockstep {
    pub(super) fn new(program: &Arc<VerifiedProgram>, initial: Option<&Weights>) -> Self {
        let ranks = (0..program.world()).map(|rank| RankState::new(program, Rank::new(rank), initial)).collect();
        Self { program: Arc::clone(program), ranks }
    }

    /// With a device for each rank.
    pub(super) fn on(program: &Arc<VerifiedProgram>, initial: Option<&Weights>, devices: &[Arc<dyn Device>]) -> Self {
        let rank = |(rank, device): (u32, &Arc<dyn Device>)| {
            RankState::on(program, Rank::new(rank), initial, Some(Arc::clone(device)))
        };
        Self { program: Arc::clone(program), ranks: (0..program.world()).zip(devices).map(rank).collect() }
    }

    /// One iteration; the mean loss.
    pub(super) fn iterate(&mut self, iteration: u64) -> Result<f64, NotFinite> {
        self.feed(iteration);
        self.carry_out()?;
        let first = |rank: &&RankState| self.program.layout.place_of(rank.rank()).tensor_index == 0;
        Ok(self.ranks.iter().filter(first).filter_map(RankState::loss).sum())
    }

    /// The losses of the iterations `0..count`.
    pub(super) fn train(&mut self, count: u64) -> Vec<f64> {
        (0..count).map(|iteration| self.iterate(iteration).unwrap()).collect()
    }

    /// All weights.
    pub(super) fn weights(&self) -> Weights {
        let mut all = Weights::default();
        self.ranks.iter().flat_map(RankState::weights).for_each(|part| all.put(&part));
        all
    }

    pub(super) fn feed(&mut self, iteration: u64) {
        let sequences = sequences(&self.program, iteration);
        let layout = &self.program.layout;
        let (size, microbatches) = (layout.microbatch_size as usize, layout.microbatches as usize);
        for rank in &mut self.ranks {
            rank.begin_iteration(iteration);
            let replica = layout.replica_of(rank.rank()) as usize;
            for microbatch in 0..microbatches {
                let own = &sequences[(replica * microbatches + microbatch) * size..][..size];
                let tokens: Vec<u32> = own.iter().flat_map(|s| s[..s.len() - 1].to_vec()).collect();
                let targets: Vec<u32> = own.iter().flat_map(|s| s[1..].to_vec()).collect();
                let counted = self.program.workload.tokens_per_iteration();
                let batch = Batch { tokens, targets, starts: Vec::new(), counted };
                rank.feed(MicrobatchId::at(microbatch), &batch);
            }
        }
    }

    fn carry_out(&mut self) -> Result<(), NotFinite> {
        let program = Arc::clone(&self.program);
        let ops = |rank: &RankState| {
            let role = &program.roles[program.role_of(rank.rank()).unwrap().index()];
            role.instructions().iter().map(|instruction| instruction.op).collect::<Vec<Op>>()
        };
        let lists: Vec<Vec<Op>> = self.ranks.iter().map(ops).collect();
        let mut counters = vec![0; lists.len()];
        let mut traffic = Traffic::default();
        loop {
            let mut moved = false;
            for (index, list) in lists.iter().enumerate() {
                while let Some(&op) = list.get(counters[index]) {
                    if !self.step(index, op, &mut traffic)? {
                        break;
                    }
                    counters[index] += 1;
                    moved = true;
                }
            }
            if counters.iter().zip(&lists).all(|(counter, list)| *counter == list.len()) {
                assert!(traffic.messages.is_empty(), "a message was never received");
                return Ok(());
            }
            assert!(moved, "no rank can go on: {counters:?}");
        }
    }

    /// Carries an instruction out if it can be.
    fn step(&mut self, index: usize, op: Op, traffic: &mut Traffic) -> Result<bool, NotFinite> {
        let rank = &mut self.ranks[index];
        let here = rank.rank();
        let there = |shift: i64| Rank::new(u32::try_from(i64::from(here.raw()) + shift).unwrap());
        let key = |from: Rank, to: Rank, message: Message| {
            (from, to, message.edge.raw(), message.direction == Direction::Forward, message.microbatch)
        };
        match op {
            Op::Compute { pass, chunk, units, microbatch } => {
                let progress = rank.compute(pass, chunk, units, microbatch)?;
                assert_eq!(progress, Progress::Ended, "nothing runs beside {op:?}");
            }
            Op::Send { peer, message, bytes } => {
                let data = rank.outgoing(message, there(peer.shift)).to_vec();
                assert_eq!(4 * data.len() as u64, bytes.get());
                traffic.messages.insert(key(here, there(peer.shift), message), data);
            }
            Op::Receive { peer, message, .. } => {
                let Some(data) = traffic.messages.remove(&key(there(peer.shift), here, message)) else {
                    return Ok(false);
                };
                rank.incoming(message, there(peer.shift), &data);
            }
            Op::Collective { kind, group, payload, bytes } => {
                return Ok(self.collective(index, (kind, payload, bytes), group, traffic));
            }
            Op::GradientNorm => rank.gradient_norm()?,
            Op::Optimizer => rank.optimizer()?,
            Op::HostCopy { what, out, .. } => rank.host_copy(what, out),
        }
        Ok(true)
    }

    fn collective(
        &mut self,
        index: usize,
        (kind, payload, bytes): (CollectiveKind, Payload, Bytes),
        group: GroupId,
        traffic: &mut Traffic,
    ) -> bool {
        let rank = &mut self.ranks[index];
        let members = self.program.groups[group.index()].instance_of(rank.rank()).unwrap();
        let own = members.index_of(rank.rank()).unwrap();
        let count = traffic.completed.entry((rank.rank(), group)).or_default();
        let parts = traffic.collectives.entry((group, members.first(), *count)).or_default();
        parts.entry(own).or_insert_with(|| rank.contribution(kind, payload).to_vec());
        if parts.len() < members.len() as usize {
            return false;
        }
        let result = join(kind, payload, &parts.values().map(Vec::as_slice).collect::<Vec<_>>());
        if let Payload::Activation { .. } = payload {
            assert_eq!(4 * result.len() as u64, bytes.get(), "{payload:?}");
        }
        let result = match kind {
            CollectiveKind::AllReduce | CollectiveKind::AllGather => &result[..],
            CollectiveKind::ReduceScatter => {
                let part = result.len() / members.len() as usize;
                &result[own as usize * part..][..part]
            }
            CollectiveKind::AllToAll => panic!("{payload:?} is exchanged"),
        };
        rank.deliver(kind, payload, result);
        *count += 1;
        true
    }
}

/// The whole result of a collective.
fn join(kind: CollectiveKind, payload: Payload, parts: &[&[f32]]) -> Vec<f32> {
    if kind == CollectiveKind::AllGather {
        return parts.concat();
    }
    if payload == Payload::GradientNorm {
        let number = |part: &&[f32]| f64::from_bits(u64::from(part[0].to_bits()) << 32 | u64::from(part[1].to_bits()));
        let bits = parts.iter().map(number).sum::<f64>().to_bits();
        return [bits >> 32, bits & 0xffff_ffff].map(|half| f32::from_bits(u32::try_from(half).unwrap())).to_vec();
    }
    let mut sum = parts[0].to_vec();
    for part in &parts[1..] {
        sum.iter_mut().zip(*part).for_each(|(sum, part)| *sum += part);
    }
    sum
}
