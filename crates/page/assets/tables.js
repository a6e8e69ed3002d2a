// Figures in words and tables.
"use strict";

(() => {
  const row = (cells, tag = "td") =>
    Seam.element("tr", {}, ...cells.map((cell) => (cell instanceof Node ? cell : Seam.element(tag, {}, cell))));

  /** Headings above text. */
  const LEFT = new Set(["asked for by", "error", "file"]);

  /** A table in a box that scrolls where it is too wide. Headings and cells are text or elements; the first cell names its row. */
  Seam.table = (caption, headings, rows) => {
    const head = Seam.element(
      "thead",
      {},
      row(headings.map((text) => Seam.element("th", { scope: "col", class: LEFT.has(text) ? "text" : null }, text))),
    );
    const body = Seam.element("tbody");
    for (const [name, ...cells] of rows) {
      body.append(row([Seam.element("th", { scope: "row" }, name), ...cells]));
    }
    const table = Seam.element("table", { "aria-label": caption }, head, body);
    const scroll = Seam.element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, table);
    return Seam.element("figure", {}, Seam.element("figcaption", { class: "note" }, caption), scroll);
  };

  /** Shows the verdict on a job: what is wrong, why, and what to do next. */
  Seam.verdict = (found) => {
    const section = document.getElementById("verdict");
    section.hidden = !found;
    if (!found) return;
    const next = Seam.element("p", {}, Seam.element("strong", {}, "Next: "), found.next);
    section.replaceChildren(Seam.element("h2", {}, found.text), Seam.element("p", {}, found.reasons), next);
  };

  /** The strategies that are compared where none is named. */
  const STRATEGIES = {
    caching: "PyTorch's default: segments from cudaMalloc, which never grow.",
    expandable: "PyTorch's option expandable_segments:True: one segment for each stream, which grows at its end.",
    gmlake: "GMLake's algorithm (ASPLOS 2024): chunks of 2 MiB, stitched for larger requests.",
    stitch: "seamalloc's own algorithm: free memory is stitched together, wherever it lies.",
  };

  /** A sentence for each strategy, and where more is to be read. */
  Seam.strategies = (names, { repository }) => {
    const known = names.filter((name) => STRATEGIES[name]);
    const link = Seam.element("a", { href: `${repository}/tree/main/docs`, rel: "noreferrer" }, "documentation");
    const items = known.map((name) => [Seam.element("strong", {}, name), `: ${STRATEGIES[name]}`]);
    items.push(["More on strategies and on this page: ", link, "."]);
    return Seam.element("ul", { class: "words" }, ...items.map((parts) => Seam.element("li", {}, ...parts)));
  };

  const named = (course, job) => Seam.element("span", {}, Seam.sample(Seam.look(course.index)), " ", course.name);
  const failed = (text) => Seam.element("td", { class: "failed" }, text);

  /** The most important figures, strategy beside strategy. */
  Seam.figures = (job) => {
    const refused = (course) => failed(`out of memory at operation ${Seam.count(job.opOf(course))}`);
    const columns = [
      ["reserved at most", ({ peak_reserved }) => Seam.bytes(peak_reserved)],
      ["utilization", (figures, course) => (figures.oom ? refused(course) : used(figures.utilization))],
      [
        "driver calls",
        ({ driver_calls }) => Seam.count(Object.values(driver_calls).reduce((sum, count) => sum + count, 0)),
      ],
      ["time in them", ({ driver_time_us }) => Seam.duration(driver_time_us * 1e3)],
      ["stalls", ({ stalls }) => Seam.count(stalls)],
      ["worst", ({ worst_stall_us }) => Seam.duration(worst_stall_us * 1e3)],
      ["CPU waits", ({ cpu_syncs }) => Seam.count(cpu_syncs)],
      ["stream waits", ({ stream_waits }) => Seam.count(stream_waits)],
      ["views built", ({ views_built }) => Seam.count(views_built)],
    ];
    const rows = job.courses.map((course) => [
      named(course, job),
      ...columns.map(([, of]) => of(course.about.figures, course)),
    ]);
    const caption = `At most ${Seam.bytes(job.about.peak_live)} are live; no strategy can do with less. A stall is an operation that calls the driver; times are those of the simulated device.`;
    return Seam.table(caption, ["strategy", ...columns.map(([name]) => name)], rows);
  };

  function used(part) {
    const bar = Seam.element("span", {
      class: "bar",
      style: `--part:${(part * 100).toFixed(1)}%`,
      "aria-hidden": "true",
    });
    return Seam.element("td", {}, Seam.percent(part), bar);
  }

  /** A factor of larger steps; the search for it stops at 8. */
  Seam.times = (step) => (step == null ? "–" : step === 0 ? "none" : step < 8 ? `×${step.toFixed(2)}` : "×8 or more");

  /** What larger steps and other allocators on the same device come to. */
  Seam.compared = (job) => {
    const unknown = job.about.whatif.some((line) => line.device_from === "unknown");
    const step = ({ grows, largest_step: factor }) =>
      unknown ? "say --device" : factor == null && !grows ? "nothing grows" : Seam.times(factor ?? 0);
    const held = (bytes) => (bytes == null ? failed("too much") : Seam.bytes(bytes));
    const rows = job.about.whatif.map((line) => {
      const course = job.courses.find((course) => course.name === line.strategy);
      const gain =
        line.peak_reserved != null && line.expandable_reserved != null && line.strategy !== "expandable"
          ? line.expandable_reserved - line.peak_reserved
          : null;
      const less = gain == null ? "–" : `${gain < 0 ? "−" : ""}${Seam.bytes(Math.abs(gain))}`;
      return [named(course, job), held(line.peak_reserved), step(line), less];
    });
    const stays = Math.max(...job.about.whatif.map((line) => line.persistent));
    const caption = unknown
      ? "What each strategy needs. The recording does not name its device: with --device the table says how much larger the steps can be."
      : `On the same device, ${job.about.device}. Largest step: how many times as large activations and temporary buffers can be, beside ${Seam.bytes(stays)} of weights and optimizer state that stay. Gradients are taken to grow too, to be careful.`;
    const [{ recorded_reserved: held_then, reserved_before: before }] = job.about.whatif;
    const already = before === held_then ? "as much" : Seam.bytes(before);
    const compares = before > 0 ? ` That does not compare with the table: it held ${already} before the recording began.` : "";
    const recorded = held_then == null ? "" : ` PyTorch held ${Seam.bytes(held_then)} when it was recorded.${compares}`;
    const headings = ["strategy", "reserved", "largest step", "less than expandable"];
    return Seam.table(caption + recorded, headings, rows);
  };

  /** Calls by name, strategy beside strategy. */
  Seam.calls = (job) => {
    const names = [...new Set(job.courses.flatMap((course) => course.about.calls.map(([name]) => name)))];
    const cell = (course, name) => {
      const found = course.about.calls.find(([of]) => of === name);
      return found ? `${Seam.count(found[1])} · ${Seam.duration(found[2])}` : "–";
    };
    const rows = names.map((name) => [name, ...job.courses.map((course) => cell(course, name))]);
    return Seam.table(
      "Calls of the driver, how often and for how long, by name.",
      ["call", ...job.courses.map((course) => course.name)],
      rows,
    );
  };

  /** Driver time on devices that are nearly too small. */
  Seam.sizes = (job) => {
    const times = [...new Set(job.about.cliff.map((at) => at.times_live))];
    const cell = (course, times) => {
      const at = job.about.cliff.find((at) => at.times_live === times && at.strategy === course.name);
      if (!at?.runs) return failed("out of memory");
      const waits = at.cpu_syncs_last > 0 ? `, ${Seam.plural(at.cpu_syncs_last, "wait")}` : "";
      return `${Seam.duration(at.driver_time_us_last * 1e3)}${waits}`;
    };
    const memory = (times) => Seam.bytes(job.about.cliff.find((at) => at.times_live === times).capacity);
    const rows = times.map((times) => [
      `${times} (${memory(times)})`,
      ...job.courses.map((course) => cell(course, times)),
    ]);
    return Seam.table(
      "Time in the driver in the last pass, and how often the CPU waited for the GPU in it.",
      ["times live", ...job.courses.map((course) => course.name)],
      rows,
    );
  };

  /** The owner of free memory, for people. */
  Seam.owner = (owner) => (owner === "everyone" || owner.startsWith("pool") ? owner : `stream ${owner}`);

  /** Who has the free memory at an operation. */
  Seam.owners = (sample) => {
    const rows = sample.pools.map((pool) => [
      Seam.owner(pool.owner),
      pool.small ? "up to 1 MiB" : "larger",
      Seam.bytes(pool.free),
      Seam.count(pool.ranges),
      Seam.bytes(pool.largest),
      pool.stranded > 0 ? Seam.bytes(pool.stranded) : "–",
    ]);
    const [count, free, stranded] = sample.others;
    if (count > 0) rows.push([Seam.plural(count, "other"), "", Seam.bytes(free), "", "", Seam.bytes(stranded)]);
    const caption = `Free memory after operation ${Seam.count(sample.op)}, the measured moment nearest to the cursor: ${Seam.bytes(sample.free)} in all; the longest range that one request could have is ${Seam.bytes(sample.largest_free)}, with stitching where the strategy does it ${Seam.bytes(sample.largest_reachable)}.`;
    return Seam.table(caption, ["owner", "for blocks", "free", "ranges", "longest", "stranded"], rows);
  };

  /** So many lines have a row, and so many stacks of each are shown. */
  const [LINES, STACKS] = [15, 5];

  /** The lines of the program that hold most at an operation; all shares together are 100%. */
  Seam.holders = (job, op) => {
    const lines = new Map();
    for (let block = 0; block < job.blocks && job.from[block] <= op; block++) {
      if (job.freed[block] <= op) continue;
      const line = job.line(block);
      if (!lines.has(line)) lines.set(line, { bytes: 0, blocks: 0, stacks: new Map() });
      const held = lines.get(line);
      held.bytes += job.size[block];
      held.blocks++;
      held.stacks.set(job.stackOf[block], (held.stacks.get(job.stackOf[block]) ?? 0) + job.size[block]);
    }
    const unknown = lines.get(null);
    lines.delete(null);
    const live = job.live.valueAt(op);
    const sorted = [...lines].sort((a, b) => b[1].bytes - a[1].bytes);
    const others = sorted.slice(LINES).map(([, held]) => held);
    const row = ({ bytes, blocks }, by) => [Seam.bytes(bytes), by, Seam.percent(bytes / live), Seam.count(blocks)];
    const rows = sorted.slice(0, LINES).map(([line, held]) => row(held, stacksCell(job, line, held.stacks)));
    const text = (text) => Seam.element("td", { class: "wide" }, text);
    if (others.length > 0) {
      const sum = (of) => others.reduce((sum, held) => sum + held[of], 0);
      rows.push(row({ bytes: sum("bytes"), blocks: sum("blocks") }, text(Seam.plural(others.length, "other line"))));
    }
    if (unknown) rows.push(row(unknown, text("not recorded: from before the recording")));
    return Seam.table(
      `Live after operation ${Seam.count(op)}: ${Seam.bytes(live)}, by the innermost line of your own code that asked for it. A row opens to its stacks.`,
      ["bytes", "asked for by", "of live", "blocks"],
      rows,
    );
  };

  /** A line, with the stacks that hold most of what it holds. */
  function stacksCell(job, line, stacks) {
    const sorted = [...stacks].sort((a, b) => b[1] - a[1]);
    const shown = sorted.slice(0, STACKS).flatMap(([stack, bytes]) => [
      Seam.element("p", { class: "note" }, Seam.bytes(bytes)),
      ...frames(job.about.stacks[stack - 1].map((frame) => job.about.frames[frame])),
    ]);
    const left = sorted.length - STACKS;
    if (left > 0) shown.push(Seam.element("p", { class: "note" }, `${Seam.plural(left, "other stack")} with less`));
    const name = Seam.element("summary", {}, job.about.lines[line]);
    return Seam.element("td", { class: "wide" }, Seam.element("details", {}, name, ...shown));
  }

  /** The frames of a stack: those of Python, and on demand those of C++ between them. */
  function frames(all) {
    const text = (frames) => Seam.element("pre", {}, frames.join("\n"));
    const python = all.filter((frame) => / \((<.*|.*\.py)(:\d+)?\)$/.test(frame));
    if (python.length === 0 || python.length === all.length) return [text(all)];
    const name = Seam.element("summary", {}, `with C++: ${Seam.plural(all.length, "frame")}`);
    return [text(python), Seam.element("details", {}, name, text(all))];
  }

  Seam.inWords = {
    /** What an operation does. */
    operation(job, course, op) {
      const block = job.block[op];
      const what = job.allocates[op] ? "allocates" : "frees";
      const parts = [
        `Operation ${Seam.count(op)} of ${Seam.count(job.total)} ${what} block ${Seam.count(block)}, ${Seam.bytes(job.size[block])}`,
      ];
      if (op >= course.end)
        return `Operation ${Seam.count(op)}: ${course.name} ran out of memory at operation ${Seam.count(course.end)}.`;
      const work = course.workAt(op);
      if (work) {
        const calls = work.calls.map(([name, count]) => (count > 1 ? `${name} ×${Seam.count(count)}` : name));
        parts.push(`${course.name} takes ${Seam.duration(work.ns)} in the driver for it (${calls.join(", ")})`);
      }
      if (course.about.retries.includes(op)) parts.push("all cached memory was given back first");
      parts.push(
        `then ${Seam.bytes(job.live.valueAt(op))} are live, ${Seam.bytes(course.reserved.valueAt(op))} reserved`,
      );
      return `${parts.join("; ")}.`;
    },

    /** A block, and where it lies. */
    block(job, layout, block, op) {
      const place = layout.placeAt(block, op);
      const [size, bytes] = [job.size[block], layout.bytes[place]];
      const rounding = bytes > size ? ` in ${Seam.bytes(bytes)}` : "";
      const freed = job.freed[block] < job.total;
      const life = freed
        ? `freed by operation ${Seam.count(job.freed[block])}, ${Seam.plural(job.freed[block] - job.from[block], "operation")} later`
        : "not freed";
      const late =
        freed && job.until[block] > job.freed[block]
          ? `, in use by other streams until ${Seam.count(job.until[block])}`
          : "";
      const pieces = layout.pieces[place];
      const first = layout.firstPiece[place];
      const sizes = Array.from({ length: Math.min(pieces, 6) }, (_, index) =>
        Seam.bytes(layout.pieceSize[first + index]),
      );
      const joined =
        pieces > 1
          ? `stitched from ${Seam.count(pieces)} pieces of memory (${sizes.join(", ")}${pieces > 6 ? ", …" : ""})`
          : "in one piece of memory";
      return [
        `Block ${Seam.count(block)}: ${Seam.bytes(size)}${rounding}, ${size <= 2 ** 20 ? "small" : "large"}, on stream ${job.about.streams[job.stream[block]]}; allocated by operation ${Seam.count(job.from[block])}, ${life}${late}.`,
        `It lies at ${Seam.address(layout.address[place])}, ${joined}.`,
      ];
    },

    /** A place without a block. */
    nothing(layout, axis, name, op, byte) {
      if (op < 0 || op >= layout.end || byte < 0) return "Nothing is here.";
      if (name !== "memory") return `${Seam.address(Math.floor(axis.addressAt(byte)))}: no block lies here.`;
      const hole = layout.holeAt(op, byte, axis.spans);
      if (!hole) return "No memory is held here.";
      const size = Seam.bytes(layout.chunks.size[hole.chunk]);
      const whole = hole.to - hole.from === layout.chunks.size[hole.chunk];
      return whole
        ? `Free: a whole chunk, ${size}, held since operation ${Seam.count(layout.chunks.from[hole.chunk])}.`
        : `Free: ${Seam.bytes(hole.to - hole.from)} in a chunk of ${size}, held since operation ${Seam.count(layout.chunks.from[hole.chunk])}.`;
    },
  };
})();
