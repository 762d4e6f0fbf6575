# SPDX-License-Identifier: Apache-2.0
"""Training programs drawn at random: a model, an optimizer, a budget, and what a loop does.

A program is text, which is run with plain torch and offloaded, so that a failing one can be printed
as it is. It calls offload(), which does nothing in the plain run, and see(name, value) for every
value that the program looks at.
"""
import collections
import copy
import random
import re
import tempfile
import traceback
import warnings

import support
import torch

import stepwell
import stepwell.torch

# -- models ---------------------------------------------------------------------------------------
# Each defines make(), and loss(model, seed), which draws its own batch.

_STACK = """
def make():
    return nn.Sequential(*(nn.Linear(128, 128, bias=i % 2 == 0) for i in range(5)))

def loss(model, seed):
    x = draw(seed, 4, 128)
    return (model(x) - x).square().mean()
"""
MODELS = {
    "stack": _STACK,
    "convolution": """
def make():
    return nn.Sequential(nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.ReLU(), nn.Conv2d(40, 40, 3),
                         nn.BatchNorm2d(40), nn.Flatten(), nn.Linear(640, 20))

def loss(model, seed):
    return model(draw(seed, 4, 3, 8, 8)).square().mean()
""",
    "tied": """
def make():
    model = nn.Sequential(nn.Embedding(300, 64), nn.Linear(64, 64), nn.Tanh(),
                          nn.Linear(64, 300, bias=False))
    model[3].weight = model[0].weight
    return model

def loss(model, seed):
    ids = (draw(seed, 2, 8).abs() * 100).long() % 300
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
""",
    "lstm": """
def make():
    return nn.ModuleList([nn.LSTM(48, 64, 2), nn.Linear(64, 48)])

def loss(model, seed):
    x = draw(seed, 5, 2, 48)
    return (model[1](model[0](x)[0]) - x).square().mean()
""",
    "gru cell": """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(64, 96), nn.Linear(96, 64)

    def forward(self, x):
        h = torch.zeros(x.shape[1], 96)
        for each in x:
            h = self.cell(each, h)
        return self.out(h)

def make():
    return Cell()

def loss(model, seed):
    x = draw(seed, 4, 3, 64)
    return (model(x) - x[0]).square().mean()
""",
    "attention": """
class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.attention(x, x, x, need_weights=False)[0])

def make():
    return Attends()

def loss(model, seed):
    return model(draw(seed, 2, 6, 64)).square().mean()
""",
    "transformer": """
def make():
    return nn.Sequential(nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, batch_first=True),
                         nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, norm_first=True))

def loss(model, seed):
    return model(draw(seed, 3, 5, 48)).pow(2).mean()
""",
    "parameter lists": """
class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(96, 96) / 10 for _ in range(4))
        self.scales = nn.ParameterDict({"a": torch.ones(96), "b": torch.tensor(1.0)})

    def forward(self, x):
        for weight in self.weights:
            x = torch.tanh(x @ weight) * self.scales["a"]
        return x * self.scales["b"]

def make():
    return Lists()

def loss(model, seed):
    return model(draw(seed, 4, 96)).square().mean()
""",
    "branches": """
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(96, 96) for _ in range(3))
        self.unused = nn.Linear(96, 96)
        self.out = nn.Linear(96, 96)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.out(self.ways[self.calls % 3](x))

def make():
    return Branches()

def loss(model, seed):
    return model(draw(seed, 4, 96)).square().mean()
""",
    "weight norm": """
def make():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(96, 96)), nn.Tanh(),
                         parametrizations.spectral_norm(nn.Linear(96, 96)), nn.Linear(96, 96))

def loss(model, seed):
    return model(draw(seed, 4, 96)).square().mean()
""",
    "frozen": """
def make():
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(5)))
    for at in 1, 3:
        model[at].requires_grad_(False)
    return model

def loss(model, seed):
    return model(draw(seed, 4, 128)).square().mean()
""",
    "bf16": """
def make():
    return nn.Sequential(*(nn.Linear(160, 160) for _ in range(4))).bfloat16()

def loss(model, seed):
    return model(draw(seed, 4, 160).bfloat16()).float().square().mean()
""",
    "mixed": """
class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(128, 128).bfloat16(), nn.LayerNorm(128)
        self.last = nn.Linear(128, 128)

    def forward(self, x):
        return self.last(self.norm(self.first(x.bfloat16()).float()))

def make():
    return Mixed()

def loss(model, seed):
    return model(draw(seed, 4, 128)).square().mean()
""",
    "scalars": """
class Scalars(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(96), nn.Linear(96, 96)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.norm(self.linear(x)) * self.scale + self.empty.sum()

def make():
    return Scalars()

def loss(model, seed):
    return (model(draw(seed, 4, 96)) - 1).square().mean()
""",
    "used twice": """
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x):
        return self.one(torch.tanh(self.two(torch.tanh(self.one(x)))))

def make():
    return Twice()

def loss(model, seed):
    return model(draw(seed, 4, 128)).square().mean()
""",
    "checkpointed": """
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(96, 96), nn.Dropout(0.2))
                                    for _ in range(4))

    def forward(self, x):
        for at, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=at == 2)
        return x

def make():
    return Checkpointed()

def loss(model, seed):
    return model(draw(seed, 4, 96).requires_grad_()).square().mean()
""",
    "transposed": """
def make():
    model = nn.Sequential(*(nn.Linear(100, 100) for _ in range(4)))
    for layer in model:
        layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return model

def loss(model, seed):
    return model(draw(seed, 4, 100)).square().mean()
""",
    "outputs": """
class Outputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(96, 96)
        self.heads = nn.ModuleDict({"a": nn.Linear(96, 4), "b": nn.Linear(96, 96)})

    def forward(self, x):
        x = torch.relu(self.trunk(x))
        return {name: head(x) for name, head in self.heads.items()}

def make():
    return Outputs()

def loss(model, seed):
    out = model(draw(seed, 4, 96))
    return out["a"].square().mean() + out["b"].abs().mean()
""",
    "bag": """
def make():
    return nn.ModuleList([nn.EmbeddingBag(400, 32), nn.Bilinear(32, 32, 16), nn.PReLU(16)])

def loss(model, seed):
    x = model[0]((draw(seed, 4, 6).abs() * 90).long() % 400)
    return model[2](model[1](x, x)).square().mean()
""",
    "decay": """
class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(110, 110) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x, sum(p.pow(2).sum() for p in self.parameters())

def make():
    return Decay()

def loss(model, seed):
    out, decay = model(draw(seed, 4, 110))
    return out.square().mean() + 1e-3 * decay
""",
}

