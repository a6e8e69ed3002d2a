"""The pictures of the documentation that are parts of pages of `seamalloc report`.

Owns: what each of them shows, and when a stored one is stale.
"""

import base64
import pathlib

from pages import equal, must

ROOT = pathlib.Path(__file__).resolve().parents[4]
# A block that is stitched from many pieces, in a job of several streams.
STITCHED = ("llama8b-fsdp2", "--conf", "sharing:wait", "--strategy", "expandable,stitch", "--quick")
# Fragmentation in ten blocks. The command stands in docs/why.md too.
HOLES = (str(ROOT / "docs/holes.csv"), "--device", "sim:h200,capacity=4GiB", "--strategy", "caching,expandable,stitch")
CAPTIONS = [
    "PyTorch native: 1.50 GiB fit into none of the three holes, and the request is refused",
    "Expandable segments: the holes go back to the driver, and come back at the end of the segment",
    "stitch: the holes themselves, at contiguous addresses",
]
# Another machine has other fonts: so much of a picture may differ, and so much of a colour of a pixel.
MOST_PIXELS, MOST_COLOUR = 0.04, 40
# Pixels of one map of `holes`.
WIDTH, HEIGHT = 860, 160


def report(looker):
    """Memory over time and the map, with a block marked that is stitched from most pieces and lives long."""
    with looker.open(*STITCHED, width=1180) as page:
        page.page.set_viewport_size({"width": 1180, "height": 1130})
        page.js(
            """() => {
                const { job, map, view } = Seam.shown;
                const life = (block) => Math.min(job.freed[block], job.total) - job.from[block];
                const rank = (block) => (life(block) > 2000 ? map.layout.pieces[map.layout.first[block]] : 0);
                const blocks = Array.from({ length: job.blocks }, (_, block) => block);
                map.marked = blocks.reduce((best, block) => (rank(block) > rank(best) ? block : best));
                map.kept = true;
                view.point(job.from[map.marked]);
                document.getElementById("memory").scrollIntoView();
            }"""
        )
        page.settle()
        page.js("() => Seam.shown.map.mark()")
        return page.page.screenshot()


def holes(looker):
    """The maps of three strategies, one below the other."""
    maps = []
    with looker.open(*HOLES, "--quick", width=WIDTH + 40) as page:
        page.js("(height) => { Seam.shown.map.box.style.height = `${height}px`; }", HEIGHT)
        for index in range(len(CAPTIONS)):
            # The request that does not fit is the last block. The first strategy has none to mark.
            page.js(
                """async (index) => {
                    const { job, map, view } = Seam.shown;
                    await map.show(index);
                    view.point(15);
                    [map.marked, map.kept] = [index ? job.blocks - 1 : null, true];
                }""",
                index,
            )
            page.settle()
            page.js("() => Seam.shown.map.mark()")
            page.settle()
            maps.append(page.page.locator("#map .map").screenshot())
    sheet = looker.browser.new_page()
    shown = "".join(f"<p>{text}</p><img src='{data(png)}'>" for text, png in zip(CAPTIONS, maps))
    style = "body { margin: 0; padding: 4px 10px 10px; width: max-content; font: 15px system-ui, sans-serif } p { margin: 8px 0 4px 88px }"
    sheet.set_content(f"<style>{style} img {{ display: block }}</style><body>{shown}</body>")
    picture = sheet.locator("body").screenshot()
    sheet.close()
    return picture


PICTURES = {"docs/report.png": report, "docs/holes.png": holes}


def write(looker, file):
    """Makes the picture of this name."""
    names = {pathlib.Path(path).name: draw for path, draw in PICTURES.items()}
    must(file.name in names, f"no picture is called {file.name}; there are {', '.join(names)}")
    file.write_bytes(names[file.name](looker))


def compare(looker):
    """Fails where a stored picture is not what this version draws."""
    sheet = looker.browser.new_page()
    for path, draw in PICTURES.items():
        found = sheet.evaluate(
            """async ([most, ...pictures]) => {
                const [old, now] = await Promise.all(pictures.map(async (data) => {
                    const image = new Image();
                    image.src = data;
                    await image.decode();
                    const canvas = new OffscreenCanvas(image.width, image.height);
                    const context = canvas.getContext("2d");
                    context.drawImage(image, 0, 0);
                    return context.getImageData(0, 0, image.width, image.height);
                }));
                const sizes = [old, now].map(({ width, height }) => [width, height]);
                let pixels = 0;
                for (let at = 0; at < now.data.length; at += 4)
                    pixels += [0, 1, 2].some((part) => Math.abs(old.data[at + part] - now.data[at + part]) > most);
                return { sizes, part: pixels / (now.data.length / 4) };
            }""",
            [MOST_COLOUR, data((ROOT / path).read_bytes()), data(draw(looker))],
        )
        remedy = f"{path} is not what this version draws: .ci/page --picture {path}"
        equal(found["sizes"][0], found["sizes"][1], remedy)
        must(found["part"] < MOST_PIXELS, f"{remedy} ({found['part']:.1%} of the pixels differ)")
    sheet.close()


def data(png):
    """A picture as an address of its own."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
