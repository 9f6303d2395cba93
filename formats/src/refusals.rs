//! What some software cannot be told, collected by name.

use ir::{CollectiveAlgorithm, Plan, Problem, Workload};

use crate::training::Tool;

/// Every part of a plan that a target has no key for.
#[derive(Debug)]
pub(crate) struct Refusals {
    tool: Tool,
    pub(crate) problems: Vec<Problem>,
}

impl Refusals {
    pub(crate) const fn new(tool: Tool) -> Self {
        Self { tool, problems: Vec::new() }
    }
    pub(crate) fn refuse(&mut self, subject: &str, message: &str, hint: &str) {
        let message = format!("{} has no key for it: {message}", self.tool.name());
        self.problems.push(Problem::new(subject, message).hint(hint));
    }
    pub(crate) fn refuse_if(&mut self, is_so: bool, subject: &str, message: &str, hint: &str) {
        if is_so {
            self.refuse(subject, message, hint);
        }
    }
    /// No software that is written for has them.
    pub(crate) fn unlike_tensors(&mut self, plan: &Plan) {
        let hint = "one degree for all stages";
        self.refuse_if(plan.has_unlike_tensors(), "plan.tensor", "a tensor degree for each stage", hint);
    }
    /// What neither torchtitan nor DeepSpeed can be told.
    pub(crate) fn common(&mut self, workload: &Workload, plan: &Plan) {
        let is_automatic = plan.collective == CollectiveAlgorithm::Automatic;
        self.refuse_if(!is_automatic, "plan.collective", plan.collective.name(), "automatic: NCCL chooses");
        self.refuse_if(
            !plan.placement.is_empty(),
            "plan.placement",
            "ranks in another order than devices",
            "the order of the launcher; export --to rank-map says which rank is where",
        );
        let unequal = !plan.shares.are_equal();
        self.refuse_if(unequal, "plan.microbatches", "replicas that take unlike shares", "one number for all of them");
        self.unlike_tensors(plan);
        let divided = !plan.sharing.vocabulary.is_ends();
        self.refuse_if(divided, "plan.vocabulary", "a vocabulary divided over stages", "ends");
        let packed = workload.recipe.document_length.is_some();
        self.refuse_if(packed, "training.document_length", "documents that see themselves alone", "leave the key out");
        let beside = plan.sharing.overlap_experts;
        self.refuse_if(beside, "plan.overlap_experts", "exchanges of experts beside other work", "false");
        let (several, divided) = (plan.tensor > 1, plan.sequence_parallel);
        match self.tool {
            Tool::Torchtitan => self.refuse_if(
                several && !divided,
                "plan.sequence_parallel",
                "tensor ranks that each hold whole sequences",
                "sequence_parallel = true",
            ),
            Tool::DeepSpeed => {
                let message = "activations divided along the sequence";
                self.refuse_if(several && divided, "plan.sequence_parallel", message, "false");
            }
            Tool::Megatron => {}
        }
    }
}