# -- optimizers -----------------------------------------------------------------------------------

_OWN = """
class {name}(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, dict(lr=lr))
{body}"""
_LION = _OWN.format(name="Lion", body="""
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state["exp_avg"] = torch.zeros_like(p)
                    p.add_(state["exp_avg"].lerp(p.grad, 0.1).sign_(), alpha=-group["lr"])
                    state["exp_avg"].lerp_(p.grad, 0.01)
""")
_COUNTS = _OWN.format(name="Counts", body="""        self.t = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state["m"] = torch.zeros_like(p)
                    state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                    p.sub_(state["m"] / (1 - 0.9 ** self.t), alpha=group["lr"])
""")
_NORM = _OWN.format(name="Norm", body="""
    @torch.no_grad()
    def step(self, closure=None):
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = sum(p.grad.float().square().sum() for p in every).sqrt() + 1e-6
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad / norm, alpha=group["lr"])
""")
_LOOKAHEAD = _OWN.format(name="Lookahead", body="""        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                slow = self.state[p].setdefault("slow", p.clone())
                p.sub_(p.grad, alpha=group["lr"])
                if self.steps % 2 == 0:
                    p.copy_(slow.lerp_(p, 0.5))
""")
_MODES = _OWN.format(name="Modes", body="""
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    z = self.state[p].setdefault("z", p.clone())
                    z.sub_(p.grad, alpha=group["lr"])
                    p.lerp_(z, 0.3)

    @torch.no_grad()
    def eval(self):
        for p, state in self.state.items():
            p.lerp_(state["z"], 0.1)
""")
_ADAMS = "torch.optim.{}(params, lr=0.01{})"
# On a device the default of those without a kernel is all parameters at once, in another order of
# operations; offload() takes one by one.
_ONE = ", foreach=False"
OPTIMIZERS = {  # what defines it, what makes it of `params`, whether a kernel steps it
    "SGD": ("", "torch.optim.SGD(params, lr=0.05)", True),
    "SGD with momentum": (
        "", "torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1)", True),
    "SGD in groups": (
        "", 'torch.optim.SGD([{"params": params[:2], "lr": 0.1, "nesterov": False},\n'
            '                             {"params": params[2:]}], lr=0.05, momentum=0.8,'
            ' nesterov=True)', True),
    "Adam": ("", _ADAMS.format("Adam", ", weight_decay=0.1"), True),
    "AdamW": ("", _ADAMS.format("AdamW", ", weight_decay=0.1"), True),
    "Adagrad": ("", _ADAMS.format("Adagrad", ", lr_decay=0.1"), True),
    "AMSGrad": ("", _ADAMS.format("Adam", ", amsgrad=True" + _ONE), False),
    "RMSprop": ("", _ADAMS.format("RMSprop", ", centered=True, momentum=0.5" + _ONE), False),
    "Adadelta": ("", "torch.optim.Adadelta(params" + _ONE + ")", False),
    "NAdam": ("", _ADAMS.format("NAdam", _ONE), False),
    "RAdam": ("", _ADAMS.format("RAdam", _ONE), False),
    "Rprop": ("", _ADAMS.format("Rprop", _ONE), False),
    "ASGD": ("", _ADAMS.format("ASGD", _ONE), False),
    "Adamax": ("", _ADAMS.format("Adamax", _ONE), False),
    "Adafactor": ("", _ADAMS.format("Adafactor", _ONE), False),
    "Lion": (_LION, "Lion(params)", False),
    "Counts": (_COUNTS, "Counts(params)", False),
    "Norm": (_NORM, "Norm(params)", False),
    "Lookahead": (_LOOKAHEAD, "Lookahead(params)", False),
    "Modes": (_MODES, "Modes(params)", False),
}

