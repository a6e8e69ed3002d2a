"""Programs of users on two GPUs, a process each: a function of a `Run`, as in programs_one_gpu.py."""

import torch
import torch.distributed as dist
from programs_one_gpu import adamw, llama, train
from torch import nn


def ddp(run):
    """DistributedDataParallel, buckets as views of gradients."""
    from torch.nn.parallel import DistributedDataParallel

    vocabulary = run.size(32000, 100)
    model = llama(run.size(1024, 64), run.size(12, 2), vocabulary, run.device)
    devices = [run.rank] if run.device == "cuda" else None
    model = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    train(run, model, vocabulary, run.size(6, 2), run.size(1024, 32))


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


def fsdp2(run):
    """FSDP2, weights and optimizer in fp32."""
    vocabulary = run.size(32000, 100)
    model = llama(run.size(2048, 64), run.size(12, 2), vocabulary, run.device)
    train(run, sharded(model, run.device), vocabulary, run.size(6, 2), run.size(1536, 32))


def fsdp2_1b(run):
    """FSDP2, weights in bf16, the vocabulary of Llama 3: large activations beside small weights."""
    vocabulary = run.size(128256, 100)
    model = llama(run.size(2048, 64), run.size(16, 2), vocabulary, run.device).to(torch.bfloat16)
    train(run, sharded(model, run.device), vocabulary, run.size(4, 2), run.size(2000, 32))


def fsdp2_8b(run):
    """FSDP2 of a model of eight thousand million parameters in bf16, activations recomputed."""
    vocabulary = run.size(128256, 100)
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = llama(run.size(4096, 64), run.size(32, 2), vocabulary, run.device)
    torch.set_default_dtype(kind)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    train(run, sharded(model, run.device), vocabulary, run.size(4, 2), run.size(1900, 32))


def pipeline(run):
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

    width, parts = run.size(2048, 16), 8
    device = torch.device(run.device, run.rank) if run.device == "cuda" else torch.device("cpu")
    model = nn.Sequential(*[Block(width) for _ in range(run.size(8, 1))]).to(device)
    stage = PipelineStage(model, run.rank, dist.get_world_size(), device)
    schedule = Schedule1F1B(stage, n_microbatches=parts, loss_fn=nn.functional.mse_loss)
    optimizer, generator = adamw(model), torch.Generator().manual_seed(0)
    for _ in range(run.steps):
        x = torch.randn(parts * run.size(1024, 4), width, generator=generator)
        run.begin()
        x, losses = x.to(device), []
        if run.rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=torch.zeros_like(x), losses=losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.end(sum(losses) / parts if losses else None)


PROGRAMS = {
    "ddp": (ddp, 1),
    "fsdp2": (fsdp2, 1),
    "fsdp2_1b": (fsdp2_1b, 1),
    "fsdp2_8b": (fsdp2_8b, 1),
    "pipeline": (pipeline, 1),
}
