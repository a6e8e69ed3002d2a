"""Programs as users of PyTorch's libraries write them, on one GPU: small models with random weights and made-up data.

Each is a function of a `Run` (programs_worker.py): `begin()` and `end(loss)` stand around each step,
`size(full, tiny)` is the full one on a GPU. What varies from step to step (lengths, resolutions, graphs) is what fragments
memory.
"""

import random
import tempfile
import threading
from contextlib import nullcontext

import torch
from torch import nn


def lengths(count, longest, seed=0):
    """Lengths of texts: many short ones, a few long ones."""
    rng = random.Random(seed)
    return [max(16, min(longest, int(rng.lognormvariate(0.0, 0.7) * longest / 3))) for _ in range(count)]


def texts(vocabulary, batch, steps, longest):
    """A batch of tokens for each step, each of another length."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocabulary, (batch, length), generator=generator) for length in lengths(steps, longest)]


def llama(width, layers, vocabulary, device):
    """A Llama of Hugging Face's, made on the device, where its weights are drawn sooner."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 128),
        intermediate_size=width * 3,
        vocab_size=vocabulary,
        use_cache=False,
    )
    with torch.device(device):
        return LlamaForCausalLM(config)


def adamw(model, rate=1e-4):
    """The optimizer of most of them."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, foreach=True)


def hf_trainer(run):
    """Hugging Face's Trainer: a Llama in bf16, batches of texts padded to the longest."""
    trainer(run, run.size(32000, 100), run.size(1024, 64), run.size(8, 2))


def large_trainer(run):
    """Hugging Face's Trainer with a vocabulary and a width of recent models, so that logits and weights are large."""
    trainer(run, run.size(128256, 100), run.size(1536, 64), run.size(12, 2))


def trainer(run, vocabulary, width, layers):
    """Hugging Face's Trainer: a Llama in bf16, batches of texts padded to the longest."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    batch = run.size(8, 2)
    model = llama(width, layers, vocabulary, run.device)
    rng = random.Random(0)
    data = [
        {"input_ids": [rng.randrange(vocabulary) for _ in range(length)]}
        for length in lengths(run.steps * batch, run.size(1024, 32))
    ]
    losses = []

    class Observed(Trainer):
        def compute_loss(self, *arguments, **keywords):
            found = super().compute_loss(*arguments, **keywords)
            losses.append((found[0] if isinstance(found, tuple) else found).detach())
            return found

    class Callback(TrainerCallback):
        def on_step_begin(self, *arguments, **keywords):
            run.begin()

        def on_step_end(self, *arguments, **keywords):
            run.end(losses.pop())

    def padded(examples):
        longest = max(len(example["input_ids"]) for example in examples)
        ids = torch.zeros(len(examples), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, example in enumerate(examples):
            ids[row, : len(example["input_ids"])] = torch.tensor(example["input_ids"])
            mask[row, : len(example["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=batch,
            max_steps=run.steps,
            bf16=run.device == "cuda",
            use_cpu=run.device == "cpu",
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        Observed(model, arguments, train_dataset=data, data_collator=padded, callbacks=[Callback()]).train()


def fixed(run, recompute=False):
    """A Llama of a billion parameters in bf16, batches of one shape: each step asks for the same memory."""
    vocabulary, width = run.size(128256, 100), run.size(2048, 64)
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = llama(width, run.size(16, 2), vocabulary, run.device)
    torch.set_default_dtype(kind)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    generator, shape = torch.Generator().manual_seed(0), (run.size(4, 2), run.size(1024, 32))
    learn(run, model, (torch.randint(0, vocabulary, shape, generator=generator) for _ in range(run.steps)))


def fixed_recomputed(run):
    """`fixed` with activations recomputed in the backward pass."""
    fixed(run, recompute=True)


def launch_bound(run):
    """A small GPT-2 on a GPU that waits for the CPU: a step that is timed is ten of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    vocabulary = run.size(50257, 100)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=run.size(256, 64), n_layer=run.size(12, 2), n_head=4, vocab_size=vocabulary)
    ).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=False)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(run.steps):
        run.begin()
        for _ in range(10):
            ids = torch.randint(0, vocabulary, (2, rng.choice((32, 48, 64, 96))), generator=generator).to(run.device)
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        run.end(loss)