# -- budgets --------------------------------------------------------------------------------------

_TIGHT = {"device_bytes": 704 << 10, "nvme_bytes": 16 << 20, "block_bytes": stepwell.BLOCK_64K}
BUDGETS = {
    "resident": {"device_bytes": 32 << 20, "block_bytes": stepwell.BLOCK_64K},
    "tight": _TIGHT,
    "keep_gradients": {**_TIGHT, "keep_gradients": True},
    "update_in_backward": {**_TIGHT, "update_in_backward": True},
}
_GRADIENTS = "nothing else is done with gradients if they are updated in backward"

# -- what a loop does -----------------------------------------------------------------------------
# By name: its place in a step, its text, and what stands before the loop. "step" and "zero" replace
# optimizer.step() and optimizer.zero_grad().

PLACES = ("before", "forward", "backward", "step", "stepped", "zero", "end")
_EACH = """for p in model.parameters():
    if p.grad is not None:
        """
THINGS = {
    # before the forward pass
    "evaluate": ("before", """model.eval()
with torch.no_grad():
    see("evaluated", loss(model, 90))
model.train()""", ""),
    "call without gradients": ("before", """with torch.no_grad():
    see("called", loss(model, 91))""", ""),
    "inference": ("before", """with torch.inference_mode():
    see("inferred", loss(model, 92))""", ""),
    "learning rate": ("before", """for group in optimizer.param_groups:
    group["lr"] *= 0.5""", ""),
    "average": ("before", """with torch.no_grad():
    for mean, p in zip(average, model.parameters()):
        mean.lerp_(p, 0.1)
see("average", average)""", "average = [p.detach().clone() for p in model.parameters()]"),
    "write weights": ("before", """with torch.no_grad():
    for p in model.parameters():
        p.mul_(0.9)""", ""),
    "write a row": ("before", """with torch.no_grad():
    for p in model.parameters():
        if p.dim() and len(p):
            p[:1] = 0.5""", ""),
    "write data": ("before", """for p in model.parameters():
    p.data.add_(0.01)""", ""),
    "read weights": ("before", """see("weights", list(model.parameters()))
see("norms", [p.detach().norm() for p in model.parameters()])""", ""),
    "see the optimizer": ("before", 'see("optimizer", optimizer.state_dict())', ""),
    "see the model": ("before", 'see("model", model.state_dict())', ""),
    "save": ("before", "saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))",
             "saved = None"),
    "load": ("before", """if saved is not None:
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(copy.deepcopy(saved[1]))""", "saved = None"),
    "load an early state": ("before", "optimizer.load_state_dict(early)",
                            "early = copy.deepcopy(optimizer.state_dict())"),
    "load a part": ("before", """part = optimizer.state_dict()
part["state"] = {key: part["state"][key] for key in list(part["state"])[:2]}
optimizer.load_state_dict(part)""", ""),
    "load other weights": ("before", """model.load_state_dict(
    {name: value * 0.5 for name, value in model.state_dict().items()})""", ""),
    "clear the state": ("before", "optimizer.state.clear()", ""),
    "new state": ("before", "optimizer.state = collections.defaultdict(dict)", ""),
    "drop a state": ("before", "optimizer.state.pop(params[0], None)", ""),
    "read states": ("before", """see("states", [optimizer.state.get(p) for p in params])""", ""),
    "count states": ("before", """see("counted", [len(optimizer.state), [p in optimizer.state
                                             for p in params]])""", ""),
    "write states": ("before", """for state in optimizer.state.values():
    for value in state.values():
        if isinstance(value, torch.Tensor) and value.dim():
            value.mul_(0.5)""", ""),
    "freeze": ("before", "params[0].requires_grad_(False)", ""),
    "unfreeze": ("before", """for p in params:
    p.requires_grad_(True)""", ""),
    "add a group": ("before", """if late:
    optimizer.add_param_group({"params": [late.pop()], "lr": 0.02})""", ""),
    "data twice": ("forward", """for p in model.parameters():
    p.data.mul_(0.99)
    p.data.mul_(1.01)""", ""),
    "gradient in a loss": ("backward", """terms = [(p * p.grad).sum() for p in params
         if p.grad is not None and p.requires_grad]
sum(terms, start=loss(model, 96)).backward()
see("summed", [p.grad for p in params])""", ""),
    "copy the model": ("before", 'see("copied", loss(copy.deepcopy(model), 93))', ""),
    "train and evaluate the optimizer": ("before", """if hasattr(optimizer, "eval"):
    optimizer.eval()""", ""),
    "close and offload": ("before", """optimizer.zero_grad()
offload.close()
offload(model, optimizer)""", ""),
    "commit and resume": ("before", """optimizer.zero_grad()
model, optimizer = offload.again(model, optimizer, make, optimizer_of)
params = list(model.parameters())""", ""),
    # between forward and backward
    "autograd.grad": ("forward", """see("autograd", torch.autograd.grad(
    total, [p for p in model.parameters() if p.requires_grad], retain_graph=True,
    allow_unused=True))""", ""),
    "backward twice": ("forward", "total.backward(retain_graph=True)", ""),
    "another forward": ("forward", "total = total + loss(model, 94)", ""),
    # between backward and step
    "accumulate": ("backward", "loss(model, 95).backward()", ""),
    "clip the norm": ("backward", """see("norm", nn.utils.clip_grad_norm_(
    model.parameters(), 0.05, foreach=False))""", ""),
    "clip values": ("backward", "nn.utils.clip_grad_value_(model.parameters(), 1e-4)", ""),
    "scale gradients": ("backward", _EACH + "p.grad.mul_(0.5)", ""),
    "add to gradients": ("backward", _EACH + "p.grad.add_(p.detach(), alpha=0.01)", ""),
    "set rows": ("backward", """for p in model.parameters():
    if p.grad is not None and p.dim() and len(p):
        p.grad[:1] = 0""", ""),
    "write through a view": ("backward", _EACH + "p.grad.view(-1)[::2].mul_(3)", ""),
    "write through a transpose": ("backward", """for p in model.parameters():
    if p.grad is not None and p.dim() == 2:
        p.grad.t().mul_(0.5)""", ""),
    "write data of gradients": ("backward", _EACH + "p.grad.data.clamp_(-1e-3, 1e-3)", ""),
    "write detached gradients": ("backward", _EACH + "p.grad.detach().neg_()", ""),
    "set a gradient": ("backward", "params[0].grad = torch.full_like(params[0], 0.01)", ""),
    "replace gradients": ("backward", _EACH + "p.grad = p.grad.clone() * 2", ""),
    "drop a gradient": ("backward", "params[0].grad = None", ""),
    "read gradients": ("backward", 'see("gradients", [p.grad for p in model.parameters()])', ""),
    "sum gradients": ("backward", """see("sums", torch.stack(
    [p.grad.float().norm() for p in model.parameters() if p.grad is not None]))""", ""),
    "noise": ("backward", _EACH + "p.grad.add_(torch.randn_like(p.grad), alpha=1e-3)", ""),
    "state within a step": ("backward", 'see("within", optimizer.state_dict())', ""),
    "hold gradients": ("backward", "held = [p.grad for p in model.parameters()]", "held = None"),
    "zero and again": ("backward", """optimizer.zero_grad()
loss(model, 96).backward()""", ""),
    "second optimizer": ("backward", "other.step()",
                         "other = torch.optim.SGD(params[:1], lr=0.01)"),
    # instead of the step
    "skip the step": ("step", "pass", ""),
    "step twice": ("step", "optimizer.step()\noptimizer.step()", ""),
    "closure": ("step", """def closure():
    optimizer.zero_grad()
    total = loss(model, 97)
    total.backward()
    return total
see("closure", optimizer.step(closure))""", ""),
    "scaler": ("step", """scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()""", "scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)"),
    # after the step
    "read gradients after it": (
        "stepped", 'see("after", [p.grad for p in model.parameters()])', ""),
    "see the optimizer after it": ("stepped", 'see("stepped", optimizer.state_dict())', ""),
    "read weights after it": ("stepped", 'see("stepped", [p * 1 for p in model.parameters()])', ""),
    # instead of zero_grad()
    "zeros": ("zero", "optimizer.zero_grad(set_to_none=False)", ""),
    "the model's zeros": ("zero", "model.zero_grad(set_to_none=False)", ""),
    "zero_": ("zero", _EACH + "p.grad.zero_()", ""),
    "keep gradients": ("zero", "pass", ""),
    "delete gradients": ("zero", """for p in model.parameters():
    p.grad = None""", ""),
    # after zero_grad()
    "read gradients after zero_grad": (
        "end", 'see("zeroed", [p.grad for p in model.parameters()])', ""),
    "look at held gradients": ("end", 'see("held", held)', "held = None"),
    "schedule": ("end", "schedule.step()",
                 "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)"),
    # before the loop alone
    "gradient hook": ("once", "", "hook = params[0].register_hook(lambda grad: grad * 2)"),
    "accumulated hook": ("once", "", """hook = params[-1].register_post_accumulate_grad_hook(
    lambda p: see("accumulated", p.grad))"""),
    "module hook": ("once", "", """hook = next(model.children()).register_forward_hook(
    lambda module, given, out: see("out", out))"""),
    "step hook": ("once", "", """hook = optimizer.register_step_post_hook(
    lambda optimizer, args, kwargs: see("hooked", len(args)))"""),
}
_WITH_GRADIENTS = {  # refused, or without meaning, with update_in_backward
    "backward twice", "closure", "scaler", "read gradients after it", "keep gradients",
    "accumulated hook", "look at held gradients", "autograd.grad", "step twice", "skip the step",
    "zero_", "zeros", "the model's zeros"}

