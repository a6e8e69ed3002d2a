"""The page of a whole job, as `seamalloc report --fleet` makes it of what `seamalloc fleet --json` prints."""

import json
import random
import time

from pages import equal, must, within

STRATEGIES = ["caching", "expandable", "gmlake", "stitch"]
GIB = 1 << 30
RANKS = 1000
# A page of a thousand ranks is drawn within this, and follows a key, in seconds.
MOST_SECONDS = 4
MOST_KEY_SECONDS = 0.15


def job(ranks=RANKS, seed=7, broken=2):
    """A job of that many ranks, of which number 137 holds more and number 41 does not run with caching."""
    chance = random.Random(seed)
    rows = []
    for number in range(ranks):
        live = 40 * GIB + chance.randrange(GIB // 4) + (12 * GIB if number == 137 else 0)
        capacity = (80 if number % 2 else 64) * GIB
        held = {
            name: int(live * (1 + part) + chance.randrange(GIB // 8)) for name, part in zip(STRATEGIES, (0.2, 0.05, 0.03, 0.01))
        }
        of = {
            name: {"reserved": size, "free": capacity - size, "largest_step": round(1 + (capacity - size) / live, 2)}
            for name, size in held.items()
        }
        if number == 41:
            of["caching"] = {"reserved": None, "free": None, "largest_step": 0.9}
        unlike = [{"figure": "live", "value": live, "median": 40 * GIB, "score": 60.1}] if number == 137 else []
        rows.append(
            {
                "rank": number,
                "name": f"rank-{number}",
                "file": f"/job/rank-{number}.pickle",
                "device": f"sim:h200,capacity={capacity // GIB}GiB",
                "device_from": "noted",
                "capacity": capacity,
                "peak_live": live,
                "recorded_reserved": held["caching"],
                "reserved_before": 0,
                "grows": True,
                "sought": True,
                "strategies": of,
                "outlier": unlike,
            }
        )
    return {"version": "0", "job": whole(rows, broken), "ranks": rows, "broken": failures(broken)}


def failures(count):
    return [
        {"rank": 5000 + n, "name": f"rank-{5000 + n}", "file": f"/job/rank-{5000 + n}.pickle", "error": "byte 9: <b>no</b> pickle"}
        for n in range(count)
    ]


def whole(rows, broken):
    strategies = {}
    for name in STRATEGIES:
        held = [row["strategies"][name]["reserved"] for row in rows if row["strategies"][name]["reserved"]]
        least = min(rows, key=lambda row: row["strategies"][name]["largest_step"])
        figures = {**least["strategies"][name], "name": least["name"], "as_near": 0, "capacity": least["capacity"]}
        strategies[name] = {
            "runs": len(held),
            "reserved": sum(held),
            "least": min(held),
            "median": sorted(held)[len(held) // 2],
            "most": max(held),
            "utilization": 0.9,
            "largest_step": figures["largest_step"],
            "decides": figures,
            "saves": {"native": {"bytes": 5 * GIB}, "expandable": {"bytes": -GIB}},
        }
    return {
        "files": len(rows) + broken,
        "ranks": len(rows),
        "broken": broken,
        "outliers": 1,
        "devices": {"sim:h200,capacity=80GiB": 500, "sim:h200,capacity=64GiB": 500},
        "strategies": strategies,
        "sentences": ["With stitch, a rank decides."],
        "notes": ["a note of <i>some</i> length"],
    }


def opened(looker, name, fleet, **how):
    file = looker.folder / f"{name}.json"
    file.write_text(json.dumps(fleet))
    return looker.open("--fleet", str(file), **how)


def chart(page):
    page.page.locator("#ranks .chart").focus()


def test_the_verdict_on_a_job_is_first(looker):
    fleet = job(3)
    text, step = "Too much is live: 52.00 GiB of 64.00 GiB. No allocator helps.", "Recompute activations."
    fleet["job"]["verdict"] = {"name": "rank-2", "kind": "too_much_live", "ranks": 2, "text": text, "next": step}
    fleet["job"]["sentences"] = [f"{text} (rank-2)", f"Next: {step}", "With stitch, a rank decides."]
    with opened(looker, "verdict", fleet, width=400) as page:
        found = page.page.locator("#verdict").inner_text()
        within(found, text, "on rank-2, which is worst off, and of 1 of 2 other ranks", f"Next: {step}")
        within(page.page.locator("#summary").inner_text(), "With stitch, a rank decides.", "stitch: seamalloc's own")
        equal(page.page.locator("main").inner_text().count(text), 1, "verdicts")


def test_a_job_of_a_thousand_ranks_is_fluent(looker):
    fleet = job()
    with opened(looker, "thousand", fleet) as page:
        must(page.seconds < MOST_SECONDS, f"drawn after {page.seconds:.1f} s")
        must(page.colours("#ranks canvas") > 5, "the chart of ranks is empty")
        within(page.page.locator("#facts").inner_text(), "1,000 ranks", "2 broken", "500 on sim:h200,capacity=64GiB")
        within(page.page.locator("#summary").inner_text(), "With stitch, a rank decides.", "<i>some</i>", "999 of 1000", "−1.00 GiB")
        within(page.page.locator("#broken").inner_text(), "2 files could not be read", "byte 9: <b>no</b> pickle")
        chart(page)
        start = time.monotonic()
        page.key(*["ArrowRight"] * 20)
        took = (time.monotonic() - start) / 20
        must(took < MOST_KEY_SECONDS, f"a key takes {took:.3f} s")
        print(f"   1,000 ranks: drawn after {page.seconds:.2f} s; a key {took * 1e3:.0f} ms")
        within(page.readout(), "rank-20, on sim:h200,capacity=64GiB (64.00 GiB)")
        page.picture("fleet", whole=True)


def test_ranks_are_found_by_keys_and_pointer(looker):
    fleet = job()
    with opened(looker, "keys", fleet) as page:
        chart(page)
        page.key("o")
        within(page.readout(), "rank-137", "Unlike the others: live 52.", "the median 40.00 GiB")
        page.key("d")
        deciding = {of["decides"]["name"] for of in fleet["job"]["strategies"].values()}
        must(page.js("() => Seam.shown.chart.rows[Seam.shown.chart.index].name") in deciding, "d leads to another rank")
        within(page.readout(), "It decides the batch size with")
        page.key("End")
        within(page.readout(), "rank-999")
        page.key("Shift+ArrowLeft", "ArrowLeft")
        within(page.readout(), "rank-988")
        page.key("Home", "+", "+", "+")
        part = page.js("() => Seam.shown.chart.to - Seam.shown.chart.from")
        must(part < RANKS / 3, f"+ shows {part} ranks")
        page.key("ArrowRight", "0")
        equal(page.js("() => [Seam.shown.chart.from, Seam.shown.chart.to]"), [-0.5, RANKS - 0.5], "0 shows all")
        page.key("o", "Enter")
        equal(page.page.locator("#table tr.chosen th").inner_text(), "rank-137 ▼", "the row in the table")
        page.page.locator("#ranks .chart").scroll_into_view_if_needed()
        box = page.page.locator("#ranks .u-over").bounding_box()
        page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
        page.settle()
        within(page.readout(), "rank-500")
        page.page.mouse.down()
        page.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 120, steps=3)
        page.page.mouse.up()
        page.settle()
        part = page.js("() => Seam.shown.chart.to - Seam.shown.chart.from")
        must(abs(part - RANKS / 10) < RANKS / 50, f"a drag over a tenth shows {part} ranks")
        page.page.mouse.dblclick(box["x"] + 300, box["y"] + 100)
        page.settle()
        equal(page.js("() => Seam.shown.chart.to"), RANKS - 0.5, "a double click shows all")
        for figure in ["free", "step", "reserved"]:
            page.choose("Figure", figure)
            must(page.colours("#ranks canvas") > 5, f"no chart of {figure}")
        page.choose("Ordered by", "live")
        equal(page.js("() => Seam.shown.chart.rows[0].name"), "rank-137", "the first by live bytes")
        page.page.get_by_role("button", name="gmlake", exact=True).first.click()
        equal(page.js("() => [...Seam.shown.chart.hidden].includes('gmlake')"), True, "a line is hidden")


def test_the_table_of_ranks_sorts_and_filters(looker):
    fleet = job()
    with opened(looker, "table", fleet) as page:
        names = lambda: page.page.locator("#table tbody th").all_inner_texts()
        by = lambda figure: [row["name"] for row in sorted(fleet["ranks"], key=figure)]
        bare = lambda found: [name.replace(" ▼", "") for name in found]
        equal(len(names()), 200, "rows at first")
        page.page.locator("#table thead").get_by_role("button", name="stitch", exact=True).click()
        page.settle()
        equal(bare(names()), by(lambda row: -row["strategies"]["stitch"]["reserved"])[:200], "by stitch, the largest first")
        equal(page.page.locator("#table th[aria-sort=descending]").inner_text(), "stitch", "what is said to sort")
        page.page.locator("#table thead").get_by_role("button", name="stitch", exact=True).press("Enter")
        page.settle()
        equal(bare(names())[0], by(lambda row: row["strategies"]["stitch"]["reserved"])[0], "the smallest first")
        page.choose("Shown", "fails")
        equal(bare(names()), ["rank-41"], "those that do not run")
        within(page.page.locator("#table tbody").inner_text(), "too much")
        page.choose("Shown", "unlike")
        equal(bare(names()), ["rank-137"], "those that are unlike the others")
        page.choose("Shown", "all")
        page.page.get_by_label("Name or device has").fill("rank-99")
        page.settle()
        equal(sorted(bare(names())), sorted(f"rank-{n}" for n in [99, *range(990, 1000)]), "by name")
        page.page.get_by_label("Name or device has").fill("")
        page.page.get_by_role("button", name="Show all 1,000").click()
        page.settle()
        equal(len(names()), RANKS, "all rows")


def test_a_job_is_dark_narrow_and_printed(looker):
    background = "() => getComputedStyle(document.body).backgroundColor"
    with opened(looker, "dark", job(60), scheme="dark") as page:
        dark = page.js(background)
        page.picture("fleet-dark", whole=True)
        page.page.get_by_role("button", name="Light").click()
        page.settle()
        must(page.js(background) != dark, "the theme does not change")
        page.page.get_by_role("button", name="Dark").click()
        page.settle()
        paper = page.page.pdf(format="A4", print_background=False)
        must(len(paper) > 20_000, f"{len(paper)} bytes are printed")
        if page.pictures:
            (page.pictures / "fleet-print.pdf").write_bytes(paper)
        equal(page.js(background), dark, "after printing")
        # Whatever can be used is reached by Tab.
        page.page.evaluate("() => window.scrollTo(0, 0)")
        reached = set()
        for _ in range(60):
            page.page.keyboard.press("Tab")
            reached.add(page.js("() => document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
        must({"help", "theme", "chart", "SELECT", "INPUT", "scroll"} <= reached, f"Tab does not reach all: {reached}")
    for width in [390, 760]:
        with opened(looker, "narrow", job(60), width=width) as page:
            page.picture(f"fleet-narrow-{width}", whole=True)
            over = page.js("() => document.documentElement.scrollWidth - innerWidth")
            must(over <= 0, f"at {width} pixels the page is {over} too wide")


def test_a_job_may_be_small_or_broken(looker):
    with opened(looker, "one", job(1, broken=0)) as page:
        within(page.page.locator("#broken").inner_text(), "Every file could be read")
        chart(page)
        page.key("ArrowRight", "ArrowLeft", "+", "-", "0", "o", "d", "Enter")
        within(page.readout(), "rank-0")
    nothing = {"version": "0", "ranks": [], "broken": failures(1)}
    nothing["job"] = {"files": 1, "ranks": 0, "broken": 1, "outliers": 0, "devices": {}, "strategies": {}, "sentences": [], "notes": []}
    with opened(looker, "nothing", nothing) as page:
        within(page.page.locator("main").inner_text(), "No file could be read", "byte 9: <b>no</b> pickle")
