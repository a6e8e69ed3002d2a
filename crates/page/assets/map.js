// The map: operations to the right, bytes upwards, a rectangle for each block. It zooms, steps, and says what is pointed at.
"use strict";

(() => {
  Seam.AddressMap = class extends Seam.MapPicture {
    constructor(parent, job, view, jumps) {
      super(job, view);
      Object.assign(this, { jumps, axisName: "memory", colouring: "size", kept: false, pointed: null });
      this.index = job.about.maps.indexOf(true);
      const preferred = job.about.strategies.indexOf("stitch");
      if (job.about.maps[preferred]) this.index = preferred;
      this.build(parent);
    }

    build(parent) {
      const strategies = this.job.about.strategies
        .map((name, index) => [index, name])
        .filter(([index]) => this.job.about.maps[index]);
      const colours = [
        ["size", "size"],
        ["stream", "stream"],
        ["pool", "pool"],
        ["pieces", "pieces"],
        ["lifetime", "lifetime"],
      ];
      if (this.job.about.stacks) colours.push(["stack", "stack"]);
      const button = (text, label, action) =>
        Seam.element(
          "button",
          { type: "button", title: label, "aria-label": /[a-z]/.test(text) ? null : label, onclick: action },
          text,
        );
      const tools = Seam.element(
        "div",
        { class: "toolbar" },
        choice("Strategy", strategies, this.index, (value) => this.show(Number(value))),
        choice(
          "Upwards",
          [
            ["memory", "memory held"],
            ["addresses", "addresses"],
          ],
          this.axisName,
          (value) => this.showAxis(value),
        ),
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
          button("Driver ▶", "To the next operation for which the driver moves memory", () => this.jumps.work(1)),
        ),
      );
      const label =
        "Map of memory: operations to the right, bytes upwards, a rectangle for each block. Keys are listed under Keys.";
      this.box.setAttribute("aria-label", label);
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
      const of = Seam.COLOURINGS[this.colouring](this.job, this.layout);
      this.scheme = of;
      this.classOf = new Uint8Array(this.layout.blocks);
      for (let block = 0; block < this.layout.blocks; block++) this.classOf[block] = of.of(block);
      this.explainColours();
    }

    explainColours() {
      const colours = this.scheme.colours();
      const item = (colour, name) =>
        Seam.element(
          "li",
          { class: "key" },
          Seam.element("span", { class: "swatch", style: `--colour:${colour}` }),
          name,
        );
      const items = this.scheme.names.map((name, index) => item(colours[index], name));
      if (this.job.blocks && this.hasPending()) items.push(item(Seam.css("pending"), "freed, in use by other streams"));
      items.push(item(Seam.css("free"), this.axisName === "memory" ? "held, free" : "no block now"));
      this.legend.replaceChildren(...items);
    }

    // The pointer.
    local(event) {
      const box = this.over.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    grab(event) {
      this.over.setPointerCapture(event.pointerId);
      this.grabbed = {
        at: this.local(event),
        from: this.view.from,
        to: this.view.to,
        low: this.low,
        high: this.high,
        moved: false,
      };
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
        this.setBytes(
          grabbed.low + (up / this.height) * (grabbed.high - grabbed.low),
          grabbed.high + (up / this.height) * (grabbed.high - grabbed.low),
        );
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
    const select = Seam.element("select", { "aria-label": label, onchange: (event) => action(event.target.value) });
    for (const [of, name] of options)
      select.append(Seam.element("option", { value: of, selected: of === value }, name));
    return Seam.element("label", {}, label, select);
  }
})();