# -- refusals -------------------------------------------------------------------------------------
# An offloaded run may end with one of these instead of plain torch's numbers.

REFUSALS = {
    r"consumed by the update of the last step":
        "gradients are gone after step() without keep_gradients",
    r"has the gradient of the last step, which its update has consumed":
        "the same, for a backward pass that adds to them",
    r"updates? (its parameters )?in backward|update_in_backward": _GRADIENTS,
    r"step\(closure\) with parameters on":
        "on a device with streams nodes of autograd would wait for the step",
    r"modified by an inplace operation|have been modified|has been modified":
        "as in plain torch, for a graph older than a write",
}

_HEAD = """import collections, copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(seed))
"""


class Draw:
    """One program: what it consists of, and its text."""

    def __init__(self, model, optimizer, budget, steps):
        self.model, self.optimizer, self.budget = model, optimizer, budget
        self.steps = steps  # the names of the things of each step

    def __repr__(self):
        return f"{self.model}, {self.optimizer}, {self.budget}: {self.steps}"

    def names(self):
        return {self.model, self.optimizer, self.budget,
                *(name for step in self.steps for name in step)}

    def text(self):
        define, make, _ = OPTIMIZERS[self.optimizer]
        names = self.names()
        late = "[params.pop()]" if "add a group" in names else "[]"
        lines = [_HEAD, MODELS[self.model].strip(), define.rstrip(), "", "torch.manual_seed(1)",
                 "model = make()", "params = list(model.parameters())", f"late = {late}",
                 "", "def optimizer_of(params):", f"    return {make}", "",
                 "optimizer = optimizer_of(params)",
                 f"offload(model, optimizer{', store=True' * ('commit and resume' in names)})"]
        lines += dict.fromkeys(THINGS[name][2] for step in self.steps for name in step
                               if THINGS[name][2])
        for at, step in enumerate(self.steps):
            lines += ["", f"total = loss(model, {at})", f'see("loss {at}", total)']
            parts = {place: [THINGS[name][1] for name in step if THINGS[name][0] == place]
                     for place in PLACES}
            lines[-2:-2] = parts["before"]
            lines += parts["forward"]
            lines += ["scaler.scale(total).backward()" if "scaler" in step else "total.backward()"]
            lines += parts["backward"]
            lines += parts["step"] or ["optimizer.step()"]
            lines += parts["stepped"]
            lines += parts["zero"] or ["optimizer.zero_grad()"]
            lines += parts["end"]
        lines += ["", 'see("model", model.state_dict())',
                  'see("optimizer", optimizer.state_dict())', 'see("random", torch.rand(2))',
                  "offload.close()", 'see("closed", [list(model.parameters()), '
                  "optimizer.state_dict(),\n               [p.grad for p in model.parameters()]])"]
        return "\n".join(lines) + "\n"


