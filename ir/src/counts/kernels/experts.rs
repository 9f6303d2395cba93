//! Routers and experts.

use super::{Half, List};
use crate::counts::{Kernel, Streaming, bytes_of};

impl List<'_, '_> {
    /// Scores of each token of the residual stream for each expert, in FP32: softmax, the best few, their weights and
    /// counts, and the balance's loss: 24 bytes per score.
    pub(super) fn router(&mut self) {
        let (rows, count) = (self.shape.residual_tokens(), u64::from(self.shape.experts().count));
        self.product(rows, count, self.hidden());
        self.stream(Streaming::Router, bytes_of([rows, count, 24]).get(), 8);
    }
    /// Gradients of weights and balance back through the softmax: 16 bytes per score.
    pub(super) fn router_backward(&mut self, half: Half) {
        let (rows, count, hidden) =
            (self.shape.residual_tokens(), u64::from(self.shape.experts().count), self.hidden());
        match half {
            Half::Input => {
                self.stream(Streaming::Router, bytes_of([rows, count, 16]).get(), 6);
                self.product(rows, hidden, count);
            }
            Half::Weight => {
                self.product(hidden, count, rows);
                self.bias_gradient(self.shape.experts().router_bias, rows, count);
            }
        }
    }

    /// Copies in the order of experts before they are sent, and again by local expert where several ranks sent some.
    fn permute(&mut self, into_experts: bool) {
        let hidden = self.hidden();
        let (sent, received) = (self.shape.routed_copies(), self.shape.received_copies());
        // Reads each token once and writes its copies, or reads the copies and writes their weighted sum.
        let own = self.pass_over(self.shape.routed_tokens(), hidden, 1) + self.pass_over(sent, hidden, 1);
        let sorts = self.shape.expert() > 1 && self.shape.local_experts() > 1;
        let local = self.pass_over(received, hidden, 2);
        if into_experts {
            self.stream(Streaming::Permute, own, 3);
            if sorts {
                self.stream(Streaming::Permute, local, 1);
            }
        } else {
            if sorts {
                self.stream(Streaming::Permute, local, 1);
            }
            self.stream(Streaming::Permute, own, 2);
        }
    }

    /// A product of each local expert, with its conversions in FP8.
    fn grouped(&mut self, inputs: u64, outputs: u64) {
        let (groups, m) = (self.shape.local_experts(), self.shape.tokens_per_expert());
        if self.converts() {
            self.cast(self.shape.received_copies(), inputs);
            self.cast_weights(bytes_of([groups, inputs, outputs]).get());
        }
        self.out.push(Kernel::GroupedProduct { groups, m, n: outputs, k: inputs });
    }
    fn grouped_backward(&mut self, half: Half, inputs: u64, outputs: u64) {
        let (groups, m) = (self.shape.local_experts(), self.shape.tokens_per_expert());
        match half {
            Half::Input => {
                if self.converts() {
                    self.cast(self.shape.received_copies(), outputs);
                }
                self.out.push(Kernel::GroupedProduct { groups, m, n: inputs, k: outputs });
            }
            Half::Weight => self.out.push(Kernel::GroupedProduct { groups, m: inputs, n: outputs, k: m }),
        }
    }

    pub(super) fn experts(&mut self) {
        let (experts, hidden) = (*self.shape.experts(), self.hidden());
        let (received, ffn) = (self.shape.received_copies(), self.shape.rank_expert_ffn());
        self.permute(true);
        self.grouped(hidden, experts.mlp.inputs() * ffn);
        // The weight of each copy is multiplied in here.
        self.activation(experts.mlp, received, ffn);
        if self.stops {
            self.shared();
            return;
        }
        self.grouped(ffn, hidden);
        if experts.bias {
            self.stream(Streaming::Add, self.pass_over(received, hidden, 2), 1);
        }
        self.permute(false);
        self.shared();
        self.add_branch(true);
    }

    /// What every token passes beside its experts, divided as a dense part; its gate, a number per token; the sum.
    fn shared(&mut self) {
        let (experts, hidden) = (*self.shape.experts(), self.hidden());
        if experts.shared_ffn == 0 {
            return;
        }
        let (tokens, rows, ffn) = (self.shape.tokens(), self.shape.residual_tokens(), self.shape.rank_shared_ffn());
        self.linear(tokens, hidden, experts.mlp.inputs() * ffn);
        self.activation(experts.mlp, tokens, ffn);
        // The gate's gradient reads the result.
        if experts.shared_gate {
            self.linear(tokens, ffn, hidden);
        } else {
            self.last_linear(tokens, ffn, hidden);
        }
        if experts.shared_gate {
            self.product(rows, 1, hidden);
            self.stream(Streaming::Add, self.pass_over(rows, hidden, 2), 2);
        }
        if !self.stops {
            self.stream(Streaming::Add, self.pass_over(rows, hidden, 3), 1);
        }
    }

    pub(super) fn experts_backward(&mut self, half: Half) {
        let (experts, hidden) = (*self.shape.experts(), self.hidden());
        let (received, ffn) = (self.shape.received_copies(), self.shape.rank_expert_ffn());
        self.shared_backward(half);
        if half == Half::Input {
            self.permute(true);
        }
        self.grouped_backward(half, ffn, hidden);
        if half == Half::Input {
            self.activation_backward(experts.mlp, received, ffn);
        }
        self.grouped_backward(half, hidden, experts.mlp.inputs() * ffn);
        if half == Half::Input {
            self.permute(false);
        } else {
            self.bias_gradient(experts.bias, received, hidden);
            self.bias_gradient(experts.bias, received, experts.mlp.inputs() * ffn);
        }
    }

    fn shared_backward(&mut self, half: Half) {
        let (experts, hidden) = (*self.shape.experts(), self.hidden());
        if experts.shared_ffn == 0 {
            return;
        }
        let (tokens, rows, ffn) = (self.shape.tokens(), self.shape.residual_tokens(), self.shape.rank_shared_ffn());
        if experts.shared_gate {
            match half {
                Half::Input => {
                    self.stream(Streaming::Add, self.pass_over(rows, hidden, 4), 3);
                    self.product(rows, hidden, 1);
                }
                Half::Weight => self.product(hidden, 1, rows),
            }
        }
        self.linear_backward(half, tokens, ffn, hidden);
        if half == Half::Input {
            self.activation_backward(experts.mlp, tokens, ffn);
        }
        self.linear_backward(half, tokens, hidden, experts.mlp.inputs() * ffn);
        if half == Half::Input {
            // The gradients of both paths meet.
            self.stream(Streaming::Add, self.pass_over(rows, hidden, 3), 1);
        }
    }
}
