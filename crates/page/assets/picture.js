// The picture of the map: its geometry, blocks and chunks, axes, and what is marked.
"use strict";

(() => {
  const [LEFT, BOTTOM, TOP, RIGHT] = [88, 40, 6, 8];
  /** Up to so many rectangles on screen have outlines. */
  const MOST_OUTLINED = 6000;
  /** A picture that took longer than this, in ms, is drawn with a quarter of the pixels while it moves. */
  const SLOW = 22;

  /** What draws the map of `this.layout` over the part that `this.view`, `this.low` and `this.high` say. */
  Seam.MapPicture = class {
    constructor(job, view) {
      Object.assign(this, { job, view, marked: null });
      this.raster = new Seam.Raster();
      /** How long the last pictures took, in ms. */
      this.frames = [];
      this.box = Seam.element("div", { class: "map", tabindex: 0, role: "application", "aria-describedby": "readout" });
      this.base = Seam.element("canvas", { "aria-hidden": "true" });
      this.over = Seam.element("canvas", { class: "over", "aria-hidden": "true" });
      this.box.append(this.base, this.over);
    }

    hasPending() {
      this.pending ??= this.job.freed.some((freed, block) => this.job.until[block] !== freed);
      return this.pending;
    }

    // What is shown: pixels of the canvas to operations and bytes.
    get width() {
      return this.box.clientWidth - LEFT - RIGHT;
    }
    get height() {
      return this.box.clientHeight - TOP - BOTTOM;
    }
    xOf(op) {
      return LEFT + ((op - this.view.from) / (this.view.to - this.view.from)) * this.width;
    }
    yOf(byte) {
      return TOP + (1 - (byte - this.low) / (this.high - this.low)) * this.height;
    }
    opAt(x) {
      return this.view.from + ((x - LEFT) / this.width) * (this.view.to - this.view.from);
    }
    byteAt(y) {
      return this.low + (1 - (y - TOP) / this.height) * (this.high - this.low);
    }
    shownCursor() {
      const { view } = this;
      return view.cursor >= view.from && view.cursor < view.to ? view.cursor : undefined;
    }

    /** Draws all in the next frame. */
    draw(moving = false) {
      this.moving = moving;
      if (this.pendingFrame) return;
      this.pendingFrame = requestAnimationFrame(() => {
        this.pendingFrame = null;
        if (this.width > 0) this.paint();
      });
    }

    paint() {
      if (!this.layout) return;
      const start = performance.now();
      const coarse = this.moving && this.lastCost > SLOW;
      this.shown = [];
      this.blocks(coarse ? 2 : 1);
      this.marks();
      const cost = performance.now() - start;
      if (!coarse) this.lastCost = cost;
      this.frames.push(cost);
      if (this.frames.length > 500) this.frames.shift();
      clearTimeout(this.refine);
      if (coarse) this.refine = setTimeout(() => this.draw(), 140);
    }

    blocks(shrink) {
      const { view, low, high, axis, raster } = this;
      const ratio = Math.min(2, devicePixelRatio) / shrink;
      const [width, height] = [
        Math.max(1, Math.round(this.width * ratio)),
        Math.max(1, Math.round(this.height * ratio)),
      ];
      raster.size(width, height);
      raster.clear();
      const [across, up] = [width / (view.to - view.from), height / (high - low)];
      const x = (op) => (op - view.from) * across;
      const y = (byte) => (high - byte) * up;
      const { chunks } = axis;
      for (let chunk = 0; chunk < chunks.low.length; chunk++) {
        if (chunks.from[chunk] >= view.to || chunks.until[chunk] <= view.from) continue;
        const until = Math.min(chunks.until[chunk], this.layout.end);
        raster.hold(x(chunks.from[chunk]), x(until), y(chunks.low[chunk] + chunks.size[chunk]), y(chunks.low[chunk]));
      }
      const colours = this.scheme.colours().map(Seam.rgb);
      const pending = Seam.rgb(Seam.css("pending"));
      const { spans } = axis;
      const freed = this.hasPending() ? this.job.freed : null;
      let count = 0;
      spans.visit(view.from, view.to, (index) => {
        const [bottom, top] = [spans.low[index], spans.high[index]];
        if (top <= low || bottom >= high) return;
        const block = spans.block[index];
        const [red, green, blue] = colours[this.classOf[block]];
        const until = spans.until[index];
        const used = freed && freed[block] < until ? Math.max(freed[block], spans.from[index]) : until;
        raster.fill(x(spans.from[index]), x(used), y(top), y(bottom), red, green, blue);
        if (used < until) raster.fill(x(used), x(until), y(top), y(bottom), ...pending);
        if (++count <= MOST_OUTLINED) this.shown.push(index);
      });
      if (count > MOST_OUTLINED) this.shown = [];
      const image = raster.finish(Seam.rgb(Seam.css("none")), Seam.rgb(Seam.css("free")));
      const { base } = this;
      const scale = Math.min(2, devicePixelRatio);
      [base.width, base.height] = [Math.round(this.box.clientWidth * scale), Math.round(this.box.clientHeight * scale)];
      const context = base.getContext("2d");
      if (shrink === 1) {
        context.putImageData(image, Math.round(LEFT * scale), Math.round(TOP * scale));
      } else {
        this.small ??= document.createElement("canvas");
        [this.small.width, this.small.height] = [width, height];
        this.small.getContext("2d").putImageData(image, 0, 0);
        context.drawImage(this.small, LEFT * scale, TOP * scale, this.width * scale, this.height * scale);
      }
      context.setTransform(scale, 0, 0, scale, 0, 0);
      this.frame(context);
      this.outlines(context);
    }

    /** Axes with their figures. */
    frame(context) {
      const { view } = this;
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = Seam.css("text");
      context.strokeStyle = Seam.css("line");
      context.strokeRect(LEFT - 0.5, TOP - 0.5, this.width + 1, this.height + 1);
      context.textAlign = "right";
      context.textBaseline = "middle";
      const bytes = this.axisName === "memory" ? niceBytes(this.low, this.high, this.height / 46) : [];
      const names = Seam.axisBytes(bytes, this.high);
      bytes.forEach((byte, index) => {
        const y = this.yOf(byte);
        context.fillText(names[index], LEFT - 9, Math.min(y, TOP + this.height - 6));
        line(context, LEFT - 5, y, LEFT, y);
      });
      if (this.axisName !== "memory") this.addresses(context);
      context.textAlign = "center";
      context.textBaseline = "top";
      for (const op of nice(view.from, view.to, this.width / 110)) {
        const x = this.xOf(op);
        const text = Seam.count(op);
        const half = context.measureText(text).width / 2;
        context.fillText(text, Math.min(x, LEFT + this.width - half + 4), TOP + this.height + 7);
        line(context, x, TOP + this.height, x, TOP + this.height + 5);
      }
      context.fillText("operation", LEFT + this.width / 2, TOP + this.height + 23);
    }

    /** The first addresses of ranges, and what was reserved there. */
    addresses(context) {
      const { chunks, names } = this.axis;
      let last = Infinity;
      chunks.low.forEach((low, index) => {
        const y = this.yOf(Math.max(low, this.low));
        if (low + chunks.size[index] < this.low || low > this.high || last - y < 15) return;
        last = y;
        const address = this.axis.addressAt(Math.max(low, this.low));
        context.fillText(shortAddress(address), LEFT - 9, Math.min(y - 6, TOP + this.height - 6));
        line(context, LEFT - 5, y, LEFT, y);
        const top = Math.max(TOP, this.yOf(low + chunks.size[index]));
        if (y - top < 22) return;
        const width = context.measureText(names[index]).width;
        context.fillStyle = Seam.css("page");
        context.fillRect(LEFT + 4, top + 3, width + 8, 17);
        context.fillStyle = Seam.css("text");
        context.textAlign = "left";
        context.fillText(names[index], LEFT + 8, top + 12);
        context.textAlign = "right";
      });
    }

    /** Borders of chunks and blocks, and sizes of blocks, where there is room. */
    outlines(context) {
      const { spans, chunks } = this.axis;
      context.save();
      context.beginPath();
      context.rect(LEFT, TOP, this.width, this.height);
      context.clip();
      context.strokeStyle = Seam.css("border");
      context.lineWidth = 1;
      for (let chunk = 0; chunk < chunks.low.length; chunk++) {
        const [top, bottom] = [this.yOf(chunks.low[chunk] + chunks.size[chunk]), this.yOf(chunks.low[chunk])];
        if (bottom - top < 5 || bottom < TOP || top > TOP + this.height) continue;
        const [left, right] = [
          this.xOf(Math.max(chunks.from[chunk], this.view.from - 9)),
          this.xOf(Math.min(chunks.until[chunk], this.layout.end, this.view.to + 9)),
        ];
        if (right > left) context.strokeRect(left, top, right - left, bottom - top);
      }
      context.strokeStyle = Seam.isDark() ? "rgba(0,0,0,0.55)" : "rgba(255,255,255,0.75)";
      context.textAlign = "left";
      context.textBaseline = "middle";
      const colours = this.scheme.colours();
      for (const index of this.shown) {
        const [left, right, top, bottom] = this.edges(index);
        if (right - left < 3 || bottom - top < 3) continue;
        context.strokeRect(left, top, right - left, bottom - top);
        if (bottom - top < 15) continue;
        const block = spans.block[index];
        // What is freed and still in use has another colour.
        const end = Math.min(right, this.xOf(this.job.freed[block]), LEFT + this.width);
        const start = Math.max(left, LEFT) + 5;
        const text = Seam.bytes(this.job.size[block]);
        if (end - start < context.measureText(text).width + 4) continue;
        context.fillStyle = isLight(colours[this.classOf[block]]) ? "#000000" : "#ffffff";
        context.fillText(text, start, Math.min(Math.max((top + bottom) / 2, TOP + 8), TOP + this.height - 8));
      }
      context.restore();
    }

    edges(index) {
      const { spans } = this.axis;
      return [
        this.xOf(spans.from[index]),
        this.xOf(spans.until[index]),
        this.yOf(spans.high[index]),
        this.yOf(spans.low[index]),
      ];
    }

    /** The cursor, refusals, and the block that is marked, with its pieces joined. */
    marks() {
      const { over, view } = this;
      const scale = Math.min(2, devicePixelRatio);
      [over.width, over.height] = [this.box.clientWidth * scale, this.box.clientHeight * scale];
      const context = over.getContext("2d");
      context.scale(scale, scale);
      context.beginPath();
      context.rect(LEFT, TOP, this.width, this.height);
      context.clip();
      context.strokeStyle = Seam.css("refused");
      context.lineWidth = 1.5;
      for (const refusal of this.job.refusals()) {
        if (refusal.course && refusal.course.index !== this.index) continue;
        const x = this.xOf(refusal.op + 0.5);
        context.setLineDash([4, 3]);
        line(context, x, TOP + 10, x, TOP + this.height);
        context.setLineDash([]);
        line(context, x - 4, TOP + 2, x + 4, TOP + 10);
        line(context, x + 4, TOP + 2, x - 4, TOP + 10);
      }
      context.strokeStyle = Seam.css("mark");
      context.lineWidth = 1;
      context.globalAlpha = 0.75;
      const cursor = this.xOf(view.cursor + 0.5);
      line(context, cursor, TOP, cursor, TOP + this.height);
      context.globalAlpha = 1;
      if (this.marked == null) return;
      const pieces = this.rectangles(this.marked, view.cursor);
      const boxes = pieces.map((index) => this.edges(index)).sort((a, b) => a[2] - b[2]);
      for (const [left, right, top, bottom] of boxes) {
        outlined(context, () => context.strokeRect(left, top, Math.max(2, right - left), Math.max(2, bottom - top)));
      }
      if (boxes.length < 2) return;
      // A line at the side, with a foot into each piece: they are one block.
      const x = Math.max(boxes[0][0], LEFT + 1) + 4;
      const middle = ([, , top, bottom]) => (top + bottom) / 2;
      outlined(context, () => {
        line(context, x, middle(boxes[0]), x, middle(boxes.at(-1)));
        for (const box of boxes) line(context, x, middle(box), x + 9, middle(box));
      });
    }

    /** The rectangles of a block at an operation. */
    rectangles(block, op) {
      const found = [];
      const at = Math.min(Math.max(op, this.job.from[block]), Math.min(this.job.until[block], this.layout.end) - 1);
      this.axis.spans.visit(at, at + 1, (index) => {
        if (this.axis.spans.block[index] === block) found.push(index);
      });
      return found;
    }
  };

  function line(context, ...[fromX, fromY, toX, toY]) {
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
    context.stroke();
  }

  /** Strokes that are seen on any colour. */
  function outlined(context, stroke) {
    for (const [colour, width] of [
      [Seam.css("none"), 4.5],
      [Seam.css("mark"), 2],
    ]) {
      [context.strokeStyle, context.lineWidth] = [colour, width];
      stroke();
    }
  }

  function isLight(colour) {
    const [red, green, blue] = Seam.rgb(colour);
    return red * 0.299 + green * 0.587 + blue * 0.114 > 140;
  }

  function shortAddress(address) {
    const text = address.toString(16);
    return text.length > 9 ? `…${text.slice(-9)}` : `0x${text}`;
  }

  /** Round numbers between two, about as many as asked for. */
  function nice(from, to, count) {
    const rough = (to - from) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= rough) * power);
    return series(from, to, step);
  }

  function niceBytes(from, to, count) {
    return series(from, to, 2 ** Math.ceil(Math.log2((to - from) / Math.max(1, count))));
  }

  function series(from, to, step) {
    const out = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) out.push(at);
    return out;
  }
})();