def drawn(seed):
    """The program of a number."""
    rng = random.Random(seed)
    model = rng.choice(list(MODELS))
    # Kernels keep masters of 16 bits, so the results are those of training with masters.
    optimizer = rng.choice([name for name, (_, _, kernel) in OPTIMIZERS.items()
                            if not (kernel and model in ("bf16", "mixed"))])
    budget = rng.choice(list(BUDGETS))
    allowed = [name for name, (place, _, _) in THINGS.items() if not (
        budget == "update_in_backward" and (place == "backward" or name in _WITH_GRADIENTS))]
    steps = []
    for at in range(rng.randint(2, 4)):
        step, places = [], set()
        for name in rng.sample(allowed, min(rng.choice((0, 1, 1, 2, 3)), len(allowed))):
            place = THINGS[name][0]
            if place in ("step", "zero") and place in places or place == "once" and at:
                continue
            places.add(place)
            step.append(name)
        steps.append(step)
    return Draw(model, optimizer, budget, steps)


# -- running --------------------------------------------------------------------------------------

class _Offload:
    """What the program calls as offload(); options None: the plain run."""

    def __init__(self, options):
        self.options, self.model, self.directory, self.store = options, None, None, False

    def __call__(self, model, optimizer, store=False, resume=False):
        if self.options is None:
            return
        options = dict(self.options)
        self.store = store or self.store
        if self.store:
            options.update(nvme_bytes=48 << 20, store_name="run", resume=resume,
                           overwrite=not resume)
        if "nvme_bytes" in options:
            if self.directory is None:
                self.directory = tempfile.TemporaryDirectory(prefix="stepwell-draw-", dir=".")
            options["nvme"] = stepwell.Nvme(self.directory.name, options.pop("nvme_bytes"),
                                            driver_options="allow_tmpfs=1")
        self.model = None
        stepwell.torch.offload(model, optimizer, timeout=20, **options)
        self.model = model

    def again(self, model, optimizer, make, optimizer_of):
        """Save and load both, as another process would."""
        made = make()
        optimizes = optimizer_of(list(made.parameters()))
        if self.options is None:
            made.load_state_dict(model.state_dict())
            # Not by load_state_dict(), which rounds states of 16-bit parameters.
            new = {}
            for before, after in zip(optimizer.param_groups, optimizes.param_groups, strict=True):
                new.update(zip(before["params"], after["params"], strict=True))
                after.update({key: before[key] for key in before if key != "params"})
            for parameter in [each for each in optimizer.state if each in new]:
                optimizes.state[new[parameter]] = copy.deepcopy(optimizer.state[parameter])
        else:
            stepwell.torch.offloaded(model).commit()
            stepwell.torch.offloaded(model).close()
            self(made, optimizes, resume=True)
        return made, optimizes

    def close(self):
        if self.model is not None:
            stepwell.torch.offloaded(self.model).close()
            self.model = None
        if self.directory is not None:
            self.directory.cleanup()
            self.directory = None


