#!/usr/bin/env python3
"""Exports graphs of operators for `seamalloc order` from models of PyTorch, on the CPU, without their weights.

    pip install torch torchvision transformers
    python crates/order/export/export.py --list
    python crates/order/export/export.py resnet50-sgd gpt2-adam -o crates/order/graphs

A model is traced with fake tensors, which have shapes and no memory: the forward and the backward pass as PyTorch's autograd runs them
(`aot_export_module`), operator by operator, in the order in which PyTorch runs them. Behind it stands one operator for each
parameter that updates it in place, as optimizers do: `sgd` (w, g), `adam` (w, g and two moments); with `none` the gradients are results.

- Bytes are those of a tensor's storage, rounded up to 512 as PyTorch's allocator does.
- Weights, moments, buffers and the batch are persistent: the caller holds them.
- Views have no memory of their own (`view_of`). What an operator needs inside of itself is not known to a trace.
- The trace is functional: where a model writes in place (`ReLU(inplace=True)`), there is a new tensor. Buffers (batch norm's means) are
  written back right behind what makes their new values.
"""

import argparse
import gzip
import json
import pathlib
import sys

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode

GRANULE = 512


class Loss(nn.Module):
    """A model and its loss, which is what is traced. `ties` has the weights that layers share: (layer, name, its layer, its name).

    The trace takes each name of a weight for a weight of its own. So a shared one has one name, and the others only while the model runs.
    """

    def __init__(self, model, loss, ties):
        super().__init__()
        self.model, self.loss, self.ties = model, loss, ties

    def forward(self, *batch):
        for layer, name, first, own in self.ties:
            layer._parameters[name] = first._parameters[own]
        loss = self.loss(self.model, *batch)
        for layer, name, _, _ in self.ties:
            del layer._parameters[name]
        return (loss,)


def classify(model, images, labels):
    return nn.functional.cross_entropy(model(images), labels)


def language(model, tokens, labels):
    return model(input_ids=tokens, labels=labels, use_cache=False).loss


def masked(model, tokens, labels):
    return model(input_ids=tokens, labels=labels).loss


def segment(model, images, labels):
    return nn.functional.cross_entropy(model(images), labels)


