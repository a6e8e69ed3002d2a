"""Programs of tests: a test of a whole process runs in a process of its own, on a simulated device."""

import os
import subprocess
import sys


def run(*arguments, conf="", device="sim:h200", **environment):
    """Runs this Python with arguments. The environment has no options but the given ones, and seamalloc is quiet."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SEAMALLOC_", "PYTORCH_"))}
    for name in ("SEAMALLOC_CACHE",):
        if name in os.environ:
            env[name] = os.environ[name]
    env.update(SEAMALLOC_CONF=conf, SEAMALLOC_DEVICE=device, SEAMALLOC_QUIET="1")
    env.update((name, str(value)) for name, value in environment.items())
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)


def run_code(code, **environment):
    """Runs a program. Returns what it prints."""
    done = run("-c", code, **environment)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def path_with(folder):
    """Returns Python's path with a folder at its head."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def has_torch():
    """Returns whether PyTorch with CUDA can be imported."""
    try:
        import torch
    except ImportError:
        return False
    return torch.version.cuda is not None
