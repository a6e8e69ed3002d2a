"""Programs of users on two GPUs, a process each: a function of a `Turns`, as in programs_one_gpu.py."""

import torch
import torch.distributed as dist
from programs_one_gpu import adamw, llama, train
from torch import nn


def ddp(turns):
    """DistributedDataParallel, buckets as views of gradients."""
    from torch.nn.parallel import DistributedDataParallel

    vocabulary = turns.size(32000, 100)
    model = llama(turns.size(1024, 64), turns.size(12, 2), vocabulary, turns.device)
    devices = [turns.rank] if turns.device == "cuda" else None
    model = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    train(turns, model, vocabulary, turns.size(6, 2), turns.size(1024, 32))


def sharded(model, device):
    """FSDP2: parameters gathered in bf16 layer by layer, gradients reduced in fp32."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def fsdp2(turns):
    """FSDP2, weights and optimizer in fp32."""
    vocabulary = turns.size(32000, 100)
    model = llama(turns.size(2048, 64), turns.size(12, 2), vocabulary, turns.device)
    train(turns, sharded(model, turns.device), vocabulary, turns.size(6, 2), turns.size(1536, 32))


def fsdp2_1b(turns):
    """FSDP2, weights in bf16, the vocabulary of Llama 3: large activations beside small weights."""
    vocabulary = turns.size(128256, 100)
    model = llama(turns.size(2048, 64), turns.size(16, 2), vocabulary, turns.device).to(torch.bfloat16)
    train(turns, sharded(model, turns.device), vocabulary, turns.size(4, 2), turns.size(2000, 32))


def fsdp2_8b(turns):
    """FSDP2 of a model of eight thousand million parameters in bf16, activations recomputed."""
    vocabulary = turns.size(128256, 100)
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = llama(turns.size(4096, 64), turns.size(32, 2), vocabulary, turns.device)
    torch.set_default_dtype(kind)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    train(turns, sharded(model, turns.device), vocabulary, turns.size(4, 2), turns.size(1900, 32))


def pipeline(turns):
    """Two stages, one forward and one backward at a time (1F1B), eight parts of a batch."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.Linear(4 * width, width),
            )

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    width, parts = turns.size(2048, 16), 8
    device = torch.device(turns.device, turns.rank) if turns.device == "cuda" else torch.device("cpu")
    model = nn.Sequential(*[Block(width) for _ in range(turns.size(8, 1))]).to(device)
    stage = PipelineStage(model, turns.rank, dist.get_world_size(), device)
    schedule = Schedule1F1B(stage, n_microbatches=parts, loss_fn=nn.functional.mse_loss)
    optimizer, generator = adamw(model), torch.Generator().manual_seed(0)
    for _ in range(turns.steps):
        x = torch.randn(parts * turns.size(1024, 4), width, generator=generator)
        turns.begin()
        x, losses = x.to(device), []
        if turns.rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=torch.zeros_like(x), losses=losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        turns.end(sum(losses) / parts if losses else None)


PROGRAMS = {
    "ddp": (ddp, 1),
    "fsdp2": (fsdp2, 1),
    "fsdp2_1b": (fsdp2_1b, 1),
    "fsdp2_8b": (fsdp2_8b, 1),
    "pipeline": (pipeline, 1),
}