class Twice(nn.Sequential):
    """Two convolutions of 3x3 with batch norm: a step of U-Net."""

    def __init__(self, inside, outside):
        layers = []
        for channels in (inside, outside):
            layers += [nn.Conv2d(channels, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Ronneberger and others, arXiv 1505.04597, with padding and batch norm."""

    def __init__(self, classes=2, widths=(64, 128, 256, 512, 1024)):
        super().__init__()
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip((3, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.across = nn.ModuleList(Twice(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for step in self.down[:-1]:
            x = step(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.down[-1](x)
        for up, across, side in reversed(list(zip(self.up, self.across, kept))):
            x = across(torch.cat([side, up(x)], 1))
        return self.last(x)


def pixels(batch, classes, size=224):
    return lambda: (torch.empty(batch, 3, size, size), torch.zeros(batch, dtype=torch.long))


def tokens(batch, length):
    return lambda: (torch.zeros(batch, length, dtype=torch.long), torch.zeros(batch, length, dtype=torch.long))


def vision(name):
    def make():
        import torchvision

        return getattr(torchvision.models, name)()

    return make


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel, masking_utils

    # Looks into the batch for several texts behind each other; a trace has no values, and here is one text a row.
    masking_utils.find_packed_sequence_indices = lambda *_: None
    return GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa", loss_type="ForCausalLM"))


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(attn_implementation="sdpa"))


def segments(batch, size):
    return lambda: (torch.empty(batch, 3, size, size), torch.zeros(batch, size, size, dtype=torch.long))


# name: (how it is called, model, loss, batch)
MODELS = {
    "resnet50": ("ResNet-50 of torchvision", vision("resnet50"), classify, {b: pixels(b, 1000) for b in (1, 32)}),
    "mobilenet": ("MobileNetV2 of torchvision", vision("mobilenet_v2"), classify, {b: pixels(b, 1000) for b in (1, 32)}),
    "vit": ("ViT-B/16 of torchvision", vision("vit_b_16"), classify, {b: pixels(b, 1000) for b in (1, 32)}),
    "gpt2": ("GPT-2 small of transformers, 1024 tokens", gpt2, language, {b: tokens(b, 1024) for b in (1, 8)}),
    "bert": ("BERT base of transformers, 512 tokens", bert, masked, {b: tokens(b, 512) for b in (1, 8)}),
    "unet": ("U-Net, 64 to 1024 channels, 256 x 256 pixels", UNet, segment, {b: segments(b, 256) for b in (1, 8)}),
}
OPTIMIZERS = {"none": 0, "sgd": 0, "adam": 2}


class Writer:
    """Tensors and operators as `seamalloc order` reads them."""

    def __init__(self):
        self.tensors, self.operators, self.names = [], [], {}

    def tensor(self, key, name, value=None, *, view_of=None, persistent=False):
        self.names[key] = name
        if view_of is not None:
            self.tensors.append({"name": name, "view_of": view_of})
            return
        size = value.untyped_storage().nbytes()
        entry = {"name": name, "bytes": -(-size // GRANULE) * GRANULE}
        if persistent:
            entry["persistent"] = True
        self.tensors.append(entry)

    def operator(self, name, inputs, outputs, overwrites=()):
        entry = {"name": name, "inputs": list(dict.fromkeys(inputs)), "outputs": list(outputs)}
        if overwrites:
            entry["overwrites"] = list(overwrites)
        self.operators.append(entry)


def aliases(target):
    """Returns the argument that the output is a view of, by the operator's schema; None: none."""
    if target is torch.ops.aten._unsafe_view.default:
        return 0
    schema = getattr(target, "_schema", None)
    if schema is None or len(schema.returns) != 1 or schema.returns[0].alias_info is None:
        return None
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and not argument.alias_info.is_write:
            return place
    return None


def empty(model):
    """Gives a model of the device `meta` tensors on the CPU, and returns the weights that layers share."""
    first, shared = {}, []
    for name, weight in model.named_parameters(remove_duplicate=False):
        source = first.setdefault(id(weight), name)
        if source != name:
            shared.append((name, source))
    model.to_empty(device="cpu")
    ties = []
    for name, source in shared:
        (folder, _, own), (home, _, known) = name.rpartition("."), source.rpartition(".")
        del model.get_submodule(folder)._parameters[own]
        ties.append((model.get_submodule(folder), own, model.get_submodule(home), known))
    return ties


def export(name, optimizer, batch):
    title, model, loss, batches = MODELS[name]
    # Without memory and without values, so that nothing depends on them.
    with torch.device("meta"):
        made = model()
    with FakeTensorMode(allow_non_fake_inputs=True):
        ties = empty(made)
        traced = Loss(made.train(), loss, ties)
        inputs = batches[batch]()
        graph, signature = aot_export_module(traced, inputs, trace_joint=True, output_loss_index=0)
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    parameters = signature.inputs_to_parameters
    buffers = {buffer: place for place, buffer in signature.inputs_to_buffers.items()}
    writer = Writer()

    def copy_back(node):
        buffer = signature.buffers_to_mutate.get(node.name)
        if buffer is not None:
            writer.operator("copy_", [buffers[buffer], writer.names[node]], [], [buffers[buffer]])

    for node in places:
        writer.tensor(node, node.name, node.meta["val"], persistent=True)
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op == "get_attr":
            value = getattr(graph, node.target)
            writer.tensor(node, node.name, value, persistent=True)
            continue
        if node.target.__name__ == "getitem":
            source, index = node.args
            writer.names[node] = f"{source.name}.{index}"
            copy_back(node)
            continue
        value = node.meta.get("val")
        if value is None:
            # A check of the trace, which makes nothing.
            continue
        read = [writer.names[arg] for arg in node.all_input_nodes if arg in writer.names]
        operator = str(node.target).removeprefix("aten.").removesuffix(".default")
        place = aliases(node.target)
        if place is not None and isinstance(value, torch.Tensor):
            writer.tensor(node, node.name, view_of=writer.names[node.args[place]])
            writer.operator(operator, read, [node.name])
        elif isinstance(value, torch.Tensor):
            writer.tensor(node, node.name, value)
            writer.operator(operator, read, [node.name])
        elif isinstance(value, (tuple, list)):
            made = []
            views = "split" in str(node.target) or "unbind" in str(node.target)
            for index, part in enumerate(value):
                if isinstance(part, torch.Tensor) and part.untyped_storage().nbytes():
                    made.append(f"{node.name}.{index}")
                    source = writer.names[node.args[0]] if views else None
                    writer.tensor((node, index), made[-1], part, view_of=source)
            writer.operator(operator, read, made)
        else:
            raise SystemExit(f"{name}: {node.format_node()} makes {type(value)}")
        copy_back(node)
    results = {node.name: node for node in graph.graph.nodes}
    outputs = [signature.user_outputs[0]]
    outputs = [writer.names[results[output]] for output in outputs]
    gradients = signature.backward_signature.gradients_to_parameters
    owners = {parameter: place for place, parameter in parameters.items()}
    moments = OPTIMIZERS[optimizer]
    order = list(traced.state_dict(keep_vars=True))
    steps = sorted(gradients.items(), key=lambda item: order.index(item[1]))
    for gradient, parameter in steps:
        gradient = writer.names[results[gradient]]
        if optimizer == "none":
            outputs.append(gradient)
            continue
        weight = owners[parameter]
        state = [f"{weight}.moment{index}" for index in range(moments)]
        for moment in state:
            size = next(entry for entry in writer.tensors if entry["name"] == weight)
            writer.tensors.append({"name": moment, "bytes": size["bytes"], "persistent": True})
        writer.operator(optimizer, [weight, gradient, *state], [], [weight, *state])
    about = f"{title}, batch {batch}, float32, forward and backward"
    about += {"none": "; gradients are results", "sgd": ", SGD", "adam": ", Adam"}[optimizer]
    about += f"; PyTorch {torch.__version__.split('+')[0]}"
    return {
        "about": about,
        "tensors": writer.tensors,
        "operators": writer.operators,
        "outputs": list(dict.fromkeys(outputs)),
    }


def main():
    wanted = [f"{m}-{o}-{b}" for m in MODELS for o in OPTIMIZERS for b in MODELS[m][3]]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", help="MODEL-OPTIMIZER-BATCH, such as resnet50-sgd-32")
    parser.add_argument("--list", action="store_true", help="the names")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("."), help="a folder")
    given = parser.parse_args()
    if given.list or not given.graphs:
        print("\n".join(wanted))
        return
    for name in given.graphs:
        if name not in wanted:
            sys.exit(f"no graph is called {name}; --list shows the names")
        model, optimizer, batch = name.rsplit("-", 2)
        graph = export(model, optimizer, int(batch))
        text = json.dumps(graph, separators=(",", ":"))
        path = given.output / f"{name}.json.gz"
        # Without a time, so that the same graph is the same file.
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        print(f"{path}: {len(graph['operators'])} operators, {len(graph['tensors'])} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