def plain(value):
    """The value as it is now, with tensors copied."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            copied = value.detach().clone()
        return torch.empty_like(copied).copy_(copied) if type(copied) is not torch.Tensor \
            else copied
    if isinstance(value, collections.abc.Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def difference(right, got, where):
    """The first place at which two values differ, in words; "" if none does."""
    if isinstance(right, torch.Tensor) and isinstance(got, torch.Tensor):
        if right.shape != got.shape or right.dtype != got.dtype:
            return (f"{where}: {right.dtype} {tuple(right.shape)} in plain torch, {got.dtype} "
                    f"{tuple(got.shape)} offloaded")
        if torch.equal(right, got) or torch.equal(right.contiguous().flatten().view(torch.uint8),
                                                  got.contiguous().flatten().view(torch.uint8)):
            return ""
        # Which of two NaN an addition returns is the compiler's choice of operands.
        wrong = ((right != got) & ~((right != right) & (got != got))).flatten().nonzero()
        if not len(wrong):
            return ""
        at = int(wrong[0])
        return (f"{where}: {len(wrong)} of {right.numel()} elements, element {at} is "
                f"{right.flatten()[at].item()!r} in plain torch, {got.flatten()[at].item()!r} "
                "offloaded")
    if isinstance(right, dict) and isinstance(got, dict):
        if right.keys() != got.keys():
            return f"{where}: keys {list(right)} in plain torch, {list(got)} offloaded"
        return next(filter(None, (difference(right[key], got[key], f"{where}[{key!r}]")
                                  for key in right)), "")
    if isinstance(right, list) and isinstance(got, list):
        if len(right) != len(got):
            return f"{where}: {len(right)} values in plain torch, {len(got)} offloaded"
        return next(filter(None, (difference(one, other, f"{where}[{at}]")
                                  for at, (one, other) in enumerate(zip(right, got)))), "")
    same = type(right) is type(got) and (right == got or right != right and got != got)
    return "" if same else f"{where}: {right!r} in plain torch, {got!r} offloaded"


def run(text, options):
    """What a program saw, and the exception that ended it or None."""
    seen = []
    offload = _Offload(options)
    error = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(text, "<drawn>", "exec"), {
                "__name__": "drawn", "DEVICE": support.DEVICE, "offload": offload,
                "see": lambda name, value: seen.append((name, plain(value)))})
    except Exception as raised:
        error = raised
    finally:
        try:
            offload.close()
        except Exception as raised:
            error = error or raised
    return seen, error


def judge(draw):
    """("equal" | "refused" | "plain fails" | "differs", in words)."""
    text = draw.text()
    right, plain_error = run(text, None)
    got, error = run(text, BUDGETS[draw.budget])
    for at, ((name, one), (_, other)) in enumerate(zip(right, got)):
        found = difference(one, other, f"{name} (value {at})")
        if found:
            return "differs", found
    if plain_error is not None:
        if error is None:
            return "differs", f"plain torch raises {plain_error!r}, offloaded nothing"
        return "plain fails", repr(plain_error)
    if error is None:
        return "equal", ""
    for pattern in REFUSALS:
        if re.search(pattern, str(error)):
            return "refused", str(error)
    where = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in where if frame.filename == "<drawn>"), 0)
    return "differs", (f"raises {type(error).__name__}: {error} (line {line}: "
                       f"{text.splitlines()[line - 1].strip() if line else 'close'})")


def shrunk(draw):
    """A program with as little in it as still fails in the same way."""
    kind = _kind(judge(draw)[1])
    found = True
    while found:
        found = False
        for smaller in _smaller(draw):
            verdict, words = judge(smaller)
            if verdict == "differs" and _kind(words) == kind:
                draw, found = smaller, True
                break
    return draw


def _kind(words):
    """How a program fails, without numbers and names."""
    return re.sub(r"[\d'].*", "", words) + str([word for word in ("keys", "elements", "values")
                                               if word in words])


def _smaller(draw):
    steps = draw.steps
    for at in range(len(steps) if len(steps) > 1 else 0):
        yield Draw(draw.model, draw.optimizer, draw.budget, steps[:at] + steps[at + 1:])
    for at, step in enumerate(steps):
        for name in step:
            rest = [each for each in step if each != name]
            yield Draw(draw.model, draw.optimizer, draw.budget,
                       steps[:at] + [rest] + steps[at + 1:])
    if draw.model != "stack":
        yield Draw("stack", draw.optimizer, draw.budget, steps)
    for optimizer in "SGD", "AdamW", "RMSprop":
        if draw.optimizer in ("SGD", optimizer):
            break
        if not (draw.model in ("bf16", "mixed") and OPTIMIZERS[optimizer][2]):
            yield Draw(draw.model, optimizer, draw.budget, steps)
    if draw.budget != "resident":
        yield Draw(draw.model, draw.optimizer, "resident", steps)
