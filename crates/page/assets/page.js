// The page: reads the data, fills the sections, and holds them together.
"use strict";

(() => {
  const about = JSON.parse(document.getElementById("about").textContent);
  const content = (section) => document.querySelector(`#${section} .content`);
  const note = (text) => Seam.element("p", { class: "note" }, text);
  /** What is drawn again when the width or the colours change. */
  let drawn = [];

  async function start() {
    document.getElementById("made").textContent =
      `Made by: ${about.command} (seamalloc ${about.version}). Replayed on a simulated GPU; an operation is an allocation or a free.`;
    controls();
    await show(0);
    document.documentElement.dataset.ready = "yes";
  }

  function controls() {
    const [jobs, help, theme] = ["jobs", "help", "theme"].map((id) => document.getElementById(id));
    const select = jobs.querySelector("select");
    about.jobs.forEach((name, index) => select.append(Seam.element("option", { value: index }, name)));
    jobs.hidden = about.jobs.length < 2;
    select.addEventListener("change", () => show(Number(select.value)));
    help.addEventListener("click", () => {
      const keys = document.getElementById("keys");
      keys.hidden = !keys.hidden;
      help.setAttribute("aria-expanded", String(!keys.hidden));
    });
    Seam.theme(theme, () => {
      recolour();
      if (document.documentElement.classList.contains("printing")) Seam.shown.map?.paint();
    });
    let width = innerWidth;
    addEventListener("resize", () => {
      if (width === innerWidth) return;
      width = innerWidth;
      redraw();
    });
    addEventListener("scroll", catchUp, { passive: true });
  }

  let redrawing;
  function redraw() {
    clearTimeout(redrawing);
    redrawing = setTimeout(() => drawn.forEach((part) => part.draw()), 60);
  }

  /** Colours are read where things are drawn: all is made anew, with what is shown as it is. */
  function recolour() {
    const { job, view, map } = Seam.shown;
    const kept = map && { low: map.low, high: map.high, marked: map.marked, kept: map.kept };
    fill(job, view, map);
    if (map?.layout) Object.assign(map, kept);
  }

  async function show(number) {
    const job = await Seam.Job.load(number);
    const view = new Seam.View(job.total);
    view.cursor = job.peak;
    document.getElementById("name").textContent = job.about.name;
    const facts = [
      Seam.plural(job.total, "operation"),
      Seam.plural(job.blocks, "block"),
      Seam.plural(job.about.streams.length, "stream"),
      `at most ${Seam.bytes(job.about.peak_live)} live`,
      job.about.whatif.some((line) => line.capacity === null)
        ? "device unknown"
        : `device ${job.about.device} (${Seam.bytes(job.about.capacity)})`,
    ];
    document.getElementById("facts").textContent = facts.join(" · ");
    Seam.shown = { job, view, map: null };
    content("map").replaceChildren();
    if (job.total === 0) return fill(job, view, null);
    const map = job.about.maps.includes(true) ? new Seam.AddressMap(content("map"), job, view, jumps(job, view)) : null;
    Seam.shown.map = map;
    fill(job, view, map);
    view.listen((what) => {
      for (const part of drawn) {
        if (part === map) map.changed(what);
        else if (!isNear(part)) part.isStale ||= what.has("range");
        else if (what.has("range")) part.range();
        else part.point();
      }
      for (const follow of followers) follow(what);
    });
    if (map) await map.show(map.index);
    map?.tell();
  }

  /** Whether a chart is on screen, or nearly. The others are drawn when they are scrolled to. */
  function isNear(part) {
    const { top, bottom } = part.box.getBoundingClientRect();
    return bottom > -100 && top < innerHeight + 100;
  }

  function catchUp() {
    for (const part of drawn.filter((part) => part.isStale && isNear(part))) {
      part.isStale = false;
      part.range();
    }
  }

  /** What follows the cursor beside charts. */
  let followers = [];

  function jumps(job, view) {
    const course = () => job.courses[Seam.shown.map?.index ?? 0];
    return {
      peak: () => view.goTo(job.peak),
      work: (by) => {
        const { stalls, work, movesMemory } = course();
        let next = by > 0 ? stalls.before(view.cursor + 1) : stalls.before(view.cursor) - 1;
        while (next >= 0 && next < work.ops.length && !movesMemory[work.sets[next]]) next += by;
        if (next >= 0 && next < work.ops.length) view.goTo(work.ops[next]);
      },
      refusal: () => {
        const all = job.refusals();
        const next = all.find((refusal) => refusal.op > view.cursor) ?? all[0];
        if (next) view.goTo(next.op);
      },
    };
  }

  /** Fills all sections. */
  function fill(job, view, map) {
    drawn.forEach((part) => part.plot?.destroy());
    drawn = [];
    followers = [];
    const moves = jumps(job, view);
    summary(job);
    if (job.total === 0) {
      for (const section of ["memory", "map", "refusals", "stranded", "driver", "cliff", "stacks"]) {
        content(section).replaceChildren(note("The trace has no operation."));
      }
      return;
    }
    memory(job, view, moves);
    if (map) {
      drawn.push(map);
      map.scheme && map.explainColours();
      map.draw();
    } else content("map").replaceChildren(note("No map was asked for: --map names strategies."));
    refusals(job, view);
    stranded(job, view, moves);
    driver(job, view, moves);
    cliff(job);
    stacks(job, view);
  }

  function summary(job) {
    Seam.verdict(job.about.verdict);
    const parts = [Seam.figures(job), Seam.strategies(job.about.strategies, about)];
    if (job.about.whatif.length > 0) parts.push(Seam.compared(job));
    content("summary").replaceChildren(...parts);
  }

  function marks(job) {
    return () => job.refusals().map(({ op }) => ({ op, colour: Seam.css("refused") }));
  }

  function memory(job, view, moves) {
    const box = content("memory");
    box.replaceChildren();
    const live = {
      label: "live",
      figure: job.live,
      look: { colour: Seam.css("live"), dash: [], width: 1 },
      fill: `${Seam.css("live")}40`,
    };
    const lines = [live];
    for (const course of job.courses) {
      lines.push({ label: `${course.name} reserved`, figure: course.reserved, look: Seam.look(course.index) });
    }
    for (const course of job.courses.filter((course) => course.active !== job.live)) {
      const look = { ...Seam.look(course.index), dash: [1, 3], width: 1.25 };
      lines.push({ label: `${course.name} active`, figure: course.active, look, hidden: true });
    }
    const most = Math.max(job.about.peak_live, ...job.courses.map((course) => course.about.figures.peak_reserved));
    const options = {
      label: `Memory over operations: live, and what each strategy reserves. Live is at most ${Seam.bytes(job.about.peak_live)}.`,
      text: (values) => values.map(Seam.bytes),
      axisText: (values) => Seam.axisBytes(values, most),
      marks: marks(job),
      areBytes: true,
      height: 300,
      peak: {
        op: job.peak,
        value: job.about.peak_live,
        text: `${Seam.bytes(job.about.peak_live)} live\noperation ${Seam.count(job.peak)}`,
      },
    };
    drawn.push(new Seam.TimeChart(box, job, view, moves, lines, options));
    const active = job.courses.some((course) => course.active !== job.live)
      ? " Active: live, and what is freed but still in use by other streams."
      : " Active is live here: no free waits for another stream.";
    box.append(
      note(
        `Live: bytes asked for and not freed. Reserved: bytes held of the device. A line in the legend hides and shows.${active}`,
      ),
    );
  }

  function refusals(job, view) {
    const found = job.refusals();
    if (found.length === 0) {
      content("refusals").replaceChildren(
        note(`No request was refused: the job runs on ${job.about.device} with every strategy shown.`),
      );
      return;
    }
    const boxes = found.map((refusal) => {
      const who = refusal.recorded ? "PyTorch, when it was recorded" : refusal.course.name;
      const go = Seam.element("button", { type: "button", onclick: () => view.goTo(refusal.op) }, "Show the moment");
      const parts = [
        Seam.element(
          "h3",
          {},
          `${who}: ${Seam.bytes(refusal.requested)} refused at operation ${Seam.count(refusal.op)}`,
          go,
        ),
      ];
      if (refusal.recorded)
        parts.push(Seam.element("p", {}, `The device had ${Seam.bytes(refusal.device_free)} free.`));
      else {
        parts.push(Seam.element("p", {}, refusal.explanation));
        parts.push(
          Seam.element(
            "details",
            {},
            Seam.element("summary", {}, "The whole report"),
            Seam.element("pre", {}, refusal.text),
          ),
        );
      }
      return Seam.element("div", { class: "refusal" }, ...parts);
    });
    content("refusals").replaceChildren(...boxes);
  }

  function chooser(label, options, value, action) {
    const select = Seam.element("select", { "aria-label": label, onchange: (event) => action(event.target.value) });
    for (const [of, name] of options)
      select.append(Seam.element("option", { value: of, selected: of === value }, name));
    return Seam.element("div", { class: "toolbar" }, Seam.element("label", {}, label, select));
  }

  const stitchOr = (job) => Math.max(0, job.about.strategies.indexOf("stitch"));
  const chosen = { stranded: null, driver: "time" };

  function stranded(job, view, moves) {
    const box = content("stranded");
    const names = job.about.strategies.map((name, index) => [index, name]);
    chosen.stranded = Math.min(chosen.stranded ?? stitchOr(job), names.length - 1);
    const chart = Seam.element("div");
    const table = Seam.element("div");
    const draw = () => {
      const course = job.courses[chosen.stranded];
      drawn = drawn.filter((part) => part !== draw.part);
      draw.part?.plot.destroy();
      chart.replaceChildren();
      draw.part = stack(chart, job, course, view, moves);
      drawn.push(draw.part);
      follow();
    };
    const follow = () => {
      const sample = job.courses[chosen.stranded].sampleAt(view.cursor);
      if (sample) table.replaceChildren(Seam.owners(sample));
    };
    const select = chooser("Strategy", names, chosen.stranded, (value) => {
      chosen.stranded = Number(value);
      draw();
    });
    const text = note(
      "Stranded is free memory of one owner that another stream, which makes requests too, cannot take at present. With one stream nothing is stranded. It is measured at some 200 moments, at refusals too.",
    );
    box.replaceChildren(select, chart, text, table);
    draw();
    followers.push((what) => what.has("cursor") && follow());
  }

  const sumOf = (pools) => pools.reduce((sum, pool) => sum + pool.stranded, 0);

  /** The owners with the most stranded bytes at any moment, up to four. */
  function stranding(samples) {
    const most = new Map();
    for (const { pools } of samples) {
      for (const owner of new Set(pools.map((pool) => pool.owner))) {
        const now = sumOf(pools.filter((pool) => pool.owner === owner));
        most.set(owner, Math.max(most.get(owner) ?? 0, now));
      }
    }
    const sorted = [...most].filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1]);
    return sorted.slice(0, 4).map(([owner]) => owner);
  }

  function stack(parent, job, course, view, moves) {
    const { samples } = course;
    const of = (figure) => samples.map(figure);
    const colours = Seam.isDark() ? ["#6d7a87", "#f0e442", "#56b4e9"] : ["#a3adb6", "#c9b400", "#56b4e9"];
    const strands = ["#d55e00", "#8f3b76", "#e69f00", "#5b3a8c", "#b3261e"];
    const owners = stranding(samples);
    const rest = samples.map((at) => at.stranded - sumOf(at.pools.filter((pool) => owners.includes(pool.owner))));
    const layers = [
      ["in use, as asked for", of((at) => at.requested), colours[0]],
      ["added by rounding", of((at) => at.rounding_loss), colours[1]],
      ["free", of((at) => Math.max(0, at.free - at.stranded)), colours[2]],
      ...owners.map((owner, index) => {
        const own = of((at) => sumOf(at.pools.filter((pool) => pool.owner === owner)));
        return [`stranded: ${Seam.owner(owner)}`, own, strands[index]];
      }),
      ["stranded: others", rest, strands.at(-1)],
      ["left by calls that failed", of((at) => at.unsettled), Seam.css("mark")],
    ];
    const kept = layers
      .filter(([, values], index) => index === 0 || index === 2 || values.some((value) => value > 0))
      .map(([label, values, colour]) => ({ label, values, colour }));
    const at = Float64Array.from(samples, (sample) => sample.op);
    const total = Math.max(1, ...samples.map((sample) => sample.reserved));
    const label = `What ${course.name} reserves, by use: the stranded part is at most ${Seam.bytes(Math.max(0, ...of((at) => at.stranded)))}.`;
    return Seam.stackChart(parent, { at, layers: kept, total, view, job, jumps: moves, label });
  }

  const MEASURES = {
    time: ["time in the driver, added up", "time", (ns) => Seam.duration(ns)],
    stalls: ["stalls, each", "stalls", (ns) => Seam.duration(ns)],
    calls: ["calls, added up", "calls", (count) => Seam.count(count)],
    cpuWaits: ["waits of the CPU for the GPU, added up", "cpuWaits", (count) => Seam.count(count)],
    streamWaits: ["waits of streams for one another, added up", "streamWaits", (count) => Seam.count(count)],
  };

  function driver(job, view, moves) {
    const box = content("driver");
    const chart = Seam.element("div");
    const draw = () => {
      drawn = drawn.filter((part) => part !== draw.part);
      draw.part?.plot.destroy();
      chart.replaceChildren();
      const [name, key, text] = MEASURES[chosen.driver];
      const lines = job.courses.map((course) => ({
        label: course.name,
        figure: course[key],
        look: Seam.look(course.index),
      }));
      const options = {
        label: `Driver, ${name}, over operations`,
        text: (values) => values.map((value) => (value == null ? "" : text(value))),
        isLog: key === "stalls",
        marks: marks(job),
        height: 240,
      };
      draw.part = new Seam.TimeChart(chart, job, view, moves, lines, options);
      drawn.push(draw.part);
    };
    const options = Object.entries(MEASURES).map(([key, [name]]) => [key, name]);
    const select = chooser("Shown", options, chosen.driver, (value) => {
      chosen.driver = value;
      draw();
    });
    box.replaceChildren(select, chart, Seam.calls(job));
    draw();
  }

  function cliff(job) {
    const box = content("cliff");
    if (job.about.cliff.length === 0) {
      box.replaceChildren(note("Left out: the page was made with --quick."));
      return;
    }
    box.replaceChildren();
    const times = [...new Set(job.about.cliff.map((at) => at.times_live))];
    const value = (course, times) => {
      const at = job.about.cliff.find((at) => at.times_live === times && at.strategy === course.name);
      return at?.runs ? Math.max(1e3, at.driver_time_us_first * 1e3) : null;
    };
    const lines = job.courses.map((course) => ({
      label: course.name,
      look: Seam.look(course.index),
      values: times.map((at) => value(course, at)),
    }));
    const label = "Time in the driver in the first pass, by the size of the device";
    drawn.push(
      new Seam.SizeChart(box, {
        names: times.map(String),
        lines,
        label,
        text: (values) => values.map((value) => (value == null ? "" : Seam.duration(value))),
      }),
    );
    box.append(
      note("Time in the driver in the first pass. Where a line has no point, memory runs out."),
      Seam.sizes(job),
    );
  }

  function stacks(job, view) {
    const box = content("stacks");
    if (!job.about.stacks) {
      box.replaceChildren(
        note(
          'The trace has no stacks. PyTorch records them with torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python").',
        ),
      );
      return;
    }
    const table = Seam.element("div");
    const go = (text, op) =>
      Seam.element("button", { type: "button", onclick: () => table.replaceChildren(Seam.holders(job, op())) }, text);
    box.replaceChildren(
      Seam.element(
        "div",
        { class: "toolbar" },
        go("At the peak", () => job.peak),
        go("At the cursor", () => view.cursor),
      ),
      table,
    );
    table.append(Seam.holders(job, job.peak));
  }

  start();
})();
