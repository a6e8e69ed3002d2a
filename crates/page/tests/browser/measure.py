#!/usr/bin/env python3
"""Measures how long pages take to be written, drawn and zoomed: a JSON line for each.

    measure.py --seamalloc target/release/seamalloc --chromium /usr/bin/chromium ARGUMENTS…

Each of ARGUMENTS is what `seamalloc report` is given, in one word: "llama1b-ppo --quick". Frames are those of the browser while the
wheel zooms the map in and out and a drag moves it; pictures are what the page itself needs for the map.
"""

import argparse
import json
import pathlib
import shlex
import tempfile
import time

from pages import FLAGS, Looker
from playwright.sync_api import sync_playwright

COUNT_FRAMES = """() => {
    window.times = [];
    let last = performance.now();
    const count = () => {
        const now = performance.now();
        window.times.push(now - last);
        last = now;
        requestAnimationFrame(count);
    };
    requestAnimationFrame(count);
}"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seamalloc", required=True)
    parser.add_argument("--chromium", required=True)
    parser.add_argument("pages", nargs="+", metavar="ARGUMENTS")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        folder = pathlib.Path(folder)
        browser = playwright.chromium.launch_persistent_context(
            folder / "profile", executable_path=args.chromium, args=FLAGS
        )
        looker = Looker(args.seamalloc, browser, folder, None)
        for page in args.pages:
            print(json.dumps(measured(looker, page)), flush=True)
        browser.close()


def measured(looker, arguments):
    start = time.monotonic()
    file = looker.page(*shlex.split(arguments))
    written = time.monotonic() - start
    with looker.open(*shlex.split(arguments)) as page:
        found = {
            "report": arguments,
            "operations": page.view()[1],
            "rectangles": page.js("() => Seam.shown.map.axis.spans.from.length"),
            "written_s": round(written, 2),
            "bytes": file.stat().st_size,
            "drawn_s": round(page.seconds, 2),
        }
        box = page.map_box()
        at = (box["x"] + 600, box["y"] + 250)
        page.page.mouse.move(*at)
        page.js(COUNT_FRAMES)
        for name, moves in [("zoom_in", [-150] * 25), ("drag", None), ("zoom_out", [150] * 25)]:
            page.js("() => (window.times.length = Seam.shown.map.frames.length = 0)")
            if moves:
                for turn in moves:
                    page.page.mouse.wheel(0, turn)
                    page.page.wait_for_timeout(16)
            else:
                page.page.mouse.down()
                for step in range(25):
                    page.page.mouse.move(at[0] - step * 8, at[1] + step)
                    page.page.wait_for_timeout(16)
                page.page.mouse.up()
                page.page.mouse.move(*at)
            page.settle()
            found[name] = {
                "frame_ms": spread(page.js("() => window.times")),
                "picture_ms": spread(page.js("() => Seam.shown.map.frames")),
            }
    return found


def spread(times):
    times = sorted(times)
    at = lambda part: round(times[min(len(times) - 1, int(len(times) * part))], 1)
    return {"count": len(times), "half": at(0.5), "most": at(0.95), "worst": at(1)}


if __name__ == "__main__":
    main()
