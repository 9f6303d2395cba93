"""Times in PyTorch the layers of device_check's layers.csv, and writes both side by side to layers-and-torch.csv."""

import csv
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

# tokens, sequence, hidden, heads, key_heads, dim, ffn, layers: as in examples/device_check/main.rs
SHAPES = {
    "8B layer": (4096, 4096, 4096, 32, 8, 128, 14336, 1),
    "345M layer": (8192, 1024, 1024, 16, 16, 64, 4096, 1),
    "7B stage of 4 layers": (4096, 4096, 4096, 32, 32, 128, 11008, 4),
}
TINY = {"tiny": (16, 16, 16, 2, 1, 8, 24, 2)}


class Layer(torch.nn.Module):
    def __init__(self, hidden, heads, key_heads, dim, ffn, sequence, device):
        super().__init__()
        self.shape = (heads, key_heads, dim, sequence)
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False, device=device, dtype=torch.bfloat16)
        self.q, self.k, self.v = linear(hidden, heads * dim), linear(hidden, key_heads * dim), linear(hidden, key_heads * dim)
        self.out, self.gate, self.up, self.down = linear(heads * dim, hidden), linear(hidden, ffn), linear(hidden, ffn), linear(ffn, hidden)
        self.norms = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(hidden, device=device, dtype=torch.bfloat16)) for _ in range(2)])
        angles = torch.outer(torch.arange(sequence, device=device), 10000.0 ** (-torch.arange(0, dim, 2, device=device) / dim))
        self.angles = torch.cat([angles, angles], -1)

    def norm(self, x, weight):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype) * weight

    def rotate(self, x):
        low, high = x.chunk(2, -1)
        return x * self.angles.cos().to(x.dtype) + torch.cat([-high, low], -1) * self.angles.sin().to(x.dtype)

    def forward(self, x):
        heads, key_heads, dim, sequence = self.shape
        normed = self.norm(x, self.norms[0])
        split = lambda y, n: y.view(-1, sequence, n, dim).transpose(1, 2)
        q, k, v = split(self.q(normed), heads), split(self.k(normed), key_heads), split(self.v(normed), key_heads)
        k, v = (y.repeat_interleave(heads // key_heads, 1) for y in (self.rotate(k), v))
        attended = F.scaled_dot_product_attention(self.rotate(q), k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(-1, heads * dim))
        normed = self.norm(x, self.norms[1])
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def median_us(device, run, repetitions):
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for repetition in range(repetitions + 2):
        wait()
        start = time.perf_counter()
        run()
        wait()
        if repetition >= 2:
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e6


def main():
    out, tiny = Path(sys.argv[1]), "--tiny" in sys.argv
    if not hasattr(F, "scaled_dot_product_attention"):
        print(f"comparison with PyTorch: SKIP, {torch.__version__} has no scaled_dot_product_attention")
        return
    device = "cpu" if tiny else "cuda"
    took = {}
    for name, (tokens, sequence, hidden, heads, key_heads, dim, ffn, count) in (TINY if tiny else SHAPES).items():
        layers = torch.nn.Sequential(*[Layer(hidden, heads, key_heads, dim, ffn, sequence, device) for _ in range(count)])
        x = torch.randn(tokens, hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
        y = layers(x)
        gradient = torch.randn_like(y)
        with torch.no_grad():
            took[f"{name} forward"] = median_us(device, lambda: layers(x), 10)
        took[f"{name} backward"] = median_us(device, lambda: y.backward(gradient, retain_graph=True), 10)
    with open(out / "layers.csv") as mine, open(out / "layers-and-torch.csv", "w") as both:
        both.write("what,sizes,trainyard_us,torch_us,torch_over_trainyard\n")
        for row in csv.DictReader(mine):
            torch_us = took[row["what"]]
            both.write(f"{row['what']},{row['sizes']},{row['median_us']},{torch_us:.2f},{torch_us / float(row['median_us']):.3f}\n")
    print(f"PyTorch {torch.__version__} on {device}")
    print((out / "layers-and-torch.csv").read_text())


if __name__ == "__main__":
    main()
