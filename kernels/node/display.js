'use strict';
// `display`: something to be shown beside the output. Also what an object says about how it wants to be shown.

const { Object, Reflect, Symbol } = globalThis;
const channel = require('./channel.js');
const { bytesOf, toBase64, toData, toText } = require('./values.js');

const MAX_DISPLAY = 12 * 1024 * 1024;
const MAX_KEPT = 100; // displays between two runs
const TEXT_BYTES = 1024 * 1024;
const BINARY = /^(image|audio|video|font)\/(?!svg\+xml)|^application\/(pdf|octet-stream|zip|gzip|x-.*)$/;
const REPRESENTATIONS = [
  ['_repr_html_', 'text/html'], ['_repr_svg_', 'image/svg+xml'], ['_repr_png_', 'image/png'], ['_repr_jpeg_', 'image/jpeg'],
  ['_repr_markdown_', 'text/markdown'], ['_repr_latex_', 'text/latex'], ['_repr_json_', 'application/json'],
];
const JUPYTER = Symbol.for('Jupyter.display');

let kept = [];
let keptBytes = 0;

function problem(sentence) {
  return new host.TypeError(sentence);
}

// One medium as text: bytes become base64, and text that is a data: URL loses its head.
function medium(mime, data) {
  if (host.types.isAnyArrayBuffer(data) || host.types.isArrayBufferView(data)) return toBase64(bytesOf(data));
  if (typeof data === 'string') return BINARY.test(mime) ? data.replace(/^data:[^,]*,/, '') : data;
  const plain = toData(data, MAX_DISPLAY);
  if (plain === undefined) throw problem(`display: the data for ${mime} is neither text nor bytes nor JSON`);
  return channel.toJson(plain);
}

function isBundle(value) {
  const keys = Object.keys(value);
  return keys.length > 0 && keys.every((key) => /^[a-z]+\/[\w.+-]+$/.test(key));
}

function bundle(source) {
  const data = { __proto__: null };
  for (const mime of Object.keys(source)) data[mime] = medium(mime, source[mime]);
  return data;
}

// What the object itself offers, or null: Symbol.for('Jupyter.display'), _repr_mimebundle_, _repr_html_ and its like.
function offered(value) {
  if (typeof value !== 'object' || value === null) return null;
  for (const name of [JUPYTER, '_repr_mimebundle_']) {
    if (typeof value[name] === 'function') {
      const given = Reflect.apply(value[name], value, []);
      if (typeof given === 'object' && given !== null && isBundle(given)) return bundle(given);
    }
  }
  const data = { __proto__: null };
  let any = false;
  for (const [name, mime] of REPRESENTATIONS) {
    if (typeof value[name] !== 'function') continue;
    const given = Reflect.apply(value[name], value, []);
    if (given === undefined || given === null) continue;
    data[mime] = medium(mime, given);
    any = true;
  }
  return any ? data : null;
}

function toBundle(value) {
  const own = offered(value);
  if (own !== null) return own;
  if (typeof value === 'object' && value !== null && !host.types.isProxy(value) && isBundle(value)) return bundle(value);
  return { 'text/plain': typeof value === 'string' ? value : toText(value, TEXT_BYTES, false) };
}

// `id` is null between two runs: then it is kept for the next one.
function show(id, data, name) {
  const frame = { op: 'display', id, data };
  if (typeof name === 'string') frame.name = name.slice(0, 200);
  const bytes = channel.toJson(frame).length;
  if (bytes > MAX_DISPLAY) throw new host.RangeError('display: too large; save it to a file instead');
  if (id !== null) {
    if (!channel.send(frame)) throw new host.RangeError('display: too large; save it to a file instead');
  } else if (kept.length < MAX_KEPT && keptBytes + bytes <= MAX_DISPLAY) {
    kept.push(frame);
    keptBytes += bytes;
  }
}

function showKept(id) {
  const frames = kept;
  kept = [];
  keptBytes = 0;
  for (const frame of frames) channel.send({ ...frame, id });
}

module.exports = { offered, show, showKept, toBundle };
