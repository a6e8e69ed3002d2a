// A job and what strategies made of it, from the columns that the page carries.
"use strict";

(() => {
  /** A block that is never freed. */
  const NEVER = 0xffffffff;

  Seam.Job = class {
    static async load(number) {
      const { about, column } = await Seam.unpack(`job-${number}`);
      const job = Object.assign(new Seam.Job(), { number, about, courses: [], maps: [] });
      job.read(column);
      for (const index of about.strategies.keys()) job.courses.push(await Course.load(job, index));
      return job;
    }

    read(column) {
      const [ops, sizes, sizeOf, streams] = [column("ops"), column("sizes"), column("size"), column("stream")];
      const blocks = sizeOf.length;
      this.total = ops.length;
      /** By block: bytes asked for, stream, the operations of its allocation, its free, and that free's completion. */
      this.size = new Float64Array(blocks);
      this.stream = new Uint16Array(blocks);
      this.from = new Uint32Array(blocks);
      this.freed = new Uint32Array(blocks).fill(NEVER);
      this.until = new Uint32Array(blocks).fill(NEVER);
      /** By operation: its block, and whether it allocates it. */
      this.block = new Uint32Array(ops.length);
      this.allocates = new Uint8Array(ops.length);
      const live = new Float64Array(ops.length);
      let [next, bytes] = [0, 0];
      for (let op = 0; op < ops.length; op++) {
        if (ops[op] === 0) {
          this.size[next] = sizes[sizeOf[next]];
          this.stream[next] = streams[next];
          this.from[next] = op;
          this.allocates[op] = 1;
          this.block[op] = next;
          bytes += this.size[next++];
        } else {
          const block = next - ops[op];
          this.freed[block] = this.until[block] = op;
          this.block[op] = block;
          bytes -= this.size[block];
        }
        live[op] = bytes;
      }
      const [deferred, when] = [column("deferred_block"), column("deferred_op")];
      deferred.forEach((block, index) => (this.until[block] = when[index]));
      const every = Float64Array.from({ length: ops.length }, (_, op) => op);
      this.live = new Seam.Figure(every, live);
      this.peak = live.length ? live.reduce((best, value, op) => (value > live[best] ? op : best), 0) : 0;
      this.stackOf = column("stack");
    }

    get blocks() {
      return this.size.length;
    }

    /** The lines of a block's stack, the innermost first; null where it is not known. */
    stack(block) {
      const number = this.stackOf[block] ?? 0;
      return number > 0 ? this.about.stacks[number - 1].map((frame) => this.about.frames[frame]) : null;
    }

    /** The index of the line of the program that asked for a block; null where it is not known. */
    line(block) {
      const number = this.stackOf[block] ?? 0;
      return number > 0 ? this.about.line_of_stack[number - 1] : null;
    }

    /** Where the blocks of a strategy lay; read when it is first wanted. */
    map(index) {
      this.maps[index] ??= Seam.Layout.load(this, index);
      return this.maps[index];
    }

    /** The requests that memory did not suffice for, by operation: of each strategy, and when the job was recorded. */
    refusals() {
      const found = this.courses.filter((course) => course.about.refusal);
      const replayed = found.map((course) => ({ op: this.opOf(course), course, ...course.about.refusal }));
      const recorded = (this.about.recorded_refusals ?? []).map(([block, size, free]) => ({
        op: block < this.blocks ? this.from[block] : this.total - 1,
        recorded: true,
        requested: size,
        device_free: free,
      }));
      return [...replayed, ...recorded].sort((a, b) => a.op - b.op);
    }

    /** The operation at which a strategy's run ended. */
    opOf(course) {
      return Math.min(course.about.figures?.ops ?? this.total, this.total - 1);
    }
  };

  /** What a strategy did. */
  class Course {
    static async load(job, index) {
      const { about, column } = await Seam.unpack(`course-${job.number}-${index}`);
      const course = Object.assign(new Course(), { index, about, name: about.strategy });
      course.read(job, column);
      return course;
    }

    read(job, column) {
      /** The operation before which the run ended. */
      this.end = this.about.refusal ? job.opOf(this) : job.total;
      this.reserved = this.ended(column("reserved_op"), column("reserved"), job.total);
      this.active = this.activeOf(job, column("pending_op"), column("pending"));
      const [ops, ns, sets] = [column("work_op"), column("work_ns"), column("work_calls")];
      this.work = { ops, ns, sets };
      /** Of each set of calls: whether memory comes, goes or is mapped by it. */
      this.movesMemory = this.about.call_sets.map((set) =>
        set.some(([name]) => name.startsWith("cuMem") && name !== "cuMemGetInfo"),
      );
      const sums = this.about.call_sets.map((set) => ({
        calls: set.reduce((sum, [, count]) => sum + count, 0),
        cpu: set.reduce((sum, [, count, waits]) => sum + (waits ? count : 0), 0),
        stream: set.reduce((sum, [name, count]) => sum + (name === "cuStreamWaitEvent" ? count : 0), 0),
      }));
      const added = (of) => {
        let sum = 0;
        return new Seam.Figure(
          ops,
          ns.map((time, index) => (sum += of(time, sums[sets[index]]))),
        );
      };
      this.time = added((time) => time);
      this.calls = added((_, sum) => sum.calls);
      this.cpuWaits = added((_, sum) => sum.cpu);
      this.streamWaits = added((_, sum) => sum.stream);
      this.stalls = new Seam.Figure(ops, ns, true);
      this.samples = this.about.samples;
      this.sampled = Float64Array.from(this.samples, (sample) => sample.op);
    }

    /** A figure that is not there any more once the run has ended. */
    ended(at, value, total) {
      if (this.end >= total) return new Seam.Figure(at, value);
      return new Seam.Figure(Float64Array.of(...at, this.end + 1), Float64Array.of(...value, NaN));
    }

    activeOf(job, at, value) {
      if (value.length === 0) return job.live;
      const active = Float64Array.from(job.live.value);
      let next = 0;
      let pending = 0;
      for (let op = 0; op < active.length; op++) {
        for (; next < at.length && at[next] <= op; next++) pending = value[next];
        active[op] += pending;
      }
      return new Seam.Figure(job.live.at, active);
    }

    /** What an operation made of the driver: time and calls, or null. */
    workAt(op) {
      const index = this.stalls.before(op);
      if (this.work.ops[index] !== op) return null;
      return { ns: this.work.ns[index], calls: this.about.call_sets[this.work.sets[index]] };
    }

    /** The sample of how memory was divided up that is nearest to an operation. */
    sampleAt(op) {
      let best = 0;
      this.sampled.forEach((at, index) => {
        if (Math.abs(at - op) < Math.abs(this.sampled[best] - op)) best = index;
      });
      return this.samples[best];
    }
  }
})();
