"""Guard mode from Python, on a simulated device: addresses are never used."""

import unittest

from processes import run_code
from test_package import ALLOCATE

# As much of PyTorch as `watch` looks at. Operators are called through the mode that is on.
TORCH = """
import sys, types
torch = types.ModuleType("torch")
torch.strided = "strided"
class Stream:
    def __init__(self, handle): self.cuda_stream = handle
    def record_event(self):
        event = torch.cuda.Event()
        event.record(self)
        return event
    def wait_stream(self, other): other.record_event().wait(self)
class Event:
    def record(self, stream): pass
    def wait(self, stream): pass
class Tensor:
    is_cuda, layout, device = True, "strided", types.SimpleNamespace(index=0)
    def __init__(self, address): self.address = address
    def untyped_storage(self): return types.SimpleNamespace(data_ptr=lambda: self.address)
torch.Tensor = Tensor
current = Stream(0)
torch.cuda = types.SimpleNamespace(
    Event=Event, current_stream=lambda device=None: current, is_initialized=lambda: True, current_device=lambda: 0,
    memory=types.SimpleNamespace(_snapshot=lambda device: {"device_traces": [history]}),
)
history, modes = [], []
class TorchDispatchMode:
    def __enter__(self): modes.append(self)
    def __exit__(self, *_): modes.pop()
dispatch = types.ModuleType("torch.utils._python_dispatch")
dispatch.TorchDispatchMode = TorchDispatchMode
utils = types.ModuleType("torch.utils")
for name, module in (("torch", torch), ("torch.utils", utils), ("torch.utils._python_dispatch", dispatch)):
    sys.modules[name] = module
def operator(*args):
    return modes[-1].__torch_dispatch__(lambda *args, **kwargs: args[0], (), args, {})
"""


class Guard(unittest.TestCase):
    def test_tells_what_an_address_belongs_to_and_what_was_found(self):
        for conf, environment in (("guard:on", {}), ("", {"SEAMALLOC_GUARD": "1"})):
            run_code(
                ALLOCATE
                + """
assert seamalloc.explain(4096) == "" and seamalloc.findings() == [] and seamalloc.check_guards() == 0
address = get(1000)
assert "24 bytes behind the end of allocation #1 (1000 bytes at" in seamalloc.explain(address + 1024)
put(address)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
library.seam_set_message_handler(handler, None)
put(address)
found = seamalloc.findings()
assert [(one["kind"], one["size"], one["number"]) for one in found] == [("double_free", 1000, 1)], found
assert seamalloc.check_guards() == 1 and "mistakes found" in seamalloc.report(), seamalloc.report()
assert seamalloc.stats()["guard"]["guarded"] == 1
""",
                conf=conf,
                **environment,
            )

    def test_watches_operators_and_the_order_of_streams(self):
        run_code(
            ALLOCATE
            + TORCH
            + """
import seamalloc.guard
side, own = Stream(0x40), current
missing = lambda: [one["kind"] for one in seamalloc.findings()]
tensors = [Tensor(get(1000)) for _ in range(3)]
before = Event.record, Event.wait
with seamalloc.guard.watch():
    operator(tensors[0], [tensors[1]])
    current = side
    operator({"weights": (tensors[0], tensors[1])}, 7)
    own.wait_stream(side)
assert (Event.record, Event.wait) == before and not modes
calls = seamalloc.stats()["driver_calls"]
assert calls["event_record"]["count"] == 1, "one use by another stream than their own: %s" % calls
put(tensors[0].address)
assert missing() == []
assert seamalloc.stats()["driver_calls"]["fill"]["count"] >= 3
""",
            conf="guard:on",
        )

    def test_adds_the_lines_of_pytorchs_history(self):
        run_code(
            ALLOCATE
            + TORCH
            + """
address = get(1000)
frame = {"filename": "train.py", "line": 7, "name": "step"}
history += [{"action": "alloc", "addr": address, "size": 1000, "frames": [frame]}]
lines = seamalloc.explain(address + 5).splitlines()
assert lines[1:] == ["allocated at train.py:7 in step"], lines
def lost(device): raise RuntimeError("CUDA error: an illegal memory access was encountered")
torch.cuda.memory._snapshot = lost
assert len(seamalloc.explain(address + 1020).splitlines()) == 1
""",
            conf="guard:on",
        )


if __name__ == "__main__":
    unittest.main()