def accelerate(run):
    """accelerate: a GPT-2 in bf16, gradients gathered over two batches, norms clipped."""
    from accelerate import Accelerator
    from transformers import GPT2Config, GPT2LMHeadModel

    cuda = run.device == "cuda"
    accelerator = Accelerator(
        mixed_precision="bf16" if cuda else "no", gradient_accumulation_steps=2, cpu=run.device == "cpu"
    )
    width, vocabulary = run.size(768, 64), run.size(50257, 100)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=width, n_layer=run.size(12, 2), n_head=max(1, width // 64), vocab_size=vocabulary)
    )
    model, optimizer = accelerator.prepare(model, adamw(model))
    for ids in run.cyclic(texts(vocabulary, run.size(8, 2), run.inputs, run.size(1024, 32))):
        run.begin()
        ids = ids.to(accelerator.device)
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        run.end(loss)


def lightning(run):
    """Lightning: a ResNet-50 in mixed precision on pictures of several sizes."""
    import lightning as pl
    import timm

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = timm.create_model(run.size("resnet50", "resnet10t"), pretrained=False, num_classes=100)

        def training_step(self, batch, index):
            pictures, labels = batch
            return nn.functional.cross_entropy(self.model(pictures), labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    class Callback(pl.Callback):
        def on_train_batch_start(self, *arguments):
            run.begin()

        def on_train_batch_end(self, trainer, module, outputs, *arguments):
            run.end(outputs["loss"])

    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    data = []
    for _ in range(run.steps):
        side, batch = (
            rng.choice(run.size((128, 160, 192, 224, 288), (32, 64))),
            run.size(rng.choice((24, 32, 48)), 2),
        )
        pictures = torch.randn(batch, 3, side, side, generator=generator)
        data.append((pictures, torch.randint(0, 100, (batch,), generator=generator)))
    trainer = pl.Trainer(
        max_steps=run.steps,
        accelerator="gpu" if run.device == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Callback()],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=None))


def train(run, model, vocabulary, batch, longest):
    """Steps of a language model, each of another length. Every rank has texts of its own."""
    batches = run.cyclic(texts(vocabulary, batch, run.inputs, longest))
    learn(run, model, ((ids + 7 * run.rank) % vocabulary for ids in batches))


