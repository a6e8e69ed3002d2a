// The ranks of a job side by side, drawn by uPlot: what each holds with each strategy, which decide, which are unlike the others.
"use strict";

(() => {
  /** Pixels left of what is drawn, for figures, and their font. */
  const LEFT = 88;
  /** Half the size of the mark of a rank that is unlike the others, in pixels. */
  const MARK = 5;
  /** The fewest ranks that a zoom shows. */
  const LEAST_SHOWN = 5;

  const held = (row, strategy) => row.strategies[strategy].reserved;
  const step = (row, strategy) => (row.grows && row.sought ? (row.strategies[strategy].largest_step ?? 0) : null);

  /** What can be drawn of ranks: how it is called, what it is of a strategy, and whether live and recorded bytes stand beside it. */
  Seam.RANK_FIGURES = {
    reserved: { label: "memory held", of: held, isBytes: true, hasLive: true },
    free: { label: "free on the device", of: (row, strategy) => row.strategies[strategy].free, isBytes: true },
    step: { label: "largest step", of: step, isBytes: false },
  };

  Seam.RankChart = class {
    /**
     * `rows` in the order in which they are drawn, `strategies` by name, `figure` one of RANK_FIGURES, `deciding` the names of rows that
     * decide; `choose` is told of the row that was pointed at, `open` of one that is to be shown elsewhere.
     */
    constructor(parent, { rows, strategies, figure, deciding, choose, open }) {
      Object.assign(this, { rows, strategies, figure, deciding, choose, open });
      this.index = 0;
      this.hidden = new Set();
      const label = `${figure.label} of ${Seam.plural(rows.length, "rank")}, by strategy. Keys: arrows, o, d, plus, minus, Enter.`;
      this.box = Seam.element("div", { class: "chart", tabindex: 0, role: "group", "aria-label": label });
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.legend = Seam.element("ul", { class: "legend" });
      parent.append(this.box, this.legend);
      this.lines = this.allLines();
      this.from = -0.5;
      this.to = rows.length - 0.5;
      this.listLines();
      this.draw();
    }

    allLines() {
      const { rows, figure, strategies } = this;
      const live = { label: "live", values: rows.map((row) => row.peak_live), isFilled: true };
      const recorded = rows.map((row) => (row.reserved_before === 0 ? row.recorded_reserved : null));
      const measured = { label: "recorded", values: recorded, isHidden: true };
      const extra = figure.hasLive ? [live, ...(recorded.some((bytes) => bytes != null) ? [measured] : [])] : [];
      const lines = strategies.map((name, index) => ({ label: name, index, values: rows.map((row) => figure.of(row, name)) }));
      if (measured.isHidden) this.hidden.add("recorded");
      return [...extra, ...lines];
    }

    look(line) {
      if (line.index != null) return { ...Seam.look(line.index), width: 2 };
      return line.isFilled ? { colour: Seam.css("live"), dash: [], width: 1 } : { colour: Seam.css("faint"), dash: [1, 3], width: 2 };
    }

    listLines() {
      const items = this.lines.map((line) => {
        const toggle = () => {
          if (!this.hidden.delete(line.label)) this.hidden.add(line.label);
          this.listLines();
          this.draw();
        };
        const shown = !this.hidden.has(line.label);
        const button = { type: "button", "aria-pressed": String(shown), onclick: toggle };
        return Seam.element("li", {}, Seam.element("button", button, Seam.sample(this.look(line)), line.label));
      });
      const mark = (sign, text) => Seam.element("li", { class: "marks" }, `${sign} ${text}`);
      const unlike = this.rows.some((row) => row.outlier.length > 0) ? [mark("◆", "unlike the others")] : [];
      this.legend.replaceChildren(...items, ...unlike, mark("▼", "decides the batch size"));
    }

    draw() {
      this.plot?.destroy();
      this.box.replaceChildren();
      const { rows, lines, figure } = this;
      const shown = lines.filter((line) => !this.hidden.has(line.label));
      const most = shown.flatMap((line) => line.values).reduce((a, b) => Math.max(a, b ?? 0), 0) || 1;
      const text = figure.isBytes ? (values) => Seam.axisBytes(values, most) : (values) => values.map((value) => `×${value}`);
      const stepped = uPlot.paths.stepped({ align: 1 });
      const options = {
        width: this.box.clientWidth,
        height: 320,
        padding: [16, 10, 0, 0],
        legend: { show: false },
        cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
        scales: {
          x: { time: false, range: () => [this.from, this.to] },
          y: { range: () => [0, most * 1.05] },
        },
        axes: [
          Seam.axis({
            values: (_, values) => values.map((at) => (Number.isInteger(at) && rows[at] ? this.short(rows[at]) : "")),
            size: 34,
            label: "rank",
            labelSize: 20,
          }),
          Seam.axis({ values: (_, values) => text(values), size: LEFT, space: 34, incrs: figure.isBytes ? Seam.BYTE_STEPS : undefined }),
        ],
        series: [
          {},
          ...lines.map((line) => {
            const look = this.look(line);
            const fill = line.isFilled ? { fill: `${look.colour}40` } : {};
            return {
              show: !this.hidden.has(line.label),
              stroke: look.colour,
              dash: look.dash,
              width: look.width,
              paths: stepped,
              points: { show: false },
              ...fill,
            };
          }),
        ],
        hooks: {
          draw: [(plot) => this.marks(plot)],
          setSelect: [(plot) => this.selected(plot)],
        },
      };
      // A rank is as wide as the distance to the next, and stands in the middle of it.
      const edges = Array.from({ length: rows.length + 1 }, (_, index) => index - 0.5);
      this.plot = new uPlot(options, [edges, ...lines.map(({ values }) => [...values, values.at(-1)])], this.box);
      const { over } = this.plot;
      over.addEventListener("mousemove", (event) => this.point(this.plot.posToVal(event.offsetX, "x")));
      over.addEventListener("click", () => this.box.focus());
      over.addEventListener("dblclick", () => this.show(-0.5, rows.length - 0.5));
      this.place();
    }

    short(row) {
      return row.rank == null ? row.name.slice(-12) : String(row.rank);
    }

    /** Marks: which ranks decide, above, and which are unlike the others, below. They differ in form, not in colour alone. */
    marks(plot) {
      const { ctx, bbox } = plot;
      const size = MARK * devicePixelRatio;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
      ctx.clip();
      this.rows.forEach((row, index) => {
        if (index < this.from || index > this.to) return;
        const x = plot.valToPos(index, "x", true);
        if (row.outlier.length > 0) {
          const y = bbox.top + bbox.height - size;
          ctx.fillStyle = Seam.css("pending");
          ctx.beginPath();
          [[0, -size], [size, 0], [0, size], [-size, 0]].forEach(([dx, dy]) => ctx.lineTo(x + dx, y + dy));
          ctx.fill();
        }
        if (this.deciding.has(row.name)) {
          ctx.fillStyle = Seam.css("mark");
          ctx.beginPath();
          [[-size, -2 * size], [size, -2 * size], [0, 0]].forEach(([dx, dy]) => ctx.lineTo(x + dx, bbox.top + dy));
          ctx.fill();
        }
      });
      ctx.restore();
    }

    selected(plot) {
      const { left, width } = plot.select;
      if (width > 4) this.show(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
      if (width > 0) plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    }

    /** Shows the ranks between two places, and at least a few. */
    show(from, to) {
      const length = Math.min(this.rows.length, Math.max(LEAST_SHOWN, to - from));
      const middle = (from + to) / 2;
      this.from = Math.max(-0.5, Math.min(middle - length / 2, this.rows.length - 0.5 - length));
      this.to = this.from + length;
      this.plot.setScale("x", { min: this.from, max: this.to });
      this.place();
    }

    zoom(by) {
      const keep = (this.index - this.from) / (this.to - this.from);
      const length = (this.to - this.from) * by;
      this.show(this.index - keep * length, this.index + (1 - keep) * length);
    }

    point(at) {
      const index = Math.max(0, Math.min(this.rows.length - 1, Math.round(at)));
      if (index !== this.index) this.goTo(index);
    }

    goTo(index) {
      this.index = Math.max(0, Math.min(this.rows.length - 1, index));
      const over = Math.max(this.index + 0.5 - this.to, 0) || Math.min(this.index - 0.5 - this.from, 0);
      if (over !== 0) this.show(this.from + over, this.to + over);
      this.place();
      this.choose(this.rows[this.index]);
    }

    /** The line at the rank that is chosen. */
    place() {
      this.line ??= Seam.element("div", { class: "cursor" });
      this.plot.over.append(this.line);
      this.line.style.left = `${this.plot.valToPos(this.index, "x")}px`;
    }

    next(is) {
      const { rows, index } = this;
      for (let by = 1; by <= rows.length; by++) {
        const at = (index + by) % rows.length;
        if (is(rows[at])) return this.goTo(at);
      }
    }

    key(event) {
      const by = event.shiftKey ? 10 : 1;
      const actions = {
        ArrowLeft: () => this.goTo(this.index - by),
        ArrowRight: () => this.goTo(this.index + by),
        Home: () => this.goTo(0),
        End: () => this.goTo(this.rows.length - 1),
        o: () => this.next((row) => row.outlier.length > 0),
        d: () => this.next((row) => this.deciding.has(row.name)),
        "+": () => this.zoom(1 / 1.5),
        "=": () => this.zoom(1 / 1.5),
        "-": () => this.zoom(1.5),
        0: () => this.show(-0.5, this.rows.length - 0.5),
        Enter: () => this.open(this.rows[this.index]),
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key] || event.target !== this.box) return;
      actions[event.key]();
      event.preventDefault();
    }
  };
})();
