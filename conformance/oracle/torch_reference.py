"""Trains the model of a dumped run with PyTorch on the CPU and prints the loss of every iteration.

Written against torch 1.13 (Debian 12). An independent twin of the executor: nothing here is shared with it but names.

Input, in the folder given as the only argument:
  run.json     {"model": ..., "workload": ..., "tensors": [{"name", "shape"}], "iterations": n, "batch": b}
  weights.bin  FP32, little-endian, tensors one after another in the order of run.json
  tokens.bin   uint32, little-endian, [iterations, batch, sequence_length + 1]
Output, on stdout: {"losses": [...], "gradient_norms": [...]}
"""

import json
import math
import pathlib
import sys

import numpy
import torch
import torch.nn.functional as F


def rope(x, theta):
    """Rotates halves, as Llama checkpoints of Hugging Face expect. x: [batch, heads, tokens, width]."""
    width, tokens = x.shape[-1], x.shape[-2]
    frequency = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.outer(torch.arange(tokens, dtype=torch.float64), frequency)
    cos = torch.cat([angle.cos(), angle.cos()], -1).float()
    sin = torch.cat([angle.sin(), angle.sin()], -1).float()
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Reference:
    def __init__(self, model, weights):
        self.model, self.weights = model, weights
        # What the last loss adds to the loss that balances experts, before its weight.
        self.balance = 0.0

    def linear(self, x, name):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, x, name):
        weight, epsilon = self.weights[f"{name}.weight"], self.model["norm_epsilon"]
        if self.model["norm"] == "rms-norm":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight
        return F.layer_norm(x, x.shape[-1:], weight, self.weights[f"{name}.bias"], epsilon)

    def attention(self, x, name):
        batch, tokens, _ = x.shape
        heads, groups, width = self.model["heads"], self.model["kv_heads"], self.model["head_dim"]
        split = lambda y, n: y.view(batch, tokens, n, width).transpose(1, 2)
        q = split(self.linear(x, f"{name}.q"), heads)
        k = split(self.linear(x, f"{name}.k"), groups)
        v = split(self.linear(x, f"{name}.v"), groups)
        rotary = self.model["positions"].get("rope")
        if rotary:
            q, k = rope(q, rotary["theta"]), rope(k, rotary["theta"])
        k, v = (y.repeat_interleave(heads // groups, dim=1) for y in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width)
        mask = torch.full((tokens, tokens), float("-inf")).triu(1)
        out = torch.softmax(scores + mask, -1) @ v
        return self.linear(out.transpose(1, 2).reshape(batch, tokens, heads * width), f"{name}.projection")

    def experts(self, x, name):
        """Every expert on every token, weighted with nothing where it was not chosen."""
        experts = self.model["variants"]["experts"]
        router = experts.get("router", {"scoring": "softmax", "normalised": True})
        logits = self.linear(x, f"{name}.router")
        scores = torch.softmax(logits, -1) if router["scoring"] == "softmax" else torch.sigmoid(logits)
        weights, best = scores.topk(experts["active"])
        if router["normalised"]:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in range(experts["count"]):
            weight = (weights * (best == expert)).sum(-1, keepdim=True)
            out = out + weight * self.mlp(x, f"{name}.experts.{expert}", experts["mlp"])
        if experts["shared_ffn"] > 0:
            shared = self.mlp(x, f"{name}.shared", experts["mlp"])
            out = out + (torch.sigmoid(self.linear(x, f"{name}.shared_gate")) * shared if experts["shared_gate"] else shared)
        batch, count = x.shape[0], experts["count"]
        share = F.one_hot(best.flatten(1), count).float().mean(1) * count
        mean = (scores / scores.sum(-1, keepdim=True)).mean(1)
        self.balance = self.balance + (share * mean).sum() / batch
        return out

    def is_routed(self, layer):
        for run in self.model.get("variants", {}).get("pattern", []):
            if layer < run["layers"]:
                return run["feed_forward"] == "experts"
            layer -= run["layers"]
        return False

    def mlp(self, x, name, kind):
        up = self.linear(x, f"{name}.up")
        if kind == "swi-glu":
            return self.linear(F.silu(self.linear(x, f"{name}.gate")) * up, f"{name}.down")
        inner = math.sqrt(2 / math.pi) * (up + 0.044715 * up.pow(3))
        return self.linear(0.5 * up * (1 + torch.tanh(inner)), f"{name}.down")

    def loss(self, tokens):
        self.balance = 0.0
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.weights["embedding.weight"][inputs]
        if "learned" in self.model["positions"]:
            x = x + self.weights["positions.weight"][: inputs.shape[1]]
        for layer in range(self.model["layers"]):
            x = x + self.attention(self.norm(x, f"layers.{layer}.attention_norm"), f"layers.{layer}.attention")
            normed = self.norm(x, f"layers.{layer}.mlp_norm")
            if self.is_routed(layer):
                x = x + self.experts(normed, f"layers.{layer}")
            else:
                x = x + self.mlp(normed, f"layers.{layer}.mlp", self.model["mlp"])
        x = self.norm(x, "final_norm")
        head = self.weights["embedding.weight" if self.model["tied_head"] else "head.weight"]
        return F.cross_entropy(F.linear(x, head).flatten(0, 1), targets.flatten())


def main(folder):
    run = json.loads((folder / "run.json").read_text())
    flat = torch.from_numpy(numpy.fromfile(folder / "weights.bin", dtype="<f4").copy())
    weights, start = {}, 0
    for tensor in run["tensors"]:
        count = math.prod(tensor["shape"])
        weights[tensor["name"]] = flat[start : start + count].view(tensor["shape"]).clone().requires_grad_()
        start += count
    assert start == flat.numel(), "weights.bin is not as long as run.json says"
    sequence = run["workload"]["sequence_length"]
    tokens = numpy.fromfile(folder / "tokens.bin", dtype="<u4").astype("int64")
    tokens = torch.from_numpy(tokens).view(run["iterations"], run["batch"], sequence + 1)

    options = run["workload"]["optimizer"]
    matrices = [w for w in weights.values() if w.dim() > 1]
    vectors = [w for w in weights.values() if w.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": options["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=options["learning_rate"],
        betas=(options["beta1"], options["beta2"]),
        eps=options["epsilon"],
    )
    reference, losses, norms = Reference(run["model"], weights), [], []
    for iteration in range(run["iterations"]):
        warm = options["warmup_iterations"]
        rate = options["learning_rate"] * (min(1.0, (iteration + 1) / warm) if warm else 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = reference.loss(tokens[iteration])
        balance = run["workload"].get("recipe", {}).get("balance_loss", 0.0)
        (loss + balance * reference.balance).backward()
        clip = options["clip_norm"]
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(weights.values()), clip if clip else float("inf"))))
        optimizer.step()
        losses.append(float(loss))
    print(json.dumps({"losses": losses, "gradient_norms": norms}))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(2)
    main(pathlib.Path(sys.argv[1]))
