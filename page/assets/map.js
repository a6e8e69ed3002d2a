// The map: operations to the right, bytes upwards, a rectangle for each block. It zooms, steps, and says what is pointed at.
"use strict";

(() => {
  const [LEFT, BOTTOM, TOP, RIGHT] = [88, 40, 6, 8];
  /** Up to so many rectangles on screen have outlines. */
  const MOST_OUTLINED = 6000;
  /** A picture that took longer than this, in ms, is drawn with a quarter of the pixels while it moves. */
  const SLOW = 22;
  const SIZES = [2 ** 20, 2 ** 22, 2 ** 24, 2 ** 26, 2 ** 28, 2 ** 30];
  const TIMES = [10, 100, 1000, 10000, 100000];
  const PENDING = 255;

  /** What blocks are coloured by: classes with a name, and the class of a block. */
  const COLOURINGS = {
    size: (job) => ordered(["up to 1 MiB", "to 4 MiB", "to 16 MiB", "to 64 MiB", "to 256 MiB", "to 1 GiB", "larger"], (block) => classOf(SIZES, job.size[block])),
    stream: (job) => {
      const names = job.about.streams.map((stream) => `stream ${stream}`);
      const shown = names.length > 8 ? [...names.slice(0, 7), "other streams"] : names;
      return unordered(shown, (block) => Math.min(job.stream[block], shown.length - 1));
    },
    pool: (job) => unordered(["large", "small (up to 1 MiB)"], (block) => (job.size[block] <= 2 ** 20 ? 1 : 0)),
    pieces: (job, layout) => {
      const names = ["in one piece", "stitched from 2", "from 3 or 4", "from 5 to 16", "from more"];
      return ordered(names, (block) => classOf([1, 2, 4, 16], layout.pieces[layout.first[block]]));
    },
    lifetime: (job) => {
      const names = ["up to 10 operations", "to 100", "to 1,000", "to 10,000", "to 100,000", "longer, or never freed"];
      return ordered(names, (block) => classOf(TIMES, job.freed[block] - job.from[block]));
    },
    stack: (job) => {
      const bytes = new Map();
      for (let block = 0; block < job.blocks; block++) {
        bytes.set(job.stackOf[block], (bytes.get(job.stackOf[block]) ?? 0) + job.size[block]);
      }
      bytes.delete(0);
      const top = [...bytes].sort((a, b) => b[1] - a[1]).slice(0, 7).map(([stack]) => stack);
      const names = top.map((stack) => job.about.frames[job.about.stacks[stack - 1][0]]);
      const at = new Map(top.map((stack, index) => [stack, index]));
      return unordered([...names, "others"], (block) => at.get(job.stackOf[block]) ?? names.length);
    },
  };

  const classOf = (bounds, value) => {
    const at = bounds.findIndex((bound) => value <= bound);
    return at < 0 ? bounds.length : at;
  };
  const ordered = (names, of) => ({ names, of, colours: () => Seam.scale(names.length) });
  const unordered = (names, of) => ({ names, of, colours: () => names.map((_, index) => Seam.distinct(index)) });

  Seam.AddressMap = class {
    constructor(parent, job, view, jumps) {
      Object.assign(this, { job, view, jumps, axisName: "memory", colouring: "size", marked: null, kept: false, pointed: null });
      this.index = job.about.maps.indexOf(true);
      const preferred = job.about.strategies.indexOf("stitch");
      if (job.about.maps[preferred]) this.index = preferred;
      this.build(parent);
      this.raster = new Seam.Raster();
      this.frames = [];
    }

    build(parent) {
      const strategies = this.job.about.strategies.map((name, index) => [index, name]).filter(([index]) => this.job.about.maps[index]);
      const colours = [["size", "size"], ["stream", "stream"], ["pool", "pool"], ["pieces", "pieces"], ["lifetime", "lifetime"]];
      if (this.job.about.stacks) colours.push(["stack", "stack"]);
      const button = (text, label, action) => Seam.element("button", { type: "button", title: label, "aria-label": label, onclick: action }, text);
      const tools = Seam.element(
        "div",
        { class: "toolbar" },
        choice("Strategy", strategies, this.index, (value) => this.show(Number(value))),
        choice("Upwards", [["memory", "memory held"], ["addresses", "addresses"]], this.axisName, (value) => this.showAxis(value)),
        choice("Colour", colours, this.colouring, (value) => this.colourBy(value)),
        Seam.element(
          "span",
          { class: "group" },
          button("−", "Zoom time out", () => this.view.zoom(1.6)),
          button("+", "Zoom time in", () => this.view.zoom(1 / 1.6, this.shownCursor())),
          button("↕−", "Zoom bytes out", () => this.zoomBytes(1.6)),
          button("↕+", "Zoom bytes in", () => this.zoomBytes(1 / 1.6)),
          button("All", "Show everything", () => this.reset()),
        ),
        Seam.element(
          "span",
          { class: "group" },
          button("◀", "One operation back", () => this.step(-1)),
          button("▶", "One operation on", () => this.step(1)),
          button("Peak", "To the most live bytes", () => this.jumps.peak()),
          button("Driver ▶", "To the next operation that calls the driver", () => this.jumps.work(1)),
        ),
      );
      const label = "Map of memory: operations to the right, bytes upwards, a rectangle for each block. Keys are listed under Keys.";
      this.box = Seam.element("div", { class: "map", tabindex: 0, role: "application", "aria-label": label, "aria-describedby": "readout" });
      this.base = Seam.element("canvas", { "aria-hidden": "true" });
      this.over = Seam.element("canvas", { class: "over", "aria-hidden": "true" });
      this.box.append(this.base, this.over);
      this.legend = Seam.element("ul", { class: "legend", "aria-label": "Colours" });
      this.readout = Seam.element("output", { class: "readout", id: "readout", "aria-live": "polite" });
      this.note = Seam.element("p", { class: "note" });
      parent.append(tools, this.box, this.legend, this.readout, this.note);
      this.listen();
    }

    listen() {
      const { over, box } = this;
      over.addEventListener("pointerdown", (event) => this.grab(event));
      over.addEventListener("pointermove", (event) => this.move(event));
      over.addEventListener("pointerup", (event) => this.release(event));
      over.addEventListener("pointercancel", () => (this.grabbed = null));
      over.addEventListener("dblclick", () => this.reset());
      over.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      box.addEventListener("keydown", (event) => this.key(event));
    }

    /** Shows the map of another strategy. */
    async show(index) {
      this.index = index;
      const layout = await this.job.map(index);
      if (this.index !== index) return;
      this.layout = layout;
      [this.marked, this.kept] = [null, false];
      this.showAxis(this.axisName);
      this.colourBy(this.colouring);
    }

    showAxis(name) {
      this.axisName = name;
      this.axis = this.layout.axis(name);
      [this.low, this.high] = [0, this.axis.length];
      this.classes();
      const shared = "Free memory is grey. A pixel in which several blocks lie shows each by its part.";
      this.note.textContent =
        name === "memory"
          ? `Upwards is physical memory, chunk beside chunk in the order in which they came: every byte that is held, once. A stitched block has several pieces; they are joined where it is marked. ${shared}`
          : `Upwards are addresses; long ranges without a block are left out. A stitched block is one piece here, at contiguous addresses, and its memory lies elsewhere too: each byte may have several addresses. Grey are ranges that blocks lie in at some time.`;
      this.draw();
    }

    colourBy(name) {
      this.colouring = name;
      this.classes();
      this.draw();
    }

    classes() {
      if (!this.layout) return;
      const of = COLOURINGS[this.colouring](this.job, this.layout);
      this.scheme = of;
      this.classOf = new Uint8Array(this.layout.blocks);
      for (let block = 0; block < this.layout.blocks; block++) this.classOf[block] = of.of(block);
      this.key_();
    }

    key_() {
      const colours = this.scheme.colours();
      const item = (colour, name) => Seam.element("li", { class: "key" }, Seam.element("span", { class: "swatch", style: `--colour:${colour}` }), name);
      const items = this.scheme.names.map((name, index) => item(colours[index], name));
      if (this.job.blocks && this.hasPending()) items.push(item(Seam.css("pending"), "freed, in use by other streams"));
      items.push(item(Seam.css("free"), this.axisName === "memory" ? "held, free" : "no block now"));
      this.legend.replaceChildren(...items);
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
        if (this.layout && this.width > 0) this.paint();
      });
    }

    paint() {
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
      const [width, height] = [Math.max(1, Math.round(this.width * ratio)), Math.max(1, Math.round(this.height * ratio))];
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

    /** The first addresses of ranges. */
    addresses(context) {
      const { chunks } = this.axis;
      let last = Infinity;
      chunks.low.forEach((low, index) => {
        const y = this.yOf(Math.max(low, this.low));
        if (low + chunks.size[index] < this.low || low > this.high || last - y < 15) return;
        last = y;
        const address = this.axis.addressAt(Math.max(low, this.low));
        context.fillText(shortAddress(address), LEFT - 9, Math.min(y - 6, TOP + this.height - 6));
        line(context, LEFT - 5, y, LEFT, y);
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
        const [left, right] = [this.xOf(Math.max(chunks.from[chunk], this.view.from - 9)), this.xOf(Math.min(chunks.until[chunk], this.layout.end, this.view.to + 9))];
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
        if (right - left < 62 || bottom - top < 15) continue;
        const text = Seam.bytes(this.job.size[spans.block[index]]);
        context.fillStyle = isLight(colours[this.classOf[spans.block[index]]]) ? "#000000" : "#ffffff";
        context.fillText(text, Math.max(left, LEFT) + 5, Math.min(Math.max((top + bottom) / 2, TOP + 8), TOP + this.height - 8));
      }
      context.restore();
    }

    edges(index) {
      const { spans } = this.axis;
      return [this.xOf(spans.from[index]), this.xOf(spans.until[index]), this.yOf(spans.high[index]), this.yOf(spans.low[index])];
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

    // The pointer.
    local(event) {
      const box = this.over.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    grab(event) {
      this.over.setPointerCapture(event.pointerId);
      this.grabbed = { at: this.local(event), from: this.view.from, to: this.view.to, low: this.low, high: this.high, moved: false };
      this.box.focus({ preventScroll: true });
    }

    move(event) {
      const [x, y] = this.local(event);
      const { grabbed } = this;
      if (grabbed) {
        const [across, up] = [x - grabbed.at[0], y - grabbed.at[1]];
        if (!grabbed.moved && Math.hypot(across, up) < 4) return;
        grabbed.moved = true;
        this.box.classList.add("moving");
        const by = (-across / this.width) * (grabbed.to - grabbed.from);
        const from = Math.min(Math.max(0, grabbed.from + by), this.view.total - (grabbed.to - grabbed.from));
        this.view.set(from, from + grabbed.to - grabbed.from);
        this.setBytes(grabbed.low + (up / this.height) * (grabbed.high - grabbed.low), grabbed.high + (up / this.height) * (grabbed.high - grabbed.low));
        return;
      }
      this.pointed = [Math.floor(this.opAt(x)), this.byteAt(y)];
      this.view.point(this.pointed[0]);
      this.look();
    }

    release(event) {
      const wasMoved = this.grabbed?.moved;
      this.grabbed = null;
      this.box.classList.remove("moving");
      if (wasMoved || !this.layout) return;
      const [x, y] = this.local(event);
      const block = this.blockAt(Math.floor(this.opAt(x)), this.byteAt(y));
      this.kept = block != null && !(this.kept && this.marked === block);
      this.marked = block;
      this.mark();
    }

    wheel(event) {
      const [x, y] = this.local(event);
      if (event.shiftKey || event.ctrlKey) {
        event.preventDefault();
        this.zoomBytes(Math.exp((event.deltaY || event.deltaX) / 400), this.byteAt(y));
      } else {
        Seam.wheelZoom(event, this.view, this.opAt(x));
      }
    }

    key(event) {
      const actions = {
        ArrowUp: () => this.panBytes(0.1),
        ArrowDown: () => this.panBytes(-0.1),
        "]": () => this.beside(1),
        "[": () => this.beside(-1),
        Enter: () => this.keep(),
        Escape: () => this.unmark(),
      };
      if (event.shiftKey && ["+", "*"].includes(event.key)) actions[event.key] = () => this.zoomBytes(1 / 1.5);
      if (event.shiftKey && ["_", "-"].includes(event.key)) actions[event.key] = () => this.zoomBytes(1.5);
      if (event.key === "0") actions[0] = () => this.reset();
      if (!event.ctrlKey && !event.metaKey && !event.altKey && actions[event.key]) {
        actions[event.key]();
        event.preventDefault();
        return;
      }
      if (!this.kept) [this.pointed, this.marked] = [null, null];
      Seam.timeKey(event, this.view, this.jumps);
    }

    step(by) {
      if (!this.kept) [this.pointed, this.marked] = [null, null];
      this.view.goTo(this.view.cursor + by);
    }

    keep() {
      this.kept = this.marked != null && !this.kept;
      this.mark();
    }

    unmark() {
      [this.marked, this.kept, this.pointed] = [null, false, null];
      this.mark();
    }

    /** Marks the next block above the marked one, or below, at the operation that is pointed at. */
    beside(by) {
      const { spans } = this.axis;
      const blocks = [];
      spans.visit(this.view.cursor, this.view.cursor + 1, (index) => blocks.push(index));
      blocks.sort((a, b) => spans.low[a] - spans.low[b]);
      if (blocks.length === 0) return;
      const now = blocks.findIndex((index) => spans.block[index] === this.marked);
      const next = now < 0 ? (by > 0 ? 0 : blocks.length - 1) : (now + by + blocks.length) % blocks.length;
      this.marked = spans.block[blocks[next]];
      this.pointed = null;
      const [low, high] = [spans.low[blocks[next]], spans.high[blocks[next]]];
      if (high > this.high || low < this.low) {
        const half = Math.max(this.high - this.low, (high - low) * 1.2) / 2;
        this.setBytes((low + high) / 2 - half, (low + high) / 2 + half);
      }
      this.mark();
    }

    zoomBytes(factor, around = (this.low + this.high) / 2) {
      const { axis, low, high } = this;
      const width = Math.min(axis.length, Math.max(4096, (high - low) * factor));
      const part = (around - low) / (high - low);
      this.setBytes(around - part * width, around + (1 - part) * width);
    }

    panBytes(part) {
      const by = (this.high - this.low) * part;
      this.setBytes(this.low + by, this.high + by);
    }

    setBytes(low, high) {
      const width = Math.min(this.axis.length, high - low);
      const start = Math.min(Math.max(0, low), this.axis.length - width);
      [this.low, this.high] = [start, start + width];
      this.draw(true);
    }

    reset() {
      [this.low, this.high] = [0, this.axis?.length ?? 1];
      this.view.reset();
      this.draw();
    }

    blockAt(op, byte) {
      const index = this.axis.spans.at(op, byte);
      return index < 0 ? null : this.axis.spans.block[index];
    }

    /** Looks at what is under the pointer. */
    look() {
      if (!this.layout || !this.pointed) return;
      const block = this.blockAt(...this.pointed);
      if (!this.kept && block !== this.marked) {
        this.marked = block;
        this.marks();
      }
      this.tell();
    }

    mark() {
      if (!this.layout) return;
      this.marks();
      this.tell();
    }

    /** Says what is pointed at. */
    tell() {
      const { view } = this;
      const lines = [Seam.inWords.operation(this.job, this.job.courses[this.index], view.cursor)];
      const stack = [];
      if (this.marked != null) {
        lines.push(...Seam.inWords.block(this.job, this.layout, this.marked, view.cursor));
        stack.push(...(this.job.stack(this.marked) ?? []));
      } else if (this.pointed) {
        lines.push(Seam.inWords.nothing(this.layout, this.axis, this.axisName, ...this.pointed));
      }
      const parts = lines.map((text) => Seam.element("p", {}, text));
      if (stack.length > 0) parts.push(Seam.element("div", { class: "stack" }, stack.join("\n")));
      this.readout.replaceChildren(...parts);
    }

    /** The view has changed. */
    changed(what) {
      if (what.has("range")) this.draw(true);
      else if (this.layout) this.marks();
      if (!this.layout) return;
      if (this.pointed && this.pointed[0] !== this.view.cursor) this.pointed = null;
      this.tell();
    }
  };

  function choice(label, options, value, action) {
    const select = Seam.element("select", { onchange: (event) => action(event.target.value) });
    for (const [of, name] of options) select.append(Seam.element("option", { value: of, selected: of === value }, name));
    return Seam.element("label", {}, label, select);
  }

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

  Seam.PENDING = PENDING;
})();
