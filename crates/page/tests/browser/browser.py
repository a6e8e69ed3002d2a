#!/usr/bin/env python3
"""Looks at pages of `seamalloc report` in a headless Chromium, driven by Playwright, as their users do.

    browser.py --seamalloc target/debug/seamalloc --chromium /usr/bin/chromium [--pictures FOLDER]

It needs `requirements.txt`, and no network. Pictures of what it saw go to FOLDER.
"""

import argparse
import gzip
import pathlib
import pickle
import random
import sys
import tempfile
import time

import drawings
import fleet
from pages import FLAGS, Looker, equal, must, within
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[4]
SNAPSHOT = ROOT / "crates/trace/tests/data/snapshots/prefetch-2s.snapshot.pickle.gz"
# A page of a million operations is drawn within this, in seconds.
MOST_SECONDS = 5
# A picture of it, in ms: the median while zooming. A machine without a GPU that does other things too is slow.
MOST_PAINT_MS = 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seamalloc", required=True)
    parser.add_argument("--chromium", required=True)
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("--picture", type=pathlib.Path, help="make this picture of the documentation instead of testing")
    parser.add_argument("names", nargs="*", help="some of the tests")
    args = parser.parse_args()
    tests = {name[5:]: test for name, test in {**globals(), **vars(fleet)}.items() if name.startswith("test_")}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        folder = pathlib.Path(folder)
        browser = playwright.chromium.launch_persistent_context(
            folder / "profile", executable_path=args.chromium, args=FLAGS, viewport={"width": 1400, "height": 900}
        )
        looker = Looker(args.seamalloc, browser, folder, args.pictures)
        if args.picture:
            drawings.write(looker, args.picture)
            tests = {}
        for name in args.names or tests:
            start = time.monotonic()
            tests[name](looker)
            print(f"ok: {name.replace('_', ' ')} ({time.monotonic() - start:.1f} s)", flush=True)
        browser.close()


JOB = drawings.STITCHED
REFUSED = ("llama8b-fsdp2", "--device", "sim:h200,capacity=38GiB", "--strategy", "caching,stitch", "--quick")
MILLION = ("llama1b-ppo", "--strategy", "caching,stitch", "--quick")


# Chunks are split under live blocks, which get other memory.
SPLIT = (
    "dtr-chain",
    "--steps",
    "4",
    "--conf",
    "split:last_resort",
    "--device",
    "sim:h200,capacity=19878MiB",
    "--strategy",
    "stitch",
    "--quick",
)


