// Reads the data that the page carries: the form is that of crates/page/src/pack.rs.
"use strict";

(() => {
  /** What stands in the element of that id: `about`, and columns by name. */
  Seam.unpack = async (id) => {
    const text = document.getElementById(id).textContent;
    const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const length = new DataView(bytes.buffer).getUint32(0, true);
    const about = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    const column = (name) => {
      const [offset, count, deltas] = about.columns[name] ?? [0, 0, false];
      return numbers(bytes, 4 + length + offset, count, deltas);
    };
    return { about, column };
  };

  function fromBase64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
    return bytes;
  }

  function numbers(bytes, at, count, deltas) {
    const out = new Float64Array(count);
    let last = 0;
    for (let index = 0; index < count; index++) {
      let byte = bytes[at++];
      let number = byte & 0x7f;
      // Numbers of more than 32 bits are no integers of JavaScript's shifts.
      for (let scale = 128; byte >= 0x80; scale *= 128) {
        byte = bytes[at++];
        number += (byte & 0x7f) * scale;
      }
      if (deltas) {
        last += number % 2 === 0 ? number / 2 : -(number + 1) / 2;
        number = last;
      }
      out[index] = number;
    }
    return out;
  }
})();
