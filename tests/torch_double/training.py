# SPDX-License-Identifier: Apache-2.0
"""Small models and loops that train them, on any device. As a program: a digest of what the device
`late` computes.
"""
import copy
import hashlib

import torch
from torch import nn

STEPS = 3


def linears():
    return nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 48))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), nn.GroupNorm(3, 12), nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 10))


class Attention(nn.Module):
    """A language model of two layers; its first attends with a mask, its second causally."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        hidden = self.embedding(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        hidden = self.layers[0](hidden, src_mask=mask)
        hidden = self.layers[1](hidden, src_mask=mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


def numbers(*shape):
    return lambda step: torch.randn(shape, generator=torch.Generator().manual_seed(step))


def words(step):
    return torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(step))


MODELS = {
    "linears": (linears, numbers(16, 48), lambda out, data: (out - data).square().mean()),
    "convolutions": (convolutions, numbers(4, 3, 16, 16), lambda out, data: nn.functional.
                     cross_entropy(out, torch.arange(4, device=out.device))),
    "attention": (Attention, words, lambda out, data: nn.functional.
                  cross_entropy(out, data.roll(-1, 1).flatten())),
}


def default(optimizer, *rate, **options):
    """With the forms that a GPU has by default; the CPU is asked for them."""
    def make(parameters):
        parameters = list(parameters)
        forms = {"foreach": True} if parameters[0].is_cpu else {}
        return optimizer(parameters, *rate, **options, **forms)
    return make


OPTIMIZERS = {
    "adamw": default(torch.optim.AdamW, 1e-2),
    "adamw_single": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=False),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
    "rmsprop": default(torch.optim.RMSprop, 1e-3),
    "sgd": default(torch.optim.SGD, 0.1, momentum=0.9),
    "sgd_fused": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, fused=True),
}


def losses_of(model, optimizer, name, device, clip=None):
    _, data_of, loss_of = MODELS[name]
    losses = []
    for step in range(STEPS):
        data = data_of(step).to(device)
        loss = loss_of(model(data), data)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def train(name, optimizer, device, clip=None):
    """The losses, and all tensors of the model after it."""
    torch.manual_seed(0)
    model = copy.deepcopy(MODELS[name][0]()).to(device)
    made = OPTIMIZERS[optimizer](model.parameters())
    losses = losses_of(model, made, name, device, clip)
    return losses, {key: value.cpu() for key, value in model.state_dict().items()}


def main():
    import double
    digest = hashlib.sha256()
    for name in MODELS:
        losses, state = train(name, "adamw", "late", clip=0.5)
        digest.update(repr(losses).encode())
        for value in state.values():
            digest.update(value.numpy().tobytes())
    print(digest.hexdigest(), len(double.violations()))


if __name__ == "__main__":
    main()