def with_stacks(looker):
    """A recorded snapshot of two streams, with stacks and a refusal that it might have had."""
    frame = lambda name, file, line: {"name": name, "filename": file, "line": line}
    base = [frame("train", "train.py", 210), frame("<module>", "train.py", 233)]
    stacks = [[frame("forward", "attention.py", 88), *base], [frame("<b>prefetch</b>", "loader.py", 41), *base]]
    snapshot = pickle.loads(gzip.decompress(SNAPSHOT.read_bytes()))
    history = snapshot["device_traces"][0]
    for entry in history:
        if entry["action"] == "alloc":
            entry["frames"] = stacks[entry["size"] // 2**20 % 2]
    history.insert(3000, {"action": "oom", "device_free": 1 << 30, "size": 3 << 30, "stream": 0, "time_us": 1})
    file = looker.folder / "job.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    return str(file)


def test_all_is_drawn_and_agrees_with_the_replay(looker):
    with looker.open(*JOB) as page:
        must(page.colours("#map canvas") > 20, "the map is empty")
        for section in ["memory", "stranded", "driver"]:
            must(page.colours(f"#{section} canvas") > 5, f"the chart of {section} is empty")
        figures = page.js(
            """() => {
                const { job } = Seam.shown;
                const most = (list) => list.reduce((a, b) => Math.max(a, b), 0);
                return {
                    live: [most(job.live.value), job.about.peak_live],
                    strategies: job.courses.map(({ about, reserved, work, time, calls, cpuWaits, streamWaits }) => [
                        [most(reserved.value), about.figures.peak_reserved],
                        [Math.round(time.value.at(-1) / 1e3), Math.round(about.figures.driver_time_us)],
                        [calls.value.at(-1), Object.values(about.figures.driver_calls).reduce((a, b) => a + b)],
                        [cpuWaits.value.at(-1), about.figures.cpu_syncs],
                        [streamWaits.value.at(-1), about.figures.stream_waits],
                    ]),
                    // Calls that ask before an operation begins, such as for captures, are no part of a stall.
                    worst: job.courses.map(({ about, work }) => most(work.ns) / 1e3 / about.figures.worst_stall_us),
                };
            }"""
        )
        equal(*figures["live"], "live at the peak")
        for strategy in figures["strategies"]:
            for found, expected in strategy:
                # Times are rounded to tenths of microseconds.
                must(abs(found - expected) <= 1, f"a figure of the page is {found}, the replay's {expected}")
        for part in figures["worst"]:
            must(1 <= part < 1.01, f"the worst stall is {part} times the replay's")
        text = page.page.locator("main").inner_text()
        within(text, "No request was refused", "The trace has no stacks", "Left out: the page was made with --quick")
        page.picture("light", whole=True)


def test_pictures_of_the_documentation_are_what_is_drawn(looker):
    drawings.compare(looker)


def test_fewer_points_keep_every_peak(looker):
    with looker.open(*JOB) as page:
        random.seed(1)
        total = page.view()[1]
        ranges = [sorted(random.sample(range(int(total)), 2)) for _ in range(60)] + [[0, int(total)], [5, 9]]
        wrong = page.js(
            """(ranges) => {
                const { job } = Seam.shown;
                const figures = [job.live, ...job.courses.flatMap((course) => [course.reserved, course.stalls])];
                const wrong = [];
                for (const [from, to] of ranges) {
                    const { data } = Seam.decimate(figures, from, to, 300);
                    figures.forEach((figure, index) => {
                        let [least, most] = [Infinity, -Infinity];
                        for (let op = from; op < to; op++) {
                            const value = figure.isEvent ? figure.range(op, op + 1)?.[1] : figure.valueAt(op);
                            if (value == null) continue;
                            [least, most] = [Math.min(least, value), Math.max(most, value)];
                        }
                        const shown = data[index + 1].filter((value) => value != null);
                        const found = [Math.min(...shown), Math.max(...shown)];
                        const same = found[1] === most && (figure.isEvent || found[0] === least);
                        if (!same) wrong.push([from, to, index, found, least, most]);
                    });
                    const points = data[0].length;
                    if (points > 602) wrong.push([from, to, `${points} points`]);
                }
                return wrong;
            }""",
            ranges,
        )
        equal(wrong, [], "ranges whose extremes are lost")


def test_blocks_tile_the_memory_that_is_held(looker):
    for arguments in [JOB, REFUSED, SPLIT, (with_stacks(looker), "--quick", "--strategy", "main")]:
        with looker.open(*arguments) as page:
            wrong = page.js(
                """async () => {
                    const { job } = Seam.shown;
                    const wrong = [];
                    for (const index of job.courses.keys()) {
                        const layout = await job.map(index);
                        for (let at = 0; at < 40; at++) {
                            const op = Math.floor(((layout.end - 1) * at) / 39);
                            const { spans } = layout.axis("memory");
                            const found = [];
                            spans.visit(op, op + 1, (span) => found.push(span));
                            found.sort((a, b) => spans.low[a] - spans.low[b]);
                            const over = found.findIndex((span, n) => n > 0 && spans.low[span] < spans.high[found[n - 1]]);
                            const outside = found.find((span) => layout.chunkAt(op, spans.low[span]) < 0);
                            const blocks = new Set(found.map((span) => spans.block[span]));
                            let live = 0;
                            for (const block of blocks) if (job.freed[block] > op) live += job.size[block];
                            const held = layout.chunks.low.reduce((sum, _, n) => sum + (layout.chunks.from[n] <= op && op < layout.chunks.until[n] ? layout.chunks.size[n] : 0), 0);
                            const misplaced = found.find((span) => layout.placeAt(spans.block[span], op) !== spans.place[span]);
                            if (misplaced != null) wrong.push([index, op, "a block that is said to be elsewhere"]);
                            for (let n = 1; n < found.length; n += 7) {
                                const [from, to] = [spans.high[found[n - 1]], spans.low[found[n]]];
                                const chunk = layout.chunkAt(op, from - 1);
                                if (to <= from || chunk < 0 || chunk !== layout.chunkAt(op, to)) continue;
                                const hole = layout.holeAt(op, (from + to) / 2, spans);
                                if (hole?.from !== from || hole?.to !== to) wrong.push([index, op, "a hole", hole, from, to]);
                            }
                            if (over >= 0) wrong.push([index, op, "blocks lie on one another"]);
                            if (outside != null) wrong.push([index, op, "a block outside of what is held"]);
                            if (live !== job.live.valueAt(op)) wrong.push([index, op, "live", live, job.live.valueAt(op)]);
                            if (held !== job.courses[index].reserved.valueAt(op)) wrong.push([index, op, "held", held, job.courses[index].reserved.valueAt(op)]);
                        }
                    }
                    return wrong.slice(0, 5);
                }"""
            )
            equal(wrong, [], f"moments of the map of {arguments[0]}")


def test_it_zooms_and_steps_by_keys(looker):
    with looker.open(*JOB) as page:
        page.page.locator("#map .map").focus()
        page.picture("keys")
        start, end, cursor = page.view()
        page.key("+", "+", "+")
        zoomed = page.view()
        must(zoomed[1] - zoomed[0] < (end - start) / 3, f"+ does not zoom: {zoomed}")
        must(zoomed[0] <= cursor < zoomed[1], "the cursor is lost")
        page.key("ArrowRight")
        must(page.view()[0] > zoomed[0], "the arrow does not move")
        page.key(".", ".", ",")
        equal(page.view()[2], cursor + 1, "steps")
        within(page.readout(), f"Operation {cursor + 1:,} of ")
        page.key(">")
        within(page.readout(), "in the driver for it (cuMem")
        page.key("]", "]")
        first = page.readout()
        within(first, "Block ", "It lies at 0x")
        page.key("]")
        must(page.readout() != first, "the next block is the same")
        page.key("[")
        equal(page.readout(), first, "and back")
        page.key("Enter", ".")
        within(page.readout(), next(line for line in first.splitlines() if line.startswith("Block ")))
        page.key("Enter", ",")
        must("Block " not in page.readout(), "a block stays marked that is not kept")
        before = page.view()
        page.key("-")
        must(page.view()[1] - page.view()[0] > before[1] - before[0], "- does not zoom out")
        page.key("Shift++")
        must(
            page.js("() => Seam.shown.map.high - Seam.shown.map.low < Seam.shown.map.axis.length"),
            "bytes are not zoomed",
        )
        page.key("Escape", "0")
        equal(page.view()[:2], [start, end], "0 shows everything")
        page.page.locator("#memory .chart").focus()
        page.key("+", "ArrowLeft", ".")
        must(page.view()[0] > start, "a chart takes no keys")
        # Whatever can be used is reached by Tab.
        reached = page.js("() => document.activeElement.blur()") or set()
        page.page.evaluate("() => window.scrollTo(0, 0)")
        for _ in range(60):
            page.page.keyboard.press("Tab")
            reached.add(
                page.js(
                    "() => document.activeElement.id || document.activeElement.className || document.activeElement.textContent"
                )
            )
        must({"help", "theme", "map", "chart"} <= reached, f"Tab does not reach all: {reached}")


def test_it_says_what_is_under_the_pointer(looker):
    with looker.open(*JOB) as page:
        box = page.map_box()
        places = page.js(
            """() => {
                const { job, map, view } = Seam.shown;
                const { spans } = map.axis;
                const wide = (index) => (spans.until[index] - spans.from[index]) * (spans.high[index] - spans.low[index]);
                const of = (pieces) => [...spans.from.keys()]
                    .filter((index) => (map.layout.pieces[spans.place[index]] > 1) === pieces)
                    .reduce((best, index) => (wide(index) > wide(best) ? index : best));
                return [of(false), of(true)].map((index) => ({
                    block: spans.block[index],
                    size: Seam.bytes(job.size[spans.block[index]]),
                    pieces: map.layout.pieces[spans.place[index]],
                    x: map.xOf((spans.from[index] + Math.min(spans.until[index], view.total)) / 2),
                    y: map.yOf((spans.low[index] + spans.high[index]) / 2),
                }));
            }"""
        )
        for place in places:
            page.page.mouse.move(box["x"] + place["x"], box["y"] + place["y"])
            page.settle()
            joined = f"stitched from {place['pieces']} pieces" if place["pieces"] > 1 else "in one piece of memory"
            within(page.readout(), f"Block {place['block']:,}: {place['size']}", joined)
        page.picture("stitched")
        hole = page.js(
            """() => {
                const { map } = Seam.shown;
                const { spans, chunks } = map.axis;
                // The longest free end of a chunk, or whole chunk, at some moments.
                let best = { bytes: 0 };
                for (let op = 1000; op < map.view.total; op += 2000) {
                    const found = [];
                    spans.visit(op, op + 1, (span) => found.push([spans.low[span], spans.high[span]]));
                    for (let chunk = 0; chunk < chunks.low.length; chunk++) {
                        const [start, end] = [chunks.low[chunk], chunks.low[chunk] + chunks.size[chunk]];
                        if (chunks.from[chunk] > op || chunks.until[chunk] <= op) continue;
                        const inside = found.filter(([low, high]) => low < end && high > start);
                        const edge = Math.max(start, ...inside.map(([, high]) => high));
                        if (end - edge <= best.bytes) continue;
                        const size = Seam.bytes(end - start);
                        const text = edge === start ? `Free: a whole chunk, ${size}` : `Free: ${Seam.bytes(end - edge)} in a chunk of ${size}`;
                        best = { bytes: end - edge, x: map.xOf(op + 0.5), y: map.yOf((edge + end) / 2), text };
                    }
                }
                return best;
            }"""
        )
        page.page.mouse.move(box["x"] + hole["x"], box["y"] + hole["y"])
        page.settle()
        within(page.readout(), hole["text"])
        page.page.mouse.move(box["x"] + 100, box["y"] + 20)
        page.settle()
        within(page.readout(), "No memory is held here.")
        page.page.mouse.move(box["x"] + places[0]["x"], box["y"] + places[0]["y"])
        before = page.view()
        for _ in range(8):
            page.page.mouse.wheel(0, -240)
            page.settle()
        after = page.view()
        must(after[1] - after[0] < (before[1] - before[0]) / 20, f"the wheel does not zoom: {after}")
        page.picture("zoomed")
        page.page.mouse.down()
        page.page.mouse.move(box["x"] + places[0]["x"] - 200, box["y"] + places[0]["y"], steps=4)
        page.page.mouse.up()
        page.settle()
        must(page.view()[0] > after[0], "a drag does not move the map")
        page.page.mouse.dblclick(box["x"] + 400, box["y"] + 200)
        page.settle()
        equal(page.view()[:2], before[:2], "a double click shows everything")
        page.choose("Upwards", "addresses")
        within(page.page.locator("#map .note").inner_text(), "A stitched block is one piece here")
        for colours in ["stream", "pool", "pieces", "lifetime"]:
            page.choose("Colour", colours)
            must(page.colours("#map canvas") > 4, f"no colours by {colours}")
        page.picture("addresses")
        # A part of a chart is chosen by a drag.
        page.page.locator("#memory .chart").scroll_into_view_if_needed()
        chart = page.page.locator("#memory .u-over").bounding_box()
        page.page.mouse.move(chart["x"] + 200, chart["y"] + 50)
        page.page.mouse.down()
        page.page.mouse.move(chart["x"] + 400, chart["y"] + 60, steps=3)
        page.page.mouse.up()
        page.settle()
        part = (page.view()[1] - page.view()[0]) / (before[1] - before[0])
        must(abs(part - 200 / chart["width"]) < 0.01, f"a drag of 200 pixels shows {part}")


def test_refusals_have_their_moments(looker):
    with looker.open(*REFUSED) as page:
        refusal = page.page.locator("#refusals .refusal").first
        within(refusal.inner_text(), "caching: 3.54 GiB refused at operation 16,978", "What would have helped")
        refusal.get_by_role("button").click()
        page.settle()
        equal(page.view()[2], 16978, "the moment")
        row = page.page.locator("#summary tbody tr").first.inner_text()
        within(row, "caching", "out of memory at operation 16,978")
        page.choose("Strategy", "0")
        page.page.wait_for_function("() => Seam.shown.map.layout.course.name === 'caching'")
        page.settle()
        must(page.js("() => Seam.shown.map.layout.blocks < Seam.shown.job.blocks"), "the map goes on behind the end")
        page.picture("refused", whole=True)


def test_stacks_say_who_asked(looker):
    with looker.open(with_stacks(looker), "--strategy", "caching,stitch") as page:
        within(page.page.locator("#stacks").inner_text(), "attention.py:88 forward", "loader.py:41 <b>prefetch</b>")
        page.page.locator("#stacks summary").first.click()
        within(page.page.locator("#stacks details").first.inner_text(), "train (train.py:210)", "<module> (train.py:233)")
        within(page.page.locator("#refusals").inner_text(), "PyTorch, when it was recorded: 3.00 GiB refused")
        within(page.page.locator("#summary").inner_text(), "largest step", "PyTorch held")
        within(page.page.locator("#cliff").inner_text(), "times live", "out of memory")
        must(page.colours("#cliff canvas") > 5, "the chart of sizes is empty")
        page.page.locator("#map .map").focus()
        page.key("]")
        within(page.readout(), "train (train.py:210)")
        page.choose("Colour", "stack")
        within(
            page.page.locator("#map .legend").inner_text(),
            "loader.py:41 <b>prefetch</b>",
            "freed, in use by other streams",
        )
        page.picture("stacks", whole=True)


def test_it_is_dark_narrow_and_printed(looker):
    background = "() => getComputedStyle(document.body).backgroundColor"
    with looker.open(*JOB, scheme="dark", width=1100) as page:
        dark = page.js(background)
        page.picture("dark", whole=True)
        page.page.get_by_role("button", name="Light").click()
        page.settle()
        light = page.js(background)
        must(dark != light, "the theme does not change")
        page.page.get_by_role("button", name="Dark").click()
        page.settle()
        equal(page.js(background), dark, "and back")
        must(page.colours("#map canvas") > 20, "the map is gone")
    for width in [360, 760]:
        with looker.open(*JOB, width=width) as page:
            page.picture(f"narrow-{width}", whole=True)
            over = page.js("() => document.documentElement.scrollWidth - innerWidth")
            must(over <= 0, f"at {width} pixels the page is {over} too wide")
    with looker.open(*JOB, scheme="dark") as page:
        paper = page.page.pdf(format="A4", print_background=False)
        must(len(paper) > 30_000, f"{len(paper)} bytes are printed")
        if page.pictures:
            (page.pictures / "print.pdf").write_bytes(paper)
        equal(page.js(background), dark, "after printing")


def test_the_verdict_is_first_and_the_peak_is_marked(looker):
    for width in [400, 1280]:
        for scheme in ["light", "dark"]:
            with looker.open("opt1.3b-R", "--quick", width=width, scheme=scheme) as page:
                verdict = page.page.locator("#verdict")
                within(verdict.inner_text(), "Nothing to do: with native, ", "Next: Keep PyTorch's allocator as it is.")
                must(verdict.bounding_box()["y"] < page.page.locator("#summary").bounding_box()["y"], "the verdict is below")
                text = page.page.locator("#summary").inner_text()
                within(text, "caching: PyTorch's default", "expandable_segments:True", "GMLake's algorithm", "stitch: seamalloc's own")
                must(page.page.locator("#summary a").get_attribute("href").startswith("https://"), "no link")
                peak = page.page.locator("#memory .peak")
                within(peak.inner_text(), "27.58 GiB live", "operation 7,901")
                over = page.page.locator("#memory .u-over").bounding_box()
                label = peak.locator("span").bounding_box()
                for start, size in [("x", "width"), ("y", "height")]:
                    inside = over[start] <= label[start] and label[start] + label[size] <= over[start] + over[size]
                    must(inside, f"at {width} pixels the peak's text {label} is not in the chart {over}")
                found = page.js("() => new DOMMatrix(document.querySelector('#memory .peak').style.transform).f")
                drawn = page.js("() => 1 - Seam.shown.job.about.peak_live / (1.04 * Seam.shown.job.courses[0].about.figures.peak_reserved)")
                must(abs(found - drawn * over["height"]) < 2, f"the dot is {found} below the top, live {drawn * over['height']}")
                must(page.colours("#memory canvas") > 5, "the chart is empty")
                page.page.locator("#memory").scroll_into_view_if_needed()
                page.picture(f"peak-{width}-{scheme}", whole=True)
                # The columns that matter are seen without scrolling.
                edge = page.js("() => document.querySelectorAll('#summary thead th')[2].getBoundingClientRect().right")
                must(edge <= width, f"utilization ends at {edge} of {width} pixels")
                page.page.locator("#memory .chart").focus()
                page.page.locator("#memory .legend button").first.click()
                must(not peak.is_visible(), "the peak of a hidden line is shown")


def test_a_million_operations_are_fluent(looker):
    with looker.open(*MILLION) as page:
        operations = page.view()[1]
        must(operations > 1_000_000, f"{operations} operations")
        must(page.seconds < MOST_SECONDS, f"drawn after {page.seconds:.1f} s")
        box = page.map_box()
        page.page.mouse.move(box["x"] + 600, box["y"] + 250)
        page.js("() => (Seam.shown.map.frames.length = 0)")
        for turn in [-150] * 20 + [150] * 20:
            page.page.mouse.wheel(0, turn)
            page.settle()
        times = sorted(page.js("() => Seam.shown.map.frames"))
        must(len(times) >= 20, f"{len(times)} pictures")
        median = times[len(times) // 2]
        must(median < MOST_PAINT_MS, f"a picture takes {median:.0f} ms")
        print(
            f"   {operations:,} operations: drawn after {page.seconds:.2f} s; pictures while zooming {median:.0f} ms, at worst {times[-1]:.0f} ms"
        )
        page.picture("million")


def test_several_traces_are_chosen(looker):
    with looker.open("moe-R", "opt1.3b-R", "--strategy", "stitch", "--quick") as page:
        page.choose("Trace", "1")
        page.page.wait_for_function("() => document.getElementById('name').textContent === 'opt1.3b-R'")
        page.page.wait_for_function("() => Seam.shown.map?.layout")
        page.settle()
        must(page.colours("#map canvas") > 10, "the map of the second trace is empty")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"failed: {error}")
