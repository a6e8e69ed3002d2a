"""Pages of `seamalloc report`, made by the command and opened in a browser, and what is asked of them."""

import subprocess
import time

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Looker:
    """Makes pages, and opens them."""

    def __init__(self, seamalloc, browser, folder, pictures):
        self.seamalloc, self.browser, self.folder, self.pictures = seamalloc, browser, folder, pictures
        self.made = {}

    def page(self, *arguments, code=0):
        """The file of a page that the command makes with these arguments."""
        if arguments not in self.made:
            file = self.folder / f"{len(self.made)}.html"
            command = [self.seamalloc, "report", *arguments, "-o", str(file)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            equal(ended.returncode, code, ended.stderr)
            self.made[arguments] = file
        return self.made[arguments]

    def open(self, *arguments, code=0, width=1400, scheme="light"):
        return Opened(self.browser.new_page(), self.page(*arguments, code=code), width, scheme, self.pictures)


class Opened:
    """A page that is shown. Nothing may be printed to its console, fail, or be fetched."""

    def __init__(self, page, file, width, scheme, pictures):
        self.page, self.pictures, self.troubles = page, pictures, []
        page.on("console", lambda message: self.troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: (
                self.troubles.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None
            ),
        )
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        start = time.monotonic()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        self.settle()
        self.seconds = time.monotonic() - start

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            equal(self.troubles, [], "troubles of the page")
        self.page.close()

    def js(self, text, *values):
        return self.page.evaluate(text, *values)

    def settle(self):
        """Two frames: what was changed is drawn."""
        self.js("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def key(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def view(self):
        return self.js("() => [Seam.shown.view.from, Seam.shown.view.to, Seam.shown.view.cursor]")

    def choose(self, label, value):
        self.page.get_by_label(label, exact=True).first.select_option(value)
        self.settle()

    def readout(self):
        return self.page.locator("#readout").inner_text()

    def map_box(self):
        shown = self.page.locator("#map .map")
        shown.scroll_into_view_if_needed()
        return shown.bounding_box()

    def colours(self, selector):
        """Returns the number of colours of a canvas."""
        return self.js(
            """(selector) => {
                const canvas = document.querySelector(selector);
                const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
                copy.drawImage(canvas, 0, 0);
                const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
                return new Set(new Uint32Array(data.buffer)).size;
            }""",
            selector,
        )

    def picture(self, name, whole=False):
        if self.pictures:
            self.pictures.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=self.pictures / f"{name}.png", full_page=whole)


def equal(found, expected, what=""):
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


def must(holds, what):
    if not holds:
        raise AssertionError(what)


def within(text, *parts):
    for part in parts:
        must(part in text, f"{part!r} is missing in: {text}")