def learn(run, model, batches):
    """A step of a language model for each batch of tokens."""
    optimizer = adamw(model)
    for ids in batches:
        run.begin()
        ids = ids.to(run.device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.end(loss)


def peft(run):
    """PEFT: LoRA on a Llama whose weights are bf16, activations recomputed."""
    from peft import LoraConfig, get_peft_model

    vocabulary = run.size(32000, 100)
    model = llama(run.size(2048, 64), run.size(8, 2), vocabulary, run.device).to(torch.bfloat16)
    model = get_peft_model(
        model,
        LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"),
    )
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    train(run, model, vocabulary, run.size(6, 2), run.size(1536, 32))


def diffusers(run):
    """diffusers: a U-Net with text conditioning, pictures of several shapes."""
    from diffusers import DDPMScheduler, UNet2DConditionModel

    channels = run.size((192, 384, 768), (32, 64))
    model = UNet2DConditionModel(
        sample_size=64,
        block_out_channels=channels,
        down_block_types=("CrossAttnDownBlock2D",) * (len(channels) - 1) + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (len(channels) - 1),
        cross_attention_dim=run.size(768, 32),
        attention_head_dim=8,
    ).to(run.device)
    noise_steps, optimizer = DDPMScheduler(num_train_timesteps=1000), adamw(model, 1e-5)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    shapes = run.size([(64, 64), (48, 80), (80, 48), (96, 96), (56, 72), (96, 64)], [(16, 16), (8, 16)])
    for _ in range(run.steps):
        height, width = rng.choice(shapes)
        batch = max(1, run.size(32768, 512) // (height * width))
        clean = torch.randn(batch, 4, height, width, generator=generator)
        words = torch.randn(batch, 77, run.size(768, 32), generator=generator)
        times = torch.randint(0, 1000, (batch,), generator=generator)
        noise = torch.randn(clean.shape, generator=generator)
        run.begin()
        clean, words, times, noise = (tensor.to(run.device) for tensor in (clean, words, times, noise))
        with torch.autocast(run.device, dtype=torch.bfloat16):
            found = model(noise_steps.add_noise(clean, noise, times), times, words).sample
            loss = nn.functional.mse_loss(found.float(), noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.end(loss)


def geometric(run):
    """PyTorch Geometric: attention over graphs, each of another size."""
    from torch_geometric.nn import GATv2Conv

    class Net(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            inner = width * heads
            self.layers = nn.ModuleList(GATv2Conv(width if i == 0 else inner, width, heads=heads) for i in range(3))
            self.out = nn.Linear(inner, 16)

        def forward(self, x, edges):
            for layer in self.layers:
                x = torch.relu(layer(x, edges))
            return self.out(x)

    width = run.size(96, 8)
    model = Net(width, run.size(4, 2)).to(run.device)
    optimizer = adamw(model)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(run.steps):
        nodes = rng.randint(*run.size((4000, 24000), (20, 60)))
        edges = torch.randint(0, nodes, (2, nodes * rng.randint(4, 10)), generator=generator)
        x, labels = torch.randn(nodes, width, generator=generator), torch.randint(0, 16, (nodes,), generator=generator)
        run.begin()
        x, edges, labels = x.to(run.device), edges.to(run.device), labels.to(run.device)
        loss = nn.functional.cross_entropy(model(x, edges), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.end(loss)


def compiled(run, mode):
    """torch.compile of a transformer for two lengths, forward and backward. Its embedding is frozen: the gradient would
    differ from run to run, and what makes it the same, Inductor leaves out of CUDA graphs."""
    from models import Transformer
    from torch._dynamo.utils import counters

    torch.use_deterministic_algorithms(False)
    vocabulary = run.size(16000, 100)
    model = Transformer(run.size(768, 64), run.size(6, 1), vocabulary, recompute=False).to(run.device)
    model.embed.requires_grad_(False)
    step, optimizer = torch.compile(model, mode=mode, dynamic=False), adamw(model)
    generator = torch.Generator().manual_seed(0)
    for number in range(run.steps):
        length = run.size((512, 384), (16, 32))[number % 2]
        ids = torch.randint(0, vocabulary, (run.size(8, 2), length), generator=generator)
        run.begin()
        ids = ids.to(run.device)
        with torch.autocast("cuda", dtype=torch.bfloat16) if run.device == "cuda" else nullcontext():
            loss = nn.functional.cross_entropy(step(ids).flatten(0, 1).float(), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.end(loss)
    run.facts.update(
        graphs=counters["stats"]["unique_graphs"], cudagraph_skips=counters["inductor"]["cudagraph_skips"]
    )


def compile_default(run):
    """torch.compile as it is by default."""
    compiled(run, "default")


def compile_reduce_overhead(run):
    """torch.compile with CUDA graphs."""
    compiled(run, "reduce-overhead")


def serving(run):
    """Four threads, each with a model and a stream of its own, answer requests of all sizes. The results are read on the
    main stream. The loss is their sum."""
    import timm

    names = run.size(("resnet50", "vit_small_patch16_224", "convnext_tiny", "efficientnet_b0"), ("resnet10t",) * 2)
    kind = torch.bfloat16 if run.device == "cuda" else torch.float32
    models = [timm.create_model(name, pretrained=False).to(run.device).eval().to(kind) for name in names]
    cuda = run.device == "cuda"
    streams = [torch.cuda.Stream() if cuda else None for _ in models]
    generator = torch.Generator().manual_seed(0)
    rng = random.Random(0)
    batches, each = run.size((1, 2, 4, 8, 16, 32), (1, 2)), run.size(6, 1)
    inputs = [[[rng.choice(batches) for _ in range(each)] for _ in models] for _ in range(run.inputs)]
    for requests in run.cyclic(inputs):
        sample = torch.randn(32, 3, 224, 224, generator=generator)
        results = [[] for _ in models]

        def work(number, requests=requests, results=results, sample=sample):
            with torch.cuda.stream(streams[number]) if cuda else nullcontext(), torch.inference_mode():
                for batch in requests[number]:
                    found = models[number](sample[:batch].to(run.device, kind))
                    if cuda:
                        found.record_stream(torch.cuda.default_stream())
                    results[number].append(found)

        run.begin()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(models))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for stream in streams:
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)
        run.end(sum(found.float().abs().sum() for one in results for found in one))


# And how many steps come before those that are told: code is compiled in them.
PROGRAMS = {
    "compile_reduce_overhead": (compile_reduce_overhead, 8),
    "compile_default": (compile_default, 4),
    "hf_trainer": (hf_trainer, 0),
    "large_trainer": (large_trainer, 0),
    "fixed": (fixed, 0),
    "fixed_recomputed": (fixed_recomputed, 0),
    "launch_bound": (launch_bound, 0),
    "accelerate": (accelerate, 0),
    "lightning": (lightning, 0),
    "peft": (peft, 0),
    "diffusers": (diffusers, 0),
    "geometric": (geometric, 0),
    "serving": (serving, 0),
}
