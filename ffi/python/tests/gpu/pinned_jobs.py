"""Jobs that offload to page-locked memory: activations by `save_on_cpu`, an optimizer on the CPU, batches of a DataLoader."""

import torch
from models import Transformer
from torch.utils.data import DataLoader, Dataset

LENGTHS = (1500, 700, 2040, 1100)
VOCABULARY = 32000


class Sequences(Dataset):
    """Sequences of tokens: which they are, and how long, their numbers say."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        # Those of a batch are of one length.
        return torch.randint(0, VOCABULARY, (LENGTHS[number // 2 % len(LENGTHS)],), generator=generator)


def batches(steps, workers=2, pin_memory=True):
    """Two sequences each, in page-locked memory."""
    return DataLoader(Sequences(2 * steps), batch_size=2, num_workers=workers, pin_memory=pin_memory)


def model(width, layers, device):
    """A transformer that keeps all its activations."""
    torch.manual_seed(1)
    return Transformer(width=width, layers=layers, vocabulary=VOCABULARY, recompute=False).to(device, torch.bfloat16)


def loss_of(model, ids):
    return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())


class OffloadedAdam:
    """Adam whose state, masters and arithmetic are the CPU's. Gradients come there through page-locked memory that is asked for
    in each step, and parameters go back through that of the masters."""

    def __init__(self, parameters, rate=1e-4):
        self.parameters, self.rate, self.steps = list(parameters), rate, 0
        empty = lambda p: torch.zeros(p.shape, dtype=torch.float32, pin_memory=True)
        self.state = [(empty(p), empty(p), empty(p).copy_(p.detach())) for p in self.parameters]

    def step(self):
        self.steps += 1
        grads = []
        for p in self.parameters:
            grad = torch.empty(p.shape, dtype=p.dtype, pin_memory=True)
            grads.append(grad.copy_(p.grad, non_blocking=True))
            p.grad = None
        torch.cuda.synchronize()
        for p, grad, (mean, square, master) in zip(self.parameters, grads, self.state):
            grad = grad.float()
            mean.lerp_(grad, 0.1)
            square.mul_(0.999).addcmul_(grad, grad, value=0.001)
            root = (square / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
            master.addcdiv_(mean, root, value=-self.rate / (1 - 0.9**self.steps))
            half = torch.empty(p.shape, dtype=p.dtype, pin_memory=True).copy_(master)
            p.data.copy_(half, non_blocking=True)


def train(steps, width, layers, workers=2, optimizer=True):
    """Trains with all of it. Yields the loss of each step, as a number."""
    trained = model(width, layers, "cuda")
    adam = OffloadedAdam(trained.parameters()) if optimizer else None
    for ids in batches(steps, workers):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = loss_of(trained, ids.to("cuda", non_blocking=True))
        loss.backward()
        if adam is not None:
            adam.step()
        else:
            trained.zero_grad(set_to_none=True)
        yield float(loss)
