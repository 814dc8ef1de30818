// node trace_query.js DIR TRACE SQL...: loads a trace into Perfetto's own trace processor (the WebAssembly build that its user interface runs, in DIR with the
// worker script around it) and prints the rows of each query as JSON. Messages to it are protocol buffers, of which this file writes and reads what it needs.
"use strict";
process.on("uncaughtException", (error) => { console.error(String((error && error.message) || error).slice(0, 2000)); process.exit(1); });
const fs = require("fs"), path = require("path"), vm = require("vm");
const [dir, trace, ...queries] = process.argv.slice(2);

const varint = (n) => { const out = []; for (n = BigInt(n); n > 127n; n >>= 7n) out.push(Number(n & 127n) | 128); out.push(Number(n)); return Buffer.from(out); };
const number = (field, n) => Buffer.concat([varint(field << 3), varint(n)]);
const bytes = (field, b) => Buffer.concat([varint(field << 3 | 2), varint(b.length), b]);

function* fields(b) {
  let at = 0;
  const read = () => { let n = 0n, s = 0n; for (;;) { const c = b[at++]; n |= BigInt(c & 127) << s; if (c < 128) return n; s += 7n; } };
  while (at < b.length) {
    const key = Number(read()), kind = key & 7;
    if (kind === 0) yield [key >> 3, read()];
    else if (kind === 1) { yield [key >> 3, b.subarray(at, at + 8)]; at += 8; }
    else if (kind === 5) { yield [key >> 3, b.subarray(at, at + 4)]; at += 4; }
    else { const n = Number(read()); yield [key >> 3, b.subarray(at, at + n)]; at += n; }
  }
}
const packed = (b) => { const out = []; let n = 0n, s = 0n; for (const c of b) { n |= BigInt(c & 127) << s; s += 7n; if (c < 128) { out.push(Number(BigInt.asIntN(64, n))); n = s = 0n; } } return out; };

let names, rows, row, seq = 0, problem = null;
function result(b) {
  for (const [f, v] of fields(b)) {
    if (f === 1) names.push(v.toString());
    else if (f === 2 && v.length) problem = v.toString();
    else if (f === 3) {
      let kinds = [], ints = [], floats = [], texts = [];
      for (const [g, w] of fields(v)) {
        if (g === 1) kinds = kinds.concat(packed(w));
        else if (g === 2) ints = ints.concat(packed(w));
        else if (g === 3) for (let i = 0; i < w.length; i += 8) floats.push(w.readDoubleLE(i));
        else if (g === 5) texts = texts.concat(w.toString().split("\0"));
      }
      for (const kind of kinds) {
        row.push(kind === 2 ? ints.shift() : kind === 3 ? floats.shift() : kind === 4 ? texts.shift() : null);
        if (row.length === names.length) { rows.push(row); row = []; }
      }
    }
  }
}
function reply(data) {
  for (const [, message] of fields(Buffer.from(data))) {
    for (const [f, v] of fields(message)) {
      if (f === 5) problem = v.toString();
      else if (f === 203) result(v);
      else if (f === 201) for (const [g, w] of fields(v)) { if (g === 2 && w.length) problem = w.toString(); }
    }
  }
}

const port = { postMessage: reply, onmessage: null };
const scope = { console: { log() {}, warn() {}, error: console.error }, URL, TextDecoder, TextEncoder, performance, setTimeout, clearTimeout, queueMicrotask, crypto: globalThis.crypto,
  location: { href: "http://localhost/" }, WorkerGlobalScope: function () {}, XMLHttpRequest: class {
    open(_, url) { this.file = path.join(dir, path.basename(String(url))); }
    send() { const b = fs.readFileSync(this.file); this.status = 200; this.response = b.buffer.slice(b.byteOffset, b.byteOffset + b.length); }
  } };
scope.self = scope.globalThis = scope;
vm.createContext(scope);
vm.runInContext(fs.readFileSync(path.join(dir, "engine_bundle.js"), "utf8"), scope);
scope.onmessage({ data: port });

const send = (method, ...args) => { const b = bytes(1, Buffer.concat([number(1, ++seq), number(2, method), ...args])); scope.__in = b; port.onmessage({ data: vm.runInContext("new Uint8Array(__in)", scope) }); if (problem) throw new Error(problem); };
const ask = (sql) => { names = []; rows = []; row = []; send(3, bytes(103, bytes(1, Buffer.from(sql)))); return rows.map((r) => Object.fromEntries(r.map((v, i) => [names[i], v]))); };

(async () => {
  await new Promise((go) => setTimeout(go, 0)); // the module is loaded at once; what it does when it is ready waits for its turn
  send(1, bytes(101, fs.readFileSync(trace)));
  send(2);
  process.stdout.write(JSON.stringify(queries.map(ask)));
  process.exit(0);
})().catch((error) => { console.error(String(error.message || error).slice(0, 2000)); process.exit(1); });
