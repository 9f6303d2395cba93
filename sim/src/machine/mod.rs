//! The simulator as a backend: a verified program in, a timeline in virtual nanoseconds out.
//!
//! Loading a program prices its instructions, joins them into a dependency graph and finds out which transfers can
//! ever share a link; an iteration is then one sweep of the event queue. Equal iterations are computed once.
//!
//! Deterministic: no clock, no randomness, no hash order, no floating point after pricing.

use std::marker::PhantomData;
use std::sync::Arc;

use cost::CostModel;
use ir::{
    Backend, BackendError, Clock, IterationOutcome, Problem, Rank, SimDuration, SimTime, Timeline, VerifiedProgram,
};

mod beside;
mod graph;
mod memory;
mod network;
mod prices;
mod run;

pub use run::End;

use graph::Graph;
use memory::Memory;
use network::Network;
use prices::Prices;
use run::{Run, Stage};

use crate::queue::{Queue, RadixQueue};

#[derive(Debug)]
struct Loaded {
    program: Arc<VerifiedProgram>,
    digest: u64,
    graph: Graph,
    prices: Prices,
    network: Network,
    memory: Memory,
    /// The one iteration that all are equal to, once computed.
    iteration: Option<Timeline>,
}

/// Simulates programs on the devices and links of a cost model. Generic over its event queue so that benches can
/// compare; everyone else uses the default.
#[derive(Debug)]
pub struct Simulator<Q = RadixQueue<End>> {
    cost: CostModel,
    loaded: Option<Loaded>,
    queue: PhantomData<fn() -> Q>,
}

impl Simulator {
    /// A simulator of the cost model's cluster.
    #[must_use]
    pub const fn new(cost: CostModel) -> Self {
        Self::with_queue(cost)
    }
}

impl<Q: Queue<End> + Default> Simulator<Q> {
    /// The same over another event queue.
    #[must_use]
    pub const fn with_queue(cost: CostModel) -> Self {
        Self { cost, loaded: None, queue: PhantomData }
    }

    /// The cost model.
    #[must_use]
    pub const fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// Runs one iteration event by event, whether or not an equal one was run before.
    ///
    /// # Errors
    /// [`BackendError::Stalled`] naming the unmatched pair, if the program was not sound after all.
    ///
    /// # Panics
    /// Before [`Backend::load`].
    pub fn iterate_afresh(&self, iteration: u64) -> Result<Timeline, BackendError> {
        let loaded = self.loaded.as_ref().expect("load a program before iterating");
        let Loaded { program, graph, prices, network, memory, .. } = loaded;
        let stage = Stage { program, graph, prices, network, memory };
        match Run::new(stage, Q::default()).finish() {
            Ok(lanes) => {
                let (clock, program, input_wait) = (Clock::Simulated, loaded.digest, SimDuration::ZERO);
                let timeline = Timeline { clock, program, iteration, input_wait, lanes };
                // What comes while an iteration runs is there for the next.
                let input = loaded.program.layout.input_time(&loaded.program.workload);
                let ran = timeline.end().saturating_since(SimTime::ZERO);
                let waits = input.map_or(SimDuration::ZERO, |input| input.max(ran) - ran);
                Ok(timeline.after_input(waits))
            }
            Err((role, what)) => {
                let rank: Rank = program.roles[role.index()].ranks.first();
                Err(BackendError::Stalled { rank, iteration, what })
            }
        }
    }
}

impl<Q: Queue<End> + Default> Backend for Simulator<Q> {
    fn clock(&self) -> Clock {
        Clock::Simulated
    }

    fn unsupported(&self, program: &VerifiedProgram) -> Vec<Problem> {
        let cluster = self.cost.cluster();
        let devices = cluster.devices();
        let outside = (0..program.world()).map(Rank::new).find(|r| u64::from(program.device(*r).raw()) >= devices);
        match outside {
            Some(rank) => vec![Problem::new(
                "placement",
                format!(
                    "rank {} is on device {}, but the cluster has {devices}",
                    rank.raw(),
                    program.device(rank).raw()
                ),
            )],
            None => self.cost.problems(program),
        }
    }

    fn load(&mut self, program: Arc<VerifiedProgram>) -> Result<(), BackendError> {
        let reasons = self.unsupported(&program);
        if !reasons.is_empty() {
            return Err(BackendError::Unsupported(reasons));
        }
        let graph = Graph::new(&program);
        let prices = Prices::new(&program, &graph, &self.cost);
        let transfers = prices.transfers.iter().map(|transfer| transfer.alone);
        if let Some(reason) = cost::too_long(prices.local.iter().copied().chain(transfers).map(|time| (time, 1))) {
            return Err(BackendError::Unsupported(vec![reason]));
        }
        let network = Network::new(&program, &graph, &prices, self.cost.cluster());
        let (digest, memory) = (program.digest(), Memory::new(&program));
        self.loaded = Some(Loaded { program, digest, graph, prices, network, memory, iteration: None });
        Ok(())
    }

    fn iterate(&mut self, iteration: u64) -> Result<IterationOutcome, BackendError> {
        let known = self.loaded.as_ref().and_then(|loaded| loaded.iteration.clone());
        let timeline = match known {
            Some(known) => Timeline { iteration, ..known },
            None => {
                let timeline = self.iterate_afresh(iteration)?;
                if let Some(loaded) = &mut self.loaded {
                    loaded.iteration = Some(timeline.clone());
                }
                timeline
            }
        };
        Ok(IterationOutcome { timeline, loss: None, gradient_norm: None })
    }
}
