//! The shared scheduler: what decides, in simulation and in execution alike.
//!
//! * [`schedules`]: the order of passes as a [`ir::grid::Grid`];
//! * [`legality`]: whether a plan can be carried out, with every reason and the nearest plans that can;
//! * [`lowering`]: from a plan to the folded [`ir::Program`] that a backend carries out;
//! * [`evaluate`]: plans to predictions, in closed form or on any backend;
//! * [`aim`]: what planners make small and keep to;
//! * [`policies`]: planners, which search with an evaluator that they are handed;
//! * [`placement`]: which rank is on which device;
//! * [`drive`](mod@drive): the loop that carries out programs and lets a controller decide between iterations.
//!
//! **Deliberately ignorant of** clocks, files, the simulator and the executor: time is an argument, search budgets count
//! evaluations, planners ask an evaluator that they are handed.
//!
//! ```
//! use ir::Schedule;
//! use trainyard_sched::schedules::{CellTimes, Order, dry_run, grid};
//!
//! // 1F1B over two positions, three microbatches, in PyTorch's text form.
//! let order = grid(&Schedule::OneForwardOneBackward, 2, 1, 3).unwrap();
//! assert_eq!(order.to_string(), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
//!
//! // With equal passes its bubble is (p - 1) / (m + p - 1): of 12 slots of each position, 9 are work.
//! let times = CellTimes::uniform(2, [1, 2, 1, 1], 0);
//! let run = dry_run(&order, 2, &Order::of(&order, 2).unwrap(), &times);
//! assert_eq!(run.makespan(), 3 * (3 + 2 - 1));
//! ```
//!
//! Read next: [`passes`] for what one pass consists of, then [`lowering`].

mod across;
pub mod aim;
mod axes;
pub mod drive;
pub mod evaluate;
pub mod layout;
pub mod legality;
pub mod lowering;
pub mod passes;
pub mod placement;
pub mod policies;
pub mod schedules;
pub mod shares;
mod state;
#[cfg(test)]
mod testing;
mod vocabulary;

pub use aim::{Aim, Limits, Objective, Score};
pub use drive::{Controller, Drive, StaticController, drive, drive_on};
pub use evaluate::{ClosedForm, Evaluator, OnBackend, Relief, StageCost, memory_problems, summarise};
pub use legality::{Runtime, legal, nearest, refused_by};
pub use lowering::{Folding, lower, lower_as};
pub use placement::{Placed, place};
pub use policies::{
    DynProg, Exhaustive, Front, Guide, Held, Manual, Mcts, Measure, Megatron, Pareto, Planner, Question, Random, Space,
    Start, Switched,
};
pub use policies::{learned, mcts};
