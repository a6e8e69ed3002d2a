// The page of a job: reads the data, fills the sections, and holds them together.
"use strict";

(() => {
  const content = (section) => document.querySelector(`#${section} .content`);
  const note = (text) => Seam.element("p", { class: "note" }, text);
  const ORDERS = [["rank", "rank"]];
  const shown = { figure: "reserved", order: "rank" };

  async function start() {
    const { about } = await Seam.unpack("fleet");
    const { job, ranks, broken } = about.fleet;
    const strategies = Object.keys(job.strategies);
    Seam.shown = { about, job, ranks, broken, strategies, deciding: deciding(job), chart: null, table: null };
    document.getElementById("name").textContent = about.name;
    document.getElementById("made").textContent =
      `Made by: ${about.command} (seamalloc ${about.version}). Replayed on simulated GPUs.`;
    const devices = Object.entries(job.devices).map(([name, count]) => `${Seam.count(count)} on ${name}`);
    const facts = [Seam.plural(job.ranks, "rank"), Seam.plural(job.files, "file"), `${Seam.count(job.broken)} broken`, ...devices.slice(0, 4)];
    if (devices.length > 4) facts.push(`${devices.length - 4} more devices`);
    document.getElementById("facts").textContent = facts.join(" · ");
    controls();
    fill();
    document.documentElement.dataset.ready = "yes";
  }

  /** The rows that decide the batch size, with the strategies with which they do. */
  function deciding(job) {
    const found = new Map();
    for (const [strategy, { decides }] of Object.entries(job.strategies)) {
      if (decides) found.set(decides.name, [...(found.get(decides.name) ?? []), strategy]);
    }
    return found;
  }

  function controls() {
    const [help, theme, keys] = ["help", "theme", "keys"].map((id) => document.getElementById(id));
    help.addEventListener("click", () => {
      keys.hidden = !keys.hidden;
      help.setAttribute("aria-expanded", String(!keys.hidden));
    });
    // Colours are read where things are drawn.
    Seam.theme(theme, recolour);
    let [width, waiting] = [innerWidth, 0];
    addEventListener("resize", () => {
      if (width === innerWidth) return;
      width = innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(() => Seam.shown.chart?.draw(), 60);
    });
  }

  function recolour() {
    const { chart } = Seam.shown;
    summary();
    chart?.listLines();
    chart?.draw();
  }

  function fill() {
    summary();
    const { ranks, broken, strategies, deciding } = Seam.shown;
    content("broken").replaceChildren(...brokenFiles(broken));
    if (ranks.length === 0) {
      for (const section of ["ranks", "table"]) content(section).replaceChildren(note("No file could be read."));
      return;
    }
    chart();
    const choose = (row) => Seam.shown.chart.goTo(Seam.shown.chart.rows.indexOf(row));
    Seam.shown.table = new Seam.RankTable(content("table"), { rows: ranks, strategies, deciding, choose });
    say(ranks[0]);
  }

  function summary() {
    const { job } = Seam.shown;
    const words = Seam.element("ul", { class: "words" });
    const [sentences, found] = verdict(job);
    Seam.verdict(found);
    for (const text of [...sentences, ...job.notes.map((text) => `Note: ${text}.`)]) {
      words.append(Seam.element("li", {}, text));
    }
    const parts = job.ranks > 0 ? [words, byStrategy(job), Seam.strategies(Seam.shown.strategies, Seam.shown.about)] : [words];
    content("summary").replaceChildren(...parts);
  }

  /** The sentences beside the verdict, which are told first, and the verdict. */
  function verdict({ sentences, verdict: found, ranks }) {
    if (!found) return [sentences, null];
    const alike = found.ranks > 1 ? `, and of ${found.ranks - 1} of ${Seam.plural(ranks - 1, "other rank")}` : "";
    return [sentences.slice(2), { ...found, reasons: `This is the verdict on ${found.name}, which is worst off${alike}.` }];
  }

  function byStrategy(job) {
    const bytes = (size) => (size == null ? "–" : `${size < 0 ? "−" : ""}${Seam.bytes(Math.abs(size))}`);
    const rows = Object.entries(job.strategies).map(([name, of], index) => {
      const decides = of.decides?.as_near > 0 ? `${of.decides.name} and ${Seam.count(of.decides.as_near)} more` : of.decides?.name;
      const less = (key, own) => (name === own ? "–" : bytes(of.saves[key].bytes));
      const held = (key) => (of.runs > 0 ? bytes(of[key]) : "–");
      const runs = of.runs === job.ranks ? "all" : Seam.element("td", { class: "failed" }, `${of.runs} of ${job.ranks}`);
      return [
        Seam.element("span", {}, Seam.sample(Seam.look(index)), " ", name),
        held("reserved"),
        held("most"),
        Seam.times(of.largest_step),
        runs,
        decides ?? "–",
        less("native", "caching"),
        less("expandable", "expandable"),
        held("median"),
        held("least"),
        of.utilization == null ? "–" : Seam.percent(of.utilization),
      ];
    });
    const first = ["strategy", "all ranks", "most", "largest step", "runs", "decided by"];
    const headings = [...first, "less than native", "less than expandable", "median", "least", "utilization"];
    const caption =
      "What all ranks hold, and the most, the median and the least of one. The job's largest step is that of the rank with the smallest: all have the same batch size.";
    return Seam.table(caption, headings, rows);
  }

  function chooser(label, options, value, action) {
    const select = Seam.element("select", { "aria-label": label, onchange: (event) => action(event.target.value) });
    for (const [of, name] of options) select.append(Seam.element("option", { value: of, selected: of === value }, name));
    return Seam.element("label", {}, label, select);
  }

  function chart() {
    const { ranks, strategies } = Seam.shown;
    const sought = ranks.some((row) => row.sought && row.grows);
    const figures = Object.entries(Seam.RANK_FIGURES).filter(([key]) => sought || key !== "step");
    const redraw = (key) => (value) => {
      shown[key] = value;
      chart();
    };
    const orders = [...ORDERS, ["live", "live bytes"], ...strategies.map((name) => [name, `the figure of ${name}`])];
    const tools = Seam.element(
      "div",
      { class: "toolbar" },
      chooser("Figure", figures.map(([key, { label }]) => [key, label]), shown.figure, redraw("figure")),
      chooser("Ordered by", orders, shown.order, redraw("order")),
    );
    const box = Seam.element("div");
    const readout = Seam.element("output", { class: "readout", id: "readout" });
    const focused = document.activeElement?.getAttribute("aria-label");
    content("ranks").replaceChildren(tools, box, readout);
    Seam.shown.chart = new Seam.RankChart(box, {
      rows: ordered(),
      strategies,
      figure: Seam.RANK_FIGURES[shown.figure],
      deciding: Seam.shown.deciding,
      choose: say,
      open: (row) => Seam.shown.table.mark(row, true),
    });
    // What was used to change it keeps the focus.
    [...tools.querySelectorAll("select")].find((select) => select.getAttribute("aria-label") === focused)?.focus();
    if (Seam.shown.table) Seam.shown.chart.goTo(0);
  }

  function ordered() {
    const { ranks } = Seam.shown;
    if (shown.order === "rank") return ranks;
    const { of } = Seam.RANK_FIGURES[shown.figure];
    const value = (row) => (shown.order === "live" ? row.peak_live : of(row, shown.order)) ?? -1;
    return [...ranks].sort((a, b) => value(b) - value(a));
  }

  /** What is known of a rank, in words. */
  function say(row) {
    const { strategies, deciding, table } = Seam.shown;
    const step = (name) => (row.sought && row.grows ? `, steps ${Seam.times(row.strategies[name].largest_step ?? 0)}` : "");
    const held = strategies.map((name) => {
      const bytes = row.strategies[name].reserved;
      return `${name} ${bytes == null ? "does not run it" : Seam.bytes(bytes)}${step(name)}`;
    });
    const text = [
      `${row.name}, on ${row.capacity === null ? "an unknown device" : `${row.device} (${Seam.bytes(row.capacity)})`}: ${Seam.bytes(row.peak_live)} live; ${held.join("; ")}.`,
    ];
    if (deciding.has(row.name)) text.push(`It decides the batch size with ${deciding.get(row.name).join(", ")}.`);
    if (row.outlier.length > 0) text.push(`Unlike the others: ${row.outlier.map(unlike).join("; ")}.`);
    document.getElementById("readout").replaceChildren(...text.map((line) => Seam.element("p", {}, line)));
    table?.mark(row);
  }

  function unlike({ figure, value, median }) {
    const text = figure.endsWith("step") ? Seam.times : Seam.bytes;
    return `${figure} ${text(value)}, the median ${text(median)}`;
  }

  function brokenFiles(broken) {
    if (broken.length === 0) return [note("Every file could be read.")];
    const rows = broken.map(({ name, file, error }) => [
      name,
      Seam.element("td", { class: "wide" }, error),
      Seam.element("td", { class: "text" }, file),
    ]);
    return [Seam.table(`${Seam.plural(broken.length, "file")} could not be read; no figure counts them.`, ["rank", "error", "file"], rows)];
  }

  start();
})();
