// Charts over operations, drawn by uPlot (crates/page/vendor): they share the view, and show what is under the pointer.
"use strict";

(() => {
  /** A chart of one pixel a column has about this many. */
  const LEAST_COLUMNS = 120;
  /** Pixels left and right of what is drawn, as at the map: operations stand one below the other. */
  const [LEFT, RIGHT] = [88, 8];
  const operations = (values) => values.map((value) => (Number.isInteger(value) ? Seam.count(value) : ""));

  /** Keys that every chart over operations and the map understand. Returns whether it was one of them. */
  Seam.timeKey = (event, view, jumps) => {
    const around = view.cursor >= view.from && view.cursor < view.to ? view.cursor : undefined;
    const actions = {
      ArrowLeft: () => view.pan(-0.1),
      ArrowRight: () => view.pan(0.1),
      "+": () => view.zoom(1 / 1.5, around),
      "=": () => view.zoom(1 / 1.5, around),
      "-": () => view.zoom(1.5, around),
      ",": () => view.goTo(view.cursor - 1),
      ".": () => view.goTo(view.cursor + 1),
      "<": () => jumps.work(-1),
      ">": () => jumps.work(1),
      p: () => jumps.peak(),
      r: () => jumps.refusal(),
      0: () => view.reset(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return false;
    actions[event.key]();
    event.preventDefault();
    return true;
  };

  /** Zooms by the wheel, around what is under it. */
  Seam.wheelZoom = (event, view, op) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan(event.deltaX / 1200);
    else view.zoom(Math.exp(Math.min(200, Math.max(-200, event.deltaY)) / 400), op);
  };

  /**
   * A chart over operations. `lines` have a `label`, a `figure`, a `look` and optionally `text`, what stands for a value, and
   * `hidden`. `options`: `label` for people who do not see it, `text` of values, `axisText` of those at the axis, `height`,
   * `isLog`, `marks`: operations with a text, `zero` for an axis that begins at 0, `peak`: a moment of the first line.
   */
  Seam.TimeChart = class {
    constructor(parent, job, view, jumps, lines, options) {
      Object.assign(this, { job, view, lines, options });
      this.box = Seam.element("div", { class: "chart", tabindex: 0, role: "group", "aria-label": options.label });
      this.box.addEventListener("keydown", (event) => Seam.timeKey(event, view, jumps));
      this.legend = Seam.element("ul", { class: "legend" });
      this.values = lines.map(() => Seam.element("span", { class: "value" }));
      this.moment = Seam.element("li", { class: "key" });
      this.legend.append(this.moment);
      lines.forEach((line, index) => this.legend.append(Seam.element("li", {}, this.toggle(line, index))));
      parent.append(this.box, this.legend);
      this.draw();
    }

    toggle(line, index) {
      const button = Seam.element(
        "button",
        { type: "button", "aria-pressed": String(!line.hidden) },
        Seam.sample(line.look),
        line.label,
        this.values[index],
      );
      button.addEventListener("click", () => {
        line.hidden = !line.hidden;
        button.setAttribute("aria-pressed", String(!line.hidden));
        this.range();
      });
      return button;
    }

    /** Draws it anew: its width or its colours have changed. */
    draw() {
      this.plot?.destroy();
      this.box.replaceChildren();
      const { options, view } = this;
      const text = options.axisText ?? options.text;
      this.peak = options.peak && Seam.element("div", { class: "peak" }, Seam.element("span", {}, options.peak.text));
      const series = this.lines.map((line) => this.series(line));
      const plot = {
        width: this.box.clientWidth,
        height: options.height ?? 280,
        legend: { show: false },
        cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
        scales: {
          x: { time: false, range: () => [view.from, view.to] },
          y: options.isLog
            ? { distr: 3, range: (_, low, high) => this.logRange(low, high) }
            : { range: (_, low, high) => this.flatRange(low, high) },
        },
        axes: [
          Seam.axis({ values: (_, values) => operations(values), label: "operation", labelSize: 20, size: 34 }),
          Seam.axis({
            values: (_, values) => text(values),
            size: LEFT,
            space: 38,
            ...(options.areBytes && { incrs: Seam.BYTE_STEPS }),
          }),
        ],
        padding: [10, RIGHT, 0, 0],
        series: [{}, ...series],
        hooks: { setSelect: [(plot) => this.select(plot)], draw: [(plot) => this.marks(plot), (plot) => this.markPeak(plot)] },
      };
      this.plot = new uPlot(plot, this.data(), this.box);
      this.cursor = Seam.element("div", { class: "cursor" });
      const { over } = this.plot;
      over.append(this.cursor, ...(this.peak ? [this.peak] : []));
      over.addEventListener("pointermove", (event) => view.point(this.opAt(event)));
      over.addEventListener("wheel", (event) => Seam.wheelZoom(event, view, this.opAt(event)), { passive: false });
      over.addEventListener("dblclick", () => view.reset());
      this.point();
    }

    series({ look, hidden, fill, figure }) {
      const common = { stroke: look.colour, dash: look.dash, width: look.width ?? 1.75, show: !hidden, fill };
      if (figure.isEvent) {
        return {
          ...common,
          paths: () => null,
          points: { show: true, size: 6, stroke: look.colour, fill: look.colour },
        };
      }
      return { ...common, points: { show: false }, paths: (...all) => this.paths(...all) };
    }

    /** Steps where operations are exact; else lines through the least and the most of each column. */
    paths(...all) {
      this.stepped ??= uPlot.paths.stepped({ align: 1 });
      this.linear ??= uPlot.paths.linear();
      return (this.isExact ? this.stepped : this.linear)(...all);
    }

    flatRange(low, high) {
      if (low == null || high == null) return [0, 1];
      const least = this.options.zero === false ? low : 0;
      return [least, high > least ? high * 1.04 : least + 1];
    }

    logRange(low, high) {
      if (low == null || high == null || high <= 0) return [1, 10];
      return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.01))];
    }

    data() {
      const columns = Math.max(LEAST_COLUMNS, this.box.clientWidth - LEFT - RIGHT);
      const figures = this.lines.map((line) => line.figure);
      const { exact, data } = Seam.decimate(figures, this.view.from, this.view.to, columns);
      this.isExact = exact;
      return [data[0], ...data.slice(1).map((values) => values.map((value) => (Number.isNaN(value) ? null : value)))];
    }

    /** Other operations are shown, or other lines. */
    range() {
      this.plot.batch(() => {
        this.lines.forEach((line, index) => {
          if (this.plot.series[index + 1].show === Boolean(line.hidden)) {
            this.plot.setSeries(index + 1, { show: !line.hidden });
          }
        });
        this.plot.setData(this.data());
      });
      this.point();
    }

    /** Another operation is pointed at. */
    point() {
      const { view, plot } = this;
      const at = plot.valToPos(view.cursor + 0.5, "x");
      this.cursor.hidden = view.cursor < view.from || view.cursor >= view.to;
      this.cursor.style.transform = `translateX(${at}px)`;
      this.moment.textContent = `After operation ${Seam.count(view.cursor)}:`;
      this.lines.forEach((line, index) => {
        const value = line.figure.isEvent
          ? line.figure.range(view.cursor, view.cursor + 1)?.[1]
          : line.figure.valueAt(view.cursor);
        const known = value != null && !Number.isNaN(value);
        this.values[index].textContent = known ? this.options.text([value])[0] : "–";
      });
    }

    opAt(event) {
      return this.plot.posToVal(event.clientX - this.plot.over.getBoundingClientRect().left, "x");
    }

    select(plot) {
      const { left, width } = plot.select;
      if (width < 4) return;
      this.view.set(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    }

    /** Moments of interest: a line with a cross at its head. */
    marks(plot) {
      const { ctx } = plot;
      const scale = devicePixelRatio;
      ctx.save();
      for (const { op, colour } of this.options.marks?.() ?? []) {
        if (op < this.view.from || op > this.view.to) continue;
        const x = plot.valToPos(op + 0.5, "x", true);
        const top = plot.bbox.top;
        ctx.strokeStyle = colour;
        ctx.lineWidth = 1.5 * scale;
        ctx.setLineDash([4 * scale, 3 * scale]);
        ctx.beginPath();
        ctx.moveTo(x, top + 9 * scale);
        ctx.lineTo(x, top + plot.bbox.height);
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.lineWidth = 2.5 * scale;
        ctx.beginPath();
        for (const side of [-1, 1]) {
          ctx.moveTo(x - 4 * scale * side, top + 1 * scale);
          ctx.lineTo(x + 4 * scale * side, top + 9 * scale);
        }
        ctx.stroke();
      }
      ctx.restore();
    }

    /** Puts a dot at the peak, which other lines may hide, and its text at the side that has more room. */
    markPeak(plot) {
      if (!this.peak) return;
      const { op, value } = this.options.peak;
      this.peak.hidden = Boolean(this.lines[0].hidden) || op < this.view.from || op >= this.view.to;
      if (this.peak.hidden) return;
      const [x, y] = [plot.valToPos(op + 0.5, "x"), plot.valToPos(value, "y")];
      const [text, { clientWidth, clientHeight }] = [this.peak.firstChild, plot.over];
      this.peak.style.transform = `translate(${x}px, ${y}px)`;
      this.peak.classList.toggle("late", x > clientWidth / 2);
      // Below it, where no line of what is reserved runs.
      text.style.top = `${Math.min(5, clientHeight - text.offsetHeight - y)}px`;
    }
  };

  /** Layers one upon the other, each from the top of the one below: `layers` have `label`, `colour` and `values`. */
  Seam.stackChart = (parent, { at, layers, total, view, job, jumps, label }) => {
    const sums = at.map(() => 0);
    const lines = layers.map(({ label, colour, values }) => {
      values.forEach((value, index) => (sums[index] += value));
      const figure = new Seam.Figure(at, Float64Array.from(sums));
      // What stands in the legend is the layer's own height.
      figure.valueAt = (op) => values[Math.max(0, figure.before(op + 1) - 1)] ?? 0;
      figure.stacked = new Seam.Figure(at, figure.value);
      figure.range = (from, to) => figure.stacked.range(from, to);
      return { label, figure, look: { colour, dash: [], width: 1 }, fill: colour };
    });
    const options = { label, text: (values) => values.map(Seam.bytes), height: 230, areBytes: true };
    options.axisText = (values) => Seam.axisBytes(values, total);
    return new StackChart(parent, job, view, jumps, lines.reverse(), options);
  };

  class StackChart extends Seam.TimeChart {
    /** Exact points are the sums too. */
    data() {
      const stacked = this.lines.map((line) => line.figure.stacked);
      const columns = Math.max(LEAST_COLUMNS, this.box.clientWidth - LEFT - RIGHT);
      const { exact, data } = Seam.decimate(stacked, this.view.from, this.view.to, columns);
      this.isExact = exact;
      return data;
    }

    /** Samples are far apart: all is drawn in steps. */
    paths(...all) {
      this.stepped ??= uPlot.paths.stepped({ align: 1 });
      return this.stepped(...all);
    }

    toggle(line, index) {
      const swatch = Seam.element("span", { class: "swatch", style: `--colour:${line.look.colour}` });
      return Seam.element("span", { class: "key" }, swatch, line.label, this.values[index]);
    }
  }

  /** A chart over sizes of devices: one line a strategy, a gap where it does not run. */
  Seam.SizeChart = class {
    constructor(parent, { names, lines, label, text }) {
      Object.assign(this, { names, lines, text });
      this.box = Seam.element("div", { class: "chart", role: "img", "aria-label": label });
      parent.append(this.box);
      const legend = Seam.element("ul", { class: "legend" });
      for (const { label, look } of lines) {
        legend.append(Seam.element("li", { class: "key" }, Seam.sample(look), label));
      }
      parent.append(legend);
      this.draw();
    }

    draw() {
      this.plot?.destroy();
      this.box.replaceChildren();
      const { names, lines } = this;
      const last = names.length - 1;
      const scale = {
        distr: 3,
        range: (_, low, high) => [
          10 ** Math.floor(Math.log10(low || 1)),
          10 ** Math.ceil(Math.log10((high || 1) * 1.01)),
        ],
      };
      const splits = names.map((_, index) => index);
      const plot = {
        width: this.box.clientWidth,
        height: 260,
        padding: [10, RIGHT, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false, range: () => [-0.3, last + 0.3] }, y: scale },
        axes: [
          Seam.axis({
            splits: () => splits,
            values: () => names,
            label: "device memory, times live",
            labelSize: 20,
            size: 34,
          }),
          Seam.axis({ values: (_, values) => this.text(values), size: LEFT, space: 30 }),
        ],
        series: [
          {},
          ...lines.map(({ look }) => ({
            stroke: look.colour,
            dash: look.dash,
            width: 1.75,
            points: { show: true, size: 7, stroke: look.colour, fill: look.colour },
          })),
        ],
      };
      this.plot = new uPlot(plot, [splits, ...lines.map((line) => line.values)], this.box);
    }

    range() {}
    point() {}
  };
})();
