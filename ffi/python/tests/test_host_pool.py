"""Pools of memory that the CPU and streams use, in host memory: no PyTorch, no GPU."""

import gc
import unittest

from processes import has_torch, run_code

import seamalloc

MIB = 1 << 20
DEVICE = "host:256MiB"


class Pool(unittest.TestCase):
    def setUp(self):
        self.pool = seamalloc.HostPool(DEVICE)
        self.addCleanup(self.pool.close)

    def live(self):
        return self.pool.stats()["allocated_bytes"]["all"]["current"]

    def test_gives_host_memory(self):
        block = self.pool.allocate(3 * MIB + 5)
        self.assertEqual((len(block), block.size, block.address % 512), (3 * MIB + 5, 3 * MIB + 5, 0))
        view = block.view()
        view[:5], view[-5:] = b"first", b"final"
        again = block.view()
        self.assertEqual((len(again), bytes(again[:5]), bytes(again[-5:])), (3 * MIB + 5, b"first", b"final"))
        block.free()
        self.assertEqual(self.live(), 0)

    def test_a_free_block_serves_the_next_request_whatever_its_size(self):
        sizes = (3 * MIB, 5 * MIB, 7 * MIB)
        blocks = [self.pool.allocate(size) for size in sizes]
        held = self.pool.stats()["reserved_bytes"]["all"]["current"]
        self.assertLess(held, 17 * MIB, "PyTorch's powers of two come to 20 MiB")
        for block in blocks:
            block.free()
        whole = self.pool.allocate(15 * MIB)
        self.assertEqual(self.pool.stats()["reserved_bytes"]["all"]["peak"], held, "what is free is stitched")
        view = whole.view()
        for place in range(0, len(view), MIB):
            view[place] = place // MIB + 1
        self.assertEqual([view[place] for place in range(0, len(view), MIB)], list(range(1, 16)))

    def test_a_block_lives_as_long_as_its_views(self):
        view = self.pool.allocate(MIB).view()
        gc.collect()
        self.assertEqual(self.live(), MIB)
        half = view[: MIB // 2]
        del view
        gc.collect()
        self.assertEqual(self.live(), MIB)
        del half
        gc.collect()
        self.assertEqual(self.live(), 0)

    def test_waits_for_streams_that_were_named(self):
        for _ in range(5):
            block = self.pool.allocate(2 * MIB)
            block.record_stream(0x70)
            block.record_stream(0x70)
            block.free()
        # The stream has no work.
        self.assertEqual(self.pool.stats()["reserved_bytes"]["all"]["peak"], 2 * MIB)

    def test_a_second_free_is_an_error_and_so_is_a_use_after_it(self):
        block = self.pool.allocate(MIB)
        self.pool.free(block)
        self.assertIn("freed", repr(block))
        for use in (block.free, block.view, lambda: block.record_stream(0), lambda: block.__array_interface__):
            with self.assertRaisesRegex(ValueError, "was freed"):
                use()

    def test_wrong_sizes_options_and_devices_are_errors(self):
        for size in (0, -1, 1 << 63):
            with self.assertRaisesRegex(ValueError, "expected a number of bytes"):
                self.pool.allocate(size)
        with self.assertRaises(TypeError):
            self.pool.allocate(1.5)
        with self.assertRaises(seamalloc.OutOfMemory):
            self.pool.allocate(300 * MIB)
        with self.assertRaises(seamalloc.OptionError):
            seamalloc.HostPool(DEVICE, memory_limi="1GiB")
        with self.assertRaisesRegex(seamalloc.Error, "guard"):
            seamalloc.HostPool(DEVICE, guard="on").allocate(MIB)
        with self.assertRaisesRegex(seamalloc.Error, "no device"):
            seamalloc.HostPool("pined:0")

    def test_gives_back_and_keeps_to_its_limit(self):
        with seamalloc.HostPool(DEVICE, memory_limit="10MiB") as pool:
            pool.allocate(8 * MIB).free()
            with self.assertRaises(seamalloc.OutOfMemory):
                pool.allocate(12 * MIB)
            pool.allocate(8 * MIB).free()
            given = pool.trim(2 * MIB)
            self.assertGreaterEqual(given, 2 * MIB)
            self.assertEqual(given + pool.trim(), 8 * MIB)
        with self.assertRaises(seamalloc.Error):
            pool.allocate(MIB)

    def test_its_end_does_not_take_a_view_away(self):
        view = seamalloc.HostPool(DEVICE).allocate(MIB).view()
        gc.collect()
        view[0], view[-1] = 1, 2
        self.assertEqual((view[0], view[-1]), (1, 2))

    def test_forked_children_leave_it_alone(self):
        run_code(f"""
import os, seamalloc
pool = seamalloc.HostPool({DEVICE!r})
block = pool.allocate(1 << 20)
child = os.fork()
if child == 0:
    del block, pool
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert pool.stats()["allocated_bytes"]["all"]["current"] == 1 << 20
block.free()
""")

    def test_arrays_are_views(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")
        block = self.pool.allocate(4096)
        array = numpy.asarray(block).view(numpy.float32)
        array[:] = numpy.arange(1024)
        other = numpy.frombuffer(block.view(), dtype=numpy.float32)
        self.assertEqual(float(other.sum()), 1023 * 512)
        del block, other
        gc.collect()
        self.assertEqual(self.live(), 4096)
        del array
        gc.collect()
        self.assertEqual(self.live(), 0)


class WithoutPinned(unittest.TestCase):
    def test_the_device_of_that_name_is_not_there(self):
        self.assertEqual(seamalloc.trim(device="pinned"), 0)
        with self.assertRaisesRegex(RuntimeError, r"enable\(pinned=True\) was not called"):
            seamalloc.stats("pinned")


@unittest.skipUnless(has_torch(), "PyTorch with CUDA is not installed")
class Tensors(unittest.TestCase):
    """Tensors in host memory, which no device waits for here."""

    def setUp(self):
        self.pool = seamalloc.HostPool(DEVICE)
        self.addCleanup(self.pool.close)

    def live(self):
        gc.collect()
        return self.pool.stats()["allocated_bytes"]["all"]["current"]

    def test_are_of_the_pool_until_their_last_view_goes(self):
        import torch

        tensor = seamalloc.empty_pinned(3, 1000, dtype=torch.float64, pool=self.pool, streams=[0x70])
        self.assertEqual((tensor.shape, tensor.dtype, tensor.is_contiguous()), ((3, 1000), torch.float64, True))
        self.assertEqual(self.live(), 24064)
        part = tensor.fill_(7)[1]
        del tensor
        self.assertEqual((self.live(), float(part.sum())), (24064, 7000))
        del part
        self.assertEqual(self.live(), 0, "the streams that were named are all")

    def test_without_streams_they_wait_for_the_next_request(self):
        import torch

        copy = seamalloc.pin_memory(torch.arange(1000), pool=self.pool)
        self.assertTrue(torch.equal(copy, torch.arange(1000)))
        self.assertEqual(seamalloc.empty_pinned((0, 4), pool=self.pool).shape, (0, 4))
        del copy
        self.assertEqual(self.live(), 8192)
        kept = seamalloc.empty_pinned((10,), dtype=torch.uint8, pool=self.pool)
        self.assertEqual((self.live(), kept.numel()), (512, 10))

    def test_the_context_is_for_what_python_asks(self):
        import torch

        with seamalloc.pinned(self.pool):
            made = torch.full((500,), 3.0, pin_memory=True)
            moved = torch.arange(500).pin_memory()
            usual = torch.zeros(500)
        self.assertEqual(self.live(), 2048 + 4096)
        self.assertEqual((float(made.sum()), int(moved.sum()), float(usual.sum())), (1500.0, 124750, 0.0))


if __name__ == "__main__":
    unittest.main()
